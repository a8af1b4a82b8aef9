"""Regenerate the pictures in docs/ from runs of vit.py, through the page itself:

    python tests/make_pictures.py                      # seed 0; missing runs are made first (minutes)
    python tests/make_pictures.py --pinned "--seed 4 --warmup 1"

docs/page.png              the top of the page of a clean run, with rollout maps
docs/patch_interleave.png  the same frame in the page of the broken run, with occlusion maps: they tell
docs/tokens.png            what that run's model sees: rows of pixels, not patches
docs/curves.png            the learning curves of the clean and of a pinned run

The frame is not picked by eye. Of the page's frames in which block and target share no patch, so that one can
tell them apart, it is the one whose rollout mass on the block is the median. Runs that are there are not made again,
but their data goes into today's viewer.html. Needs Playwright and chromium (CHROMIUM=path if it is not /usr/bin/chromium).
"""

import argparse
import base64
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import page_data
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import vit  # noqa: E402  for the folder that vit.py gives a run


def data_of(flags):
    """The page data of the run with these flags; the run is made if it is not there, or was made by other code or defaults."""
    args = vit.parse_args(flags)
    path = ROOT / args.out / "viewer.html"

    def read():
        return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', path.read_text("utf-8"), re.DOTALL)[1])

    data = read() if path.exists() else {}
    if data.get("version") != vit.VERSION or any(data["metrics"][flag] != getattr(args, flag) for flag in vit.NUMBERS):
        print("python vit.py", *flags, flush=True)
        subprocess.run([sys.executable, str(ROOT / "vit.py"), *flags], cwd=ROOT, check=True)
        data = read()
    return data


def frame_to_show(data):
    """Index of the frame with the median rollout mass on the block, of those where block and target share no patch."""
    hw, p = data["hw"], data["patch"]
    mass = {}
    for i, frame in enumerate(data["frames"]):
        touch = {}
        for thing, packed in frame["masks"].items():
            mask = np.unpackbits(np.frombuffer(base64.b64decode(packed), np.uint8))[: hw * hw]
            touch[thing] = mask.reshape(hw // p, p, hw // p, p).any(axis=(1, 3)).ravel()
        values = np.array(frame["maps"]["rollout_trained"])
        if not (touch["block"] & touch["target"]).any():
            mass[i] = values[touch["block"]].sum() / values.sum()
    if not mass:
        raise SystemExit("make_pictures.py: in every frame of the page the block touches a patch of the target; give another --seed")
    return sorted(mass, key=mass.get)[len(mass) // 2]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", default="0", help="seed of the clean and the broken run")
    parser.add_argument("--pinned", default="--warmup 1", help="flags of a run that stays at chance")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder for the pictures")
    args = parser.parse_args(argv)

    data = data_of(["--seed", args.seed])
    broken_data = data_of(["--seed", args.seed, "--break", "patch_interleave"])
    pinned_data = data_of(shlex.split(args.pinned))
    if not pinned_data["pinned"]:
        parser.error(f"argument --pinned: {args.pinned} left chance (its loss ended at {pinned_data['loss'][-1]}); give the flags of a run that did not")
    if [f["index"] for f in data["frames"]] != [f["index"] for f in broken_data["frames"]]:
        parser.error("the clean and the broken page do not show the same frames; make both runs again")
    frame = frame_to_show(data)
    args.out.mkdir(parents=True, exist_ok=True)

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=["--no-sandbox"])
        context = chromium.new_context(viewport={"width": 1240, "height": 900}, device_scale_factor=1.6, color_scheme="light", reduced_motion="reduce")
        context.set_default_timeout(120_000)

        def opened(data, kind="rollout"):
            path = Path(folder, "page.html")
            path.write_text(page_data.fill((ROOT / "viewer.html").read_text("utf-8"), data), "utf-8")
            page = context.new_page()
            page.goto(path.as_uri())
            page.wait_for_selector("html[data-ready]", state="attached")
            page.locator("#strip button").nth(min(frame, len(data["frames"]) - 1)).click()
            page.locator(f"label:has(input[value={kind}])").click()
            page.evaluate("document.activeElement.blur()")
            page.mouse.move(0, 0)
            return page

        def top(page, name):
            bottom = page.locator("#strip").bounding_box()
            height = bottom["y"] + bottom["height"] + 24
            page.screenshot(path=args.out / name, full_page=True, clip={"x": 0, "y": 0, "width": 1240, "height": height})

        page = opened(data)
        top(page, "page.png")
        curves = [page.locator("#curve").screenshot()]
        page = opened(broken_data, "occlusion")
        top(page, "patch_interleave.png")
        box = page.locator("section").first.bounding_box()
        page.screenshot(path=args.out / "tokens.png", full_page=True, clip={"x": 0, "y": box["y"] + 40, "width": 1240, "height": box["height"] - 16})
        curves.append(opened(pinned_data).locator("#curve").screenshot())

        sheet = context.new_page()
        sheet.set_viewport_size({"width": 1240, "height": 420})
        titles = [f"vit.py --seed {args.seed}", f"vit.py {args.pinned}"]
        sheet.set_content("""<!doctype html><style>body { margin: 0; padding: 24px; background: #fcfbf8; display: flex; gap: 40px; font: 600 16px Inter, "Helvetica Neue", Arial, sans-serif; }
            figure { margin: 0; flex: 1 } img { width: 100%; margin-top: 12px }</style>""")
        for title, png in zip(titles, curves, strict=True):
            sheet.evaluate(
                """([title, png]) => { const f = document.createElement("figure"), i = new Image();
                i.src = "data:image/png;base64," + png; f.append(title, i); document.body.append(f); return i.decode(); }""",
                [title, base64.b64encode(png).decode()],
            )
        sheet.locator("body").screenshot(path=args.out / "curves.png")
        chromium.close()
    for name in ("page", "patch_interleave", "tokens", "curves"):
        picture = args.out / f"{name}.png"
        print(f"{picture}  {picture.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()
