"""The page in a real browser: Debian's chromium, driven by Playwright, from file://.

Every expected value is computed here with numpy from the data that went into the page, never read back
from the page. Needs `chromium` (CHROMIUM=path if it is elsewhere) and axe-core's axe.min.js (AXE_PATH, or
tests/node_modules/axe-core/axe.min.js after `npm install --prefix tests axe-core`).
"""

import base64
import contextlib
import io
import json
import os
import re
from pathlib import Path

import numpy as np
import page_data
import pytest
import vit
from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = ROOT / "viewer.html"
AXE = Path(os.environ.get("AXE_PATH", Path(__file__).parent / "node_modules/axe-core/axe.min.js"))
NASTY = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>\"'`&amp;<!--<script>\u2028${1}\\u003c"
WIDE = {"width": 1280, "height": 900}
PHONE = {"width": 360, "height": 740}


pytestmark = pytest.mark.slow               # a real browser


# region fixtures
@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def load(browser, tmp_path):
    """load(data or path, **context options) -> a ready page. Fails afterwards on any console message or request."""
    contexts, noise = [], []

    def opened(data, ready=True, script=None, **options):
        path = data
        if not isinstance(data, Path):
            path = tmp_path / f"page{len(contexts)}.html"
            path.write_text(page_data.fill(TEMPLATE.read_text("utf-8"), data), "utf-8")
        context = browser.new_context(**{"viewport": WIDE} | options)
        contexts.append(context)
        context.set_default_timeout(60_000)
        if script:
            context.add_init_script(script)
        page = context.new_page()
        page.on("console", lambda message: noise.append(f"console {message.type}: {message.text}"))
        page.on("pageerror", lambda error: noise.append(f"error: {error}"))
        page.on("request", lambda request: noise.append(f"request: {request.url}") if request.url != path.as_uri() else None)
        page.noise = noise
        page.goto(path.as_uri())
        if ready:
            page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert noise == []


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """The pages of two real runs, clean and broken with its clean sibling: {"clean": path, "patch_interleave": path}."""
    out, here, pages = tmp_path_factory.mktemp("runs"), Path.cwd(), {}
    os.chdir(out)                                              # default folders: there the broken run finds its sibling
    try:
        for mode in ("clean", "patch_interleave"):
            with contextlib.redirect_stdout(io.StringIO()):
                assert vit.main(["--smoke", *([] if mode == "clean" else ["--break", mode])]) == 0
            (pages[mode],) = (p for p in out.rglob("viewer.html") if p not in pages.values())
    finally:
        os.chdir(here)
    return pages


def slot(path):
    """The JSON in a filled page, read with Python."""
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', path.read_text("utf-8"), re.S)[1])


def decode(png):
    """base64 PNG -> uint8 (H, W, 4)."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(png))).convert("RGBA"))


def picture(frame):
    """uint8 (H, W, 3) of a frame in the data."""
    return decode(frame["png"])[..., :3]


def touched(frame, thing, hw, patch=8):
    """bool (N,): does the object touch the patch, from the mask in the data?"""
    mask = np.unpackbits(np.frombuffer(base64.b64decode(frame["masks"][thing]), np.uint8))[: hw * hw]
    return mask.reshape(hw // patch, patch, hw // patch, patch).any(axis=(1, 3)).ravel()


def canvas(page, selector):
    """uint8 (H, W, 4): what a canvas of the page holds."""
    return decode(page.locator(selector).first.evaluate("c => c.toDataURL()").split(",")[1])


def text(page, selector):
    return page.eval_on_selector(selector, "e => e.textContent").replace("\N{NO-BREAK SPACE}%", " %")


def cell(page, t, where="#map-trained"):
    return page.locator(f"{where} [role=gridcell]").nth(t)


def hover(page, t, where="#map-trained"):
    """Move the mouse onto the middle of patch t."""
    cell(page, t, where).scroll_into_view_if_needed()
    box = cell(page, t, where).bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def values(page):
    """The two read-out values: [trained, never trained]."""
    shown = page.eval_on_selector_all("#readout dd", "all => all.map(e => e.textContent)")
    assert all(value.endswith(" × uniform") for value in shown)
    return [float(value.split()[0]) for value in shown]


def axe(page, where="html", only=None):
    """Violations that axe-core finds, as lines. Where axe-core is missing the test is skipped; with CI set it fails."""
    missing = f"axe-core is not at {AXE}: npm install --prefix tests axe-core@4, or set AXE_PATH"
    if not AXE.is_file() and not os.environ.get("CI"):
        pytest.skip(missing)
    assert AXE.is_file(), missing
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text("utf-8"))
    options = {"runOnly": {"type": "rule", "values": [only]}} if only else {"rules": {"target-size": {"enabled": True}}}
    options["resultTypes"] = ["violations"]  # all rules run; of the passes one node each is told, not thousands
    run = "([where, options]) => axe.run(where, options).then(found => ({violations: found.violations, passes: found.passes.length}))"
    found = page.evaluate(run, [where, options])
    assert found["passes"], "axe-core checked nothing"
    return [f"{v['id']}: {node['html'][:160]} {node['failureSummary']}" for v in found["violations"] for node in v["nodes"]]


# endregion


# region opening: one file, no network, nothing to report
@pytest.mark.parametrize("mode", ["clean", "patch_interleave"])
def test_real_run_opens_silently(load, runs, mode):
    page = load(runs[mode])
    data = slot(runs[mode])
    assert text(page, "#sentence") == data["sentence"] and len(data["sentence"]) > 20
    assert page.locator("#strip button").count() == len(data["frames"]) > 0
    assert page.locator("#which-run").is_visible() == (mode != "clean")
    assert runs[mode].stat().st_size < 1_000_000


def test_page_of_24_frames_with_sibling_is_below_one_megabyte():
    data = page_data.page_data("patch_interleave", frames=24, sibling=True)
    assert len(page_data.fill(TEMPLATE.read_text("utf-8"), data).encode()) < 1_000_000


def test_policy_forbids_the_network(load):
    page = load(page_data.page_data(frames=4))
    blocked = page.evaluate("""async () => {
        const seen = [];
        document.addEventListener("securitypolicyviolation", e => seen.push(e.effectiveDirective));
        await fetch("https://example.org/").catch(() => {});
        await new Promise(done => { const i = new Image(); i.onerror = i.onload = done; i.src = "https://example.org/x.png"; });
        return seen;
    }""")
    assert sorted(blocked) == ["connect-src", "img-src"]
    assert len(page.noise) >= 2
    page.noise.clear()  # the browser's complaints about these two were the point


def test_template_is_one_plain_file():
    source = TEMPLATE.read_text("utf-8")
    assert source.count('<script id="data" type="application/json">null</script>') == 1
    for way_around_text_content in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert way_around_text_content not in source
    addresses = set(re.findall(r"https?://[^\s\"']+", source))
    assert addresses == {"http://www.w3.org/2000/svg"}  # the name of SVG, not an address that is asked


def test_empty_template_says_so(load):
    page = load(TEMPLATE, ready=False)
    page.wait_for_selector("#empty")
    assert "empty template" in text(page, "#empty") and "python vit.py" in text(page, "#empty")
    assert not page.locator("#page").is_visible()
    assert axe(page) == []


def test_hostile_strings_do_no_harm(load):
    data = page_data.page_data("patch_interleave", frames=4, sibling=True)
    for part in (data, data["sibling"]):
        part.update(title=NASTY, sentence=NASTY, lesson=NASTY, names=[NASTY] * 4)
        part["metrics"].update({"break_mode": NASTY, "device": NASTY, NASTY: NASTY})
    page = load(data, viewport=PHONE)
    assert page.evaluate("[window.hacked, document.scripts.length, document.images.length]") == [None, 2, 0]
    for where in ("#run b", "#sentence", "#lesson"):
        assert text(page, where) == NASTY
    assert NASTY in text(page, "#where") and NASTY in text(page, "#settings")
    page.click("#walk-open")
    for step in range(5):
        page.click("#walk-next")
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


# endregion


# region maps: the value under the pointer, the finger, the keys
@pytest.mark.parametrize("hw", [64, 96])
def test_frame_on_the_page_is_the_frame_in_the_data(load, hw):
    data = page_data.page_data(hw=hw, frames=5)
    page = load(data)
    for i, frame in enumerate(data["frames"]):
        page.locator("#strip button").nth(i).click()
        for model in ("trained", "random"):
            got = canvas(page, f"#map-{model} canvas")
            assert (got[..., :3] == picture(frame)).all() and (got[..., 3] == 255).all()


def test_frame_of_a_real_run(load, runs):
    page = load(runs["clean"])
    for i, frame in enumerate(slot(runs["clean"])["frames"][:3]):
        page.locator("#strip button").nth(i).click()
        assert (canvas(page, "#map-trained canvas")[..., :3] == picture(frame)).all()


def check_hover(page, data, hw, patches):
    for i in range(min(3, len(data["frames"]))):
        page.locator("#strip button").nth(i).click()
        frame = data["frames"][i]
        for kind in ("rollout", "occlusion"):
            page.locator(f"label:has(input[value={kind}])").click()
            for j, t in enumerate(patches):
                hover(page, t, ("#map-trained", "#map-random")[j % 2])
                expected = [frame["maps"][f"{kind}_{model}"][t] for model in ("trained", "random")]
                assert values(page) == pytest.approx(expected, abs=0.0051)
                assert text(page, "#readout .big") == f"Row {t // (hw // 8)}, column {t % (hw // 8)}"
                assert text(page, "#readout .touch").startswith("Touches the block") == touched(frame, "block", hw)[t]
                for thing in ("target", "pusher"):
                    assert (thing in text(page, "#readout .touch")) == touched(frame, thing, hw)[t]
                r, c = divmod(t, hw // 8)
                assert (canvas(page, "#readout canvas")[..., :3] == picture(frame)[8 * r : 8 * r + 8, 8 * c : 8 * c + 8]).all()


def test_hover_shows_the_value_in_the_data(load):
    data = page_data.page_data(hw=96, frames=3, seed=3)
    block = int(np.argmax(touched(data["frames"][0], "block", 96)))
    check_hover(load(data), data, 96, [0, block, 143, 77])


def test_hover_in_a_real_run(load, runs):
    data = slot(runs["clean"])
    block = int(np.argmax(touched(data["frames"][0], "block", 64)))
    check_hover(load(runs["clean"]), data, 64, [block, 9, 63])


def test_touch(load):
    data = page_data.page_data(frames=3)
    page = load(data, viewport=PHONE, has_touch=True, is_mobile=True)
    for t in (10, 53):
        box = cell(page, t, "#map-random").bounding_box()
        page.evaluate("y => scrollTo(0, y - 300)", box["y"] + page.evaluate("scrollY"))
        box = cell(page, t, "#map-random").bounding_box()
        page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        expected = [data["frames"][0]["maps"][f"rollout_{model}"][t] for model in ("trained", "random")]
        assert values(page) == pytest.approx(expected, abs=0.0051)
        assert text(page, "#readout .big") == f"Row {t // 8}, column {t % 8}"


def test_arrow_keys_move_between_patches_and_n_p_between_frames(load):
    data = page_data.page_data(frames=3)
    page = load(data)
    assert page.locator("#map-trained [tabindex='0']").count() == 1  # one stop in the tab order, not 64
    cell(page, 0).focus()
    t = 0
    for key, step in [("ArrowRight", 1), ("ArrowDown", 8), ("ArrowRight", 1), ("ArrowUp", -8), ("ArrowLeft", -1), ("End", 6), ("ArrowRight", 0), ("Home", -7), ("ArrowUp", 0)]:
        page.keyboard.press(key)
        t += step
        assert page.evaluate("document.activeElement.dataset.t") == str(t), key
        assert text(page, "#readout .big") == f"Row {t // 8}, column {t % 8}"
        assert values(page) == pytest.approx([data["frames"][0]["maps"][f"rollout_{m}"][t] for m in ("trained", "random")], abs=0.0051)
    for key, frame in [("n", 1), ("n", 2), ("n", 0), ("p", 2)]:
        page.keyboard.press(key)
        assert text(page, "#where").startswith(f"Frame {frame + 1} of 3")
        assert (canvas(page, "#map-random canvas")[..., :3] == picture(data["frames"][frame])).all()
        assert page.evaluate("document.activeElement.dataset.t") == str(t)  # the patch stays where the learner is
        assert values(page)[0] == pytest.approx(data["frames"][frame]["maps"]["rollout_trained"][t], abs=0.0051)


def test_new_frame_starts_at_the_peak_of_the_trained_map(load):
    data = page_data.page_data(frames=4)
    page = load(data)
    for frame in data["frames"]:
        peak = int(np.argmax(frame["maps"]["rollout_trained"]))
        assert text(page, "#readout .big") == f"Row {peak // 8}, column {peak % 8}"
        page.click("#next")


def test_one_colour_scale_for_both_models_all_frames_and_the_sibling(load):
    data = page_data.page_data("patch_interleave", frames=4, sibling=True)
    for frame in data["sibling"]["frames"]:
        frame["maps"]["occlusion_random"][5] = 33.0  # the largest of all, and not on screen
    page = load(data)
    for kind in ("rollout", "occlusion"):
        page.locator(f"label:has(input[value={kind}])").click()
        peaks = [sorted(max(f["maps"][f"{kind}_{m}"]) for f in run["frames"]) for run in (data, data["sibling"]) for m in ("trained", "random")]
        top = max(p[int(0.9 * (len(p) - 1))] for p in peaks)  # the scale's end: save the highest tenth
        over = "≥ " if max(p[-1] for p in peaks) > top else ""
        assert text(page, "#legend .ticks .last") == f"{over}{top:.1f} ×" and (kind == "rollout" or top == 33)
        assert text(page, "#legend .ticks .first") == "0" and "× uniform" in text(page, "#legend")
        for model in ("trained", "random"):
            shares = np.array(data["frames"][0]["maps"][f"{kind}_{model}"]) / top
            expected = page.evaluate("shares => shares.map(s => ramp(s))", shares.tolist())
            assert canvas(page, f"#map-{model} canvas:nth-of-type(2)")[..., :3].reshape(-1, 3).tolist() == expected
    hover(page, 20)
    left = [float(page.eval_on_selector(f"#legend .pointer{s}", "e => parseFloat(e.style.left)")) for s in (".trained", ":not(.trained)")]
    assert left == pytest.approx([100 * data["frames"][0]["maps"][f"occlusion_{m}"][20] / top for m in ("trained", "random")], abs=0.01)


def lightness(rgb):
    """sRGB 0..255 -> CIE L*a*b* (D65), the usual formulas (IEC 61966-2-1, CIE 15)."""
    c = np.asarray(rgb) / 255
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    xyz = linear @ np.array([[0.4124, 0.2126, 0.0193], [0.3576, 0.7152, 0.1192], [0.1805, 0.0722, 0.9505]]) / [0.9505, 1, 1.089]
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1)


def test_ramp_is_perceptually_even_and_readable_without_colour_vision(load):
    page = load(page_data.page_data(frames=1))
    rgb = np.array(page.evaluate("Array.from({length: 33}, (_, i) => ramp(i / 32))"))
    steps = np.diff(lightness(rgb)[:, 0])
    assert steps.min() > 1 and steps.max() < 2 * steps.mean()  # lightness rises all the way, in even steps
    # Dichromats (Machado, Oliveira, Fernandes 2009, severity 1, on linear light): the order of lightness stays.
    for matrix in (
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],  # protan
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],  # deutan
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],  # tritan
    ):
        c = rgb / 255
        linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
        seen = np.clip(linear @ np.array(matrix).T, 0, 1)
        srgb = 255 * np.where(seen <= 0.0031308, 12.92 * seen, 1.055 * seen ** (1 / 2.4) - 0.055)
        assert np.diff(lightness(srgb)[:, 0]).min() > 0.5


def test_opacity_and_outlines(load):
    data = page_data.page_data(frames=2)
    page = load(data)
    page.locator("#opacity").fill("25")
    assert page.eval_on_selector_all("#map-trained canvas:nth-of-type(2), #map-random canvas:nth-of-type(2)", "all => all.map(c => c.style.opacity)") == ["0.25", "0.25"]
    assert page.eval_on_selector_all("#map-trained path[data-thing]", "all => all.map(p => p.dataset.thing)") == ["block", "target", "pusher"]
    dashes = page.eval_on_selector_all("#map-trained path[data-thing]", "all => all.map(p => p.getAttribute('stroke-dasharray'))")
    assert len(set(dashes)) == 3  # told apart without colour
    assert page.eval_on_selector_all("#map-trained text", "all => all.map(t => t.textContent)") == ["block", "target", "pusher"]
    # The outline encloses the mask and nothing else: fill it and compare with the mask, pixel for pixel.
    for thing in ("block", "target", "pusher"):
        inside = page.eval_on_selector(
            f"#map-trained path[data-thing={thing}]",
            """path => { const shape = new Path2D(path.getAttribute("d")), c = new OffscreenCanvas(64, 64).getContext("2d");
                return Array.from({length: 4096}, (_, i) => c.isPointInPath(shape, i % 64 + 0.5, Math.floor(i / 64) + 0.5)); }""",
        )
        mask = np.unpackbits(np.frombuffer(base64.b64decode(data["frames"][0]["masks"][thing]), np.uint8)).astype(bool)
        assert np.array_equal(inside, mask) and mask.any()
    page.locator("#outlines").uncheck()
    assert page.locator("#map-trained path, #map-random path").count() == 0


def test_text_alternatives_say_what_the_maps_show(load):
    data = page_data.page_data(frames=2)
    data["frames"][1]["maps"]["rollout_random"] = [0.0] * 64
    page = load(data)
    for model in ("trained", "random"):
        values_ = np.array(data["frames"][0]["maps"][f"rollout_{model}"])
        t = int(values_.argmax())
        label = page.get_attribute(f"#map-{model} [role=grid]", "aria-label")
        assert f"row {t // 8}, column {t % 8}" in label and re.search(rf"peak {values_[t]:.{1 if values_[t] < 10 else 0}f} ×", label)
        assert ("on the block" in label) == touched(data["frames"][0], "block", 64)[t]
        labels = page.eval_on_selector_all(f"#map-{model} [role=gridcell]", "all => all.map(c => c.getAttribute('aria-label'))")
        assert all(f"{v:.2f} times uniform" in words for v, words in zip(values_, labels, strict=True))
    page.keyboard.press("n")
    assert text(page, "#peak-random") == "zero everywhere"


# endregion


# region reading: schemes, widths, motion, focus, axe-core
@pytest.mark.parametrize("mode,scheme", [("clean", "light"), ("patch_interleave", "dark"), ("shuffle_pos", "light"), ("no_pos", "dark")])
def test_axe_finds_no_violation(load, mode, scheme):
    data = page_data.page_data(mode, frames=4, sibling=mode == "patch_interleave", pinned=mode == "no_pos")
    page = load(data, color_scheme=scheme, viewport=PHONE if mode == "shuffle_pos" else WIDE)
    assert axe(page) == []
    page.emulate_media(color_scheme="dark" if scheme == "light" else "light")
    assert axe(page, only="color-contrast") == []
    page.click("#walk-open")
    for step in range(1, 6):
        assert axe(page, "#walk") == [], f"step {step}"
        page.click("#walk-next")


def test_both_schemes(load):
    page = load(page_data.page_data(frames=1))
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        paper, ink = (page.evaluate(f"getComputedStyle(document.body).{what}.match(/\\d+/g).slice(0, 3).map(Number)") for what in ("backgroundColor", "color"))
        assert (np.mean(paper) > 200 and np.mean(ink) < 60) if scheme == "light" else (np.mean(paper) < 60 and np.mean(ink) > 200)


@pytest.mark.parametrize("width", [360, 768, 1280])
@pytest.mark.parametrize("mode,hw", [("patch_interleave", 64), ("shuffle_pos", 96)])
def test_no_sideways_scrolling(load, width, mode, hw):
    page = load(page_data.page_data(mode, hw=hw, frames=24, sibling=True), viewport={"width": width, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for model in ("trained", "random"):
        box = page.locator(f"#map-{model}").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width and box["width"] == pytest.approx(box["height"], abs=1)
    for drawn in page.locator("#sees .picture").all():
        assert drawn.bounding_box()["width"] >= (300 if width == 360 else 160)
    page.click("#walk-open")
    for _ in range(5):
        assert page.evaluate("[document.documentElement.scrollWidth, document.querySelector('dialog').scrollWidth - document.querySelector('dialog').clientWidth]") <= [width, 0]
        page.click("#walk-next")


def test_the_frame_shown_stays_in_sight_on_a_phone(load):
    page = load(page_data.page_data(frames=24), viewport=PHONE)
    for button, presses in (("#next", 13), ("#previous", 14)):  # to the middle, and round the start to the last
        for _ in range(presses):
            page.click(button)
        box = page.locator("#strip [aria-current=true]").bounding_box()
        assert 0 <= box["x"] and box["x"] + box["width"] <= 360, button
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_labels_on_the_curve_stand_clear_of_it(load):
    page = load(page_data.page_data(frames=1))
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        halo = page.eval_on_selector_all("#curve text.ink", "all => all.map(e => [getComputedStyle(e).paintOrder, getComputedStyle(e).stroke])")
        assert len(halo) == 2 and all(each == ["stroke", paper] for each in halo)


def test_cuts_are_seen_in_both_schemes(load):
    page = load(page_data.page_data("patch_interleave", frames=1))
    for scheme in ("light", "dark"):  # the frame is dimmed towards the paper, so the cuts have the ink's colour
        page.emulate_media(color_scheme=scheme)
        assert page.eval_on_selector("#sees .cuts", "e => getComputedStyle(e).stroke === getComputedStyle(document.body).color")


def test_footer_keeps_its_room_on_a_phone(load):
    page = load(page_data.page_data(frames=1), viewport=PHONE)
    gap = page.evaluate("document.querySelector('footer p').getBoundingClientRect().top - document.querySelector('#settings').getBoundingClientRect().bottom")
    assert gap >= 40


def test_reduced_motion_moves_nothing(load):
    moving = "[...document.querySelectorAll('*')].filter(e => { const s = getComputedStyle(e); return parseFloat(s.transitionDuration) > 0 || s.animationName !== 'none' }).length"
    data = page_data.page_data(frames=2)
    assert load(data, reduced_motion="reduce").evaluate(moving) == 0
    assert load(data, reduced_motion="no-preference").evaluate(moving) > 0  # so the check above can fail


def test_everything_is_reached_by_keyboard_and_focus_is_visible(load):
    page = load(page_data.page_data("patch_interleave", frames=3, sibling=True))
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        at = page.evaluate("""() => {
            const e = document.activeElement, s = getComputedStyle(e.matches("input[type=radio]") ? e.closest("label") : e);
            return e === document.body ? null : [e.id || e.name || e.getAttribute("aria-label"), s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2];
        }""")
        if at is None or at[0] in seen:
            break
        assert at[1], f"{at[0]} has the focus and does not show it"
        seen.append(at[0])
    assert {"walk-open", "run", "kind", "opacity", "outlines", "previous", "next"} <= set(seen)
    assert len([name for name in seen if name.startswith("row ")]) == 2 and len([name for name in seen if name.startswith("token ")]) >= 1


# endregion


# region tokens: what the model sees, and words that are true at every size
def words(page):
    return text(page, "#sees-words")


def tokens(page, nth=0):
    """uint8 (N, 8, 8, 3): the little pictures as drawn, without the gaps between them."""
    drawn = page.locator("#sees .picture:has([role=grid]) canvas").nth(nth)
    image = decode(drawn.evaluate("c => c.toDataURL()").split(",")[1])
    g = (len(image) + 1) // 9
    return np.stack([image[9 * r : 9 * r + 8, 9 * c : 9 * c + 8, :3] for r in range(g) for c in range(g)])


def cut_by(order, frame):
    return picture(frame).ravel()[order].reshape(len(order), 8, 8, 3)


@pytest.mark.parametrize("hw,phrase", [(32, "exactly 2 rows of the picture"), (64, "exactly one row of the picture"), (96, "two thirds of a row"), (128, "half of a row"), (80, "four fifths of a row")])
def test_interleaved_tokens_are_drawn_and_described_as_they_are(load, hw, phrase):
    data = page_data.page_data("patch_interleave", hw=hw, frames=2)
    page = load(data)
    assert "These are not patches." in words(page) and phrase in words(page)
    order = page_data.order_of(hw, 8, broken=True)
    rows = order // 3 // hw
    wraps = int((rows[:, 0] != rows[:, -1]).sum()) if hw >= 64 else 0
    assert (f"{wraps} of the {len(order)} wrap" in words(page)) if wraps else ("wrap" not in words(page))
    assert text(page, "#sees h3") == "The right patchify"
    assert (tokens(page, 0) == cut_by(page_data.order_of(hw, 8), data["frames"][0])).all()
    assert (tokens(page, 1) == cut_by(order, data["frames"][0])).all()
    hover(page, 3, "#sees .cut:nth-child(2) .picture:has([role=grid])")
    first, last = rows[3, 0], rows[3, -1]
    if hw == 64:
        hover(page, 3)
        assert "But token 3 of this run is all of row 3." in text(page, "#readout")
    said = text(page, "#sees .cut:nth-child(2) .token")
    assert "Token 3:" in said and f"row {first}" in said.replace("rows", "row") and str(last) in said
    lit = canvas(page, "#sees .cut:nth-child(2) canvas")[..., 3].ravel() == 255
    assert set(np.flatnonzero(lit)) == set((order[3] // 3).tolist())


def test_clean_tokens(load, runs):
    data = page_data.page_data(frames=2)
    page = load(data)
    assert "one square of 8 × 8 pixels" in words(page) and "not patches" not in words(page)
    assert page.locator("#sees .cut").count() == 1
    assert (tokens(page) == cut_by(page_data.order_of(64, 8), data["frames"][0])).all()
    real = slot(runs["patch_interleave"])
    page = load(runs["patch_interleave"])
    order = np.frombuffer(base64.b64decode(real["order"]), "<u2").reshape(64, 192)
    assert (tokens(page, 1) == cut_by(order, real["frames"][0])).all()
    assert "exactly one row" in words(page)


@pytest.mark.parametrize("change,phrase", [
    ("transposed", "stand in another place of the sequence"),
    ("channels first", "inside a token the values stand in another order"),
    ("repeated", "never reach the model"),
    ("shuffled pixels", "mixes pixels from"),
    (None, "cannot be drawn"),
])  # fmt: skip
def test_words_for_a_patchify_of_the_learners_own(load, change, phrase):
    right = page_data.order_of(64, 8)
    order = {
        "transposed": right.reshape(8, 8, 192).transpose(1, 0, 2).reshape(64, 192),
        "channels first": right.reshape(64, 64, 3).transpose(0, 2, 1).reshape(64, 192),
        "repeated": np.repeat(right[:1], 64, axis=0),
        "shuffled pixels": np.random.default_rng(0).permutation(right.ravel()).reshape(64, 192),
        None: None,
    }[change]
    encoded = None if order is None else page_data.b64(order.astype("<u2").tobytes())
    data = page_data.page_data(frames=2, mode="patchify", order=encoded)
    page = load(data)
    assert phrase in words(page)
    if order is not None:
        assert (tokens(page, 1) == cut_by(order, data["frames"][0])).all()
    if change == "transposed":
        assert "56 of the 64" in words(page)
    if change == "repeated":
        assert f"{64 * 64 * 3 - 192} of the 12288" in words(page)


def test_shuffled_tags_are_on_the_tokens(load):
    data = page_data.page_data("shuffle_pos", frames=2)
    page = load(data)
    shown = page.eval_on_selector_all("#sees .tag", "all => all.map(t => +t.textContent)")
    assert shown == data["tags"]
    fixed = sum(t == tag for t, tag in enumerate(data["tags"]))
    assert f"{fixed or 'none'} of the 64" in words(page)
    assert (tokens(page) == cut_by(page_data.order_of(64, 8), data["frames"][0])).all()
    for t in (0, 37):
        hover(page, t, "#sees .picture:has([role=grid])")
        to = data["tags"][t]
        assert f"wears tag {to}" in text(page, "#sees .token") and f"row {to // 8}, column {to % 8}" in text(page, "#sees .token")
        ends = page.eval_on_selector("#sees .picture:has([role=grid]) > svg line", "l => ['x1', 'y1', 'x2', 'y2'].map(k => +l.getAttribute(k))")
        assert ends == [9 * (t % 8) + 4, 9 * (t // 8) + 4, 9 * (to % 8) + 4, 9 * (to // 8) + 4]
    told = canvas(page, "#sees figure:nth-of-type(3) canvas")
    r, c = divmod(data["tags"][5], 8)
    assert (told[9 * r : 9 * r + 8, 9 * c : 9 * c + 8, :3] == cut_by(page_data.order_of(64, 8), data["frames"][0])[5]).all()


def test_no_tags(load):
    page = load(page_data.page_data("no_pos", frames=2))
    assert "No token wears a position tag" in words(page) and page.locator("#sees .tag").count() == 0


def test_without_masks(load):
    page = load(page_data.page_data(frames=2, masks=False))
    assert page.locator("#map-trained path").count() == 0 and "no object masks" in text(page, "#key")
    assert "Touches" not in text(page, "#readout .touch")
    assert page.locator("#no-looks").is_visible() and not page.locator("#looks").is_visible()


# endregion


# region numbers: intervals, curve, pinned, the clean sibling one click away
def test_numbers_are_the_metrics(load, runs):
    page, m = load(runs["clean"]), slot(runs["clean"])["metrics"]
    assert m == json.loads((runs["clean"].parent / "metrics.json").read_text("utf-8"))
    rows = page.eval_on_selector_all("#probes tbody tr", "all => all.map(r => [...r.children].map(c => c.textContent))")
    for row, key in zip(rows, ["probe_trained", "probe_random", "probe_pixels", "probe_cnn", "majority", "chance", "probe_gap"], strict=True):
        assert float(row[1].replace("−", "-")) == pytest.approx(m[key], abs=0.0051)
        if key + "_ci" in m:
            assert [float(v.replace("−", "-")) for v in row[2].split(" to ")] == pytest.approx(m[key + "_ci"], abs=0.0051)
        else:
            assert row[2] == ""
    looks = page.eval_on_selector_all("#looks tbody tr", "all => all.map(r => [...r.children].map(c => c.textContent))")
    assert [row[0] for row in looks] == [f"{k} on {t}" for k in ("occlusion", "rollout") for t in ("block", "target", "pusher")]
    for row in looks:
        kind, thing = row[0].split(" on ")
        shown = [float(v.split()[0].replace("−", "-")) for v in row[1:5]]
        expected = [100 * m[f"{kind}_{thing}_hit_{who}"] for who in ("trained", "random")] + [m[f"{kind}_{thing}_mass_{who}"] for who in ("trained", "random")]
        assert shown == pytest.approx(expected, abs=0.51)
    settings = dict(page.eval_on_selector_all("#settings div", "all => all.map(d => [d.children[0].textContent, d.children[1].textContent])"))
    for flag in ("seed", "epochs", "warmup", "dim", "depth", "heads", "episodes"):
        assert settings[flag] == str(m[flag])
    assert {"frames", "patchify"} <= settings.keys()           # whose frames, whose patchify: a checksum, or – for our own


@pytest.mark.parametrize("pinned", [False, True])
def test_loss_curve_and_pinned_runs(load, pinned):
    data = page_data.page_data(frames=2, pinned=pinned)
    page = load(data)
    d = page.eval_on_selector("#curve .loss", "path => path.getAttribute('d')")
    points = np.array([[float(v) for v in point.split()] for point in re.split("[ML]", d)[1:]])
    assert len(points) == len(data["loss"])
    scale = np.polyfit(data["loss"], points[:, 1], 1)  # the curve is the data, up to the axis
    assert np.polyval(scale, data["loss"]) == pytest.approx(points[:, 1], abs=0.11) and scale[0] < 0
    ln4 = page.eval_on_selector("#curve .guess", "l => +l.getAttribute('y1')")
    assert ln4 == pytest.approx(np.polyval(scale, np.log(4)), abs=0.5)
    warm = page.eval_on_selector_all("#curve .warm", "all => all.map(r => +r.getAttribute('x') + +r.getAttribute('width'))")
    assert warm == ([] if pinned else [pytest.approx(points[14, 0], abs=0.1)])
    assert page.locator("#lesson.pinned").is_visible() == pinned
    assert (text(page, "#lesson") == "Pinned " + data["lesson"]) == pinned
    assert ("never left chance" in text(page, "#headline")) == pinned
    assert text(page, "#curve-words").startswith("Pinned") == pinned


@pytest.mark.parametrize("verdict, kind", [("aligned", "rollout"), ("misaligned", "occlusion"), (None, "rollout")])
def test_opens_on_the_map_that_the_verdict_rests_on(load, verdict, kind):
    data = page_data.page_data("patch_interleave", frames=2)
    data["metrics"]["verdict"] = verdict
    page = load(data)
    assert page.locator(f"input[value={kind}]").is_checked()
    hover(page, 20)
    assert values(page)[0] == pytest.approx(data["frames"][0]["maps"][f"{kind}_trained"][20], abs=0.0051)


def test_clean_sibling_is_one_click_away(load):
    data = page_data.page_data("patch_interleave", frames=3, sibling=True)
    data["sibling"]["metrics"]["probe_trained"] = 0.91
    page = load(data)
    page.locator("label:has(input[value=rollout])").click()
    hover(page, 20)
    assert "The right patchify" in text(page, "#sees")
    page.get_by_text("clean run, same seed").click()
    clean = data["sibling"]
    assert text(page, "#run b") == clean["title"] and text(page, "#sentence") == clean["sentence"]
    assert values(page) == pytest.approx([clean["frames"][0]["maps"][f"rollout_{m}"][20] for m in ("trained", "random")], abs=0.0051)
    assert text(page, "#probes tbody td") == "0.91" and not page.locator("#lesson").is_visible()
    assert "The right patchify" not in text(page, "#sees") and "one square of 8 × 8" in words(page)
    page.locator("label:has(input[value=this])").click()
    assert text(page, "#lesson") == data["lesson"] and values(page)[0] == pytest.approx(data["frames"][0]["maps"]["rollout_trained"][20], abs=0.0051)


@pytest.mark.parametrize("verdict,ci,phrase", [
    ("aligned", [0.1, 0.4], "finds the block"), ("aligned", [-0.1, 0.1], "knows no better"),
    ("misaligned", [0.1, 0.4], "looks past the block"), ("misaligned", [-0.1, 0.1], "gained it nothing"),
    (None, [0.1, 0.4], "Training taught it"), (None, [-0.1, 0.1], "Training gained it nothing"),
])  # fmt: skip
def test_headline_follows_the_measurement(load, verdict, ci, phrase):
    data = page_data.page_data(frames=1)
    data["metrics"].update(verdict=verdict, probe_gap_ci=ci)
    assert phrase in text(load(data), "#headline")


# endregion


# region walk: five steps, by keyboard, skippable, resumed
def test_walk_by_keyboard(load):
    data = page_data.page_data(frames=4)
    page = load(data)
    page.locator("#walk-open").focus()
    page.keyboard.press("Enter")
    titles = []
    for _ in range(5):
        titles.append(text(page, "#walk-title"))
        sentence = text(page, "#walk-text")
        assert len(re.findall(r"[.!?](?:\s|$)", sentence)) == 1 and sentence.endswith(".")  # one sentence
        assert page.locator("#walk-view canvas, #walk-view .bars").count() > 0
        page.keyboard.press("ArrowRight")
    assert [title[0] for title in titles] == ["1", "2", "3", "4", "5"]
    # The logit lens: rows and percentages are the data's.
    bars = page.eval_on_selector_all("#walk-view .bars", "all => all.map(b => [...b.children].map(c => c.textContent.replace('\\u00a0', ' ')))")
    for i, frame in enumerate(data["frames"][:2]):
        assert bars == [[f"{name} {int(np.floor(100 * p + 0.5))} %" for name, p in zip(data["names"], row, strict=True)] for row in frame["lens"]]
        page.keyboard.press("n")
        bars = page.eval_on_selector_all("#walk-view .bars", "all => all.map(b => [...b.children].map(c => c.textContent.replace('\\u00a0', ' ')))")
    assert "the same for every frame" in text(page, "#walk-view")
    page.keyboard.press("ArrowLeft")
    assert text(page, "#walk-title").startswith("4")
    page.keyboard.press("Escape")
    assert not page.locator("#walk").is_visible()


def test_lens_says_blind_only_when_it_is(load):
    data = page_data.page_data(frames=4)
    data["frames"][2]["lens"][0] = [0.30, 0.23, 0.27, 0.20]
    page = load(data)
    page.click("#walk-open")
    page.get_by_label("Step 5").click()
    assert page.locator("#walk-view .bars").count() == 3 and "the same for every frame" not in text(page, "#walk-view")


@pytest.mark.parametrize("storage", [True, False])
def test_walk_is_skipped_and_resumed(load, storage):
    forbid = "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('denied', 'SecurityError'); } });"
    page = load(page_data.page_data(frames=2), script=None if storage else forbid)
    page.click("#walk-open")
    page.click("#walk-next")
    page.click("#walk-next")
    page.click("#walk-close")
    assert not page.locator("#walk").is_visible() and "step 3" in text(page, "#walk-open")
    if storage:
        page.reload()
        page.wait_for_selector("html[data-ready]", state="attached")
    page.click("#walk-open")
    assert text(page, "#walk-title").startswith("3")


def test_walk_tells_of_the_break(load):
    page = load(page_data.page_data("patch_interleave", frames=2, hw=96))
    page.click("#walk-open")
    page.click("#walk-next")
    assert "two thirds of a row" in text(page, "#walk-text")
    page = load(page_data.page_data("shuffle_pos", frames=2))
    page.click("#walk-open")
    page.get_by_label("Step 3").click()
    assert "somebody else's" in text(page, "#walk-text")
    page = load(page_data.page_data("no_pos", frames=2))
    page.click("#walk-open")
    page.get_by_label("Step 3").click()
    assert "no position tags" in text(page, "#walk-text")


# endregion
