"""Run every mode over many seeds, and print the README's tables from what came out.

    python tests/evidence.py --seeds 20            resumes where it stopped; about half a minute to one a run
    python tests/evidence.py --table               only print the tables of tests/evidence.json
    python tests/evidence.py --seeds 8 --scene 160 220 0.42 0.05 [--flags="--lr 2e-3"]
                                                   the same on another scene: tones of the chequer, the camera's
                                                   half-extent and the side of a chequer square in m
    python tests/evidence.py --seeds 8 --frames "outputs/gym-pusht/seed{seed}-64.npz" --store tests/evidence-gym-pusht-64.json
                                                   the same on frames that we did not draw, a file a seed

Each run is a process of its own with one thread, two at a time: one thread because sums in another order give other
last digits, and training amplifies them; the tables are comparable only between runs of the same kind.  A run that
fails is reported and left out; the others go on.  The files of each run stay in outputs/evidence/.
"""

import argparse
import io
import json
import math
import os
import re
import subprocess
import sys
import time
import tokenize
import zlib
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
STORE, RUNS = ROOT / "tests" / "evidence.json", ROOT / "outputs" / "evidence"

MODES = {  # name: the flags that make it, beside --seed
    "clean": [],
    "shuffle_pos": ["--break", "shuffle_pos"],
    "patch_interleave": ["--break", "patch_interleave"],
    "no_pos": ["--break", "no_pos"],
    "warmup 1": ["--warmup", "1"],
}
# Modes that share a process: shuffle_pos changes only the probing, so its model is the clean run's, trained once.
JOBS = [("clean", "shuffle_pos"), ("patch_interleave",), ("warmup 1",), ("no_pos",)]
KEPT = ("num_frames", "probe_trained", "probe_random", "probe_gap", "probe_trained_ci", "probe_gap_ci", "probe_pixels", "probe_cnn",
        "majority", "train_ce", "escape_epoch", "pinned", "alignment", "verdict", "rollout_peak_trained", "rollout_peak_random",
        "rollout_block_hit_trained", "rollout_block_hit_random", "occlusion_block_hit_random", "occlusion_block_mass_trained")


def code():
    """crc32 of vit.py's regions from data to probe, without comments, docstrings and layout."""
    text = (ROOT / "vit.py").read_text("utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(text[text.index("# region data:"):text.index("# region report:")]).readline)
    kept = "".join(t.string.strip() for t in tokens if t.type != tokenize.COMMENT and not t.string.startswith('"""'))
    return f"{zlib.crc32(kept.encode()):08x}"


def made_by():
    """What the numbers hang on: the flags' defaults, the code and the scene.  A test compares it with what they are now."""
    import pusht_env
    import scripted_expert
    import vit

    scene = {name: getattr(pusht_env, name) for name in ("HALF_EXTENT", "SQUARE", "TONE_DARK", "TONE_LIGHT", "MU")}
    speeds = {name: getattr(scripted_expert, name) for name in ("APPROACH_SPEED", "PUSH_SPEED")}
    return {"code": code(), "defaults": {flag: row[3] for flag, row in vit.NUMBERS.items()}, "scene": scene, "speeds": speeds}


def rows_and_columns(maps, block):
    """Does the occlusion map's peak lie in a grid row, in a grid column, of the block?  -> shares, and what blind guessing gets."""
    import numpy as np
    import vit

    grid = block.shape[1] // vit.PATCH
    touch = vit.on_grid(block[maps["sample"]]).reshape(len(maps["sample"]), grid, grid)
    peak = np.divmod(maps["occlusion_trained"].argmax(axis=1), grid)
    lines = {"row": (touch.any(axis=2), peak[0]), "column": (touch.any(axis=1), peak[1])}
    return {f"{name}_{what}": float(value) for name, (line, at) in lines.items()
            for what, value in (("hit", line[np.arange(len(at)), at].mean()), ("blind", line.mean()))}


def probe_now(model, frames, bug):
    """The linear probe of a model that is still in training."""
    import vit

    (T, H), y = vit.split_by_episode(frames.episodes), frames.labels.numpy()
    features = vit.cls_features(model, frames.images, bug)
    return float(vit.linear_probe(features[T], y[T], features[H], y[H]).mean())


def set_scene(dark, light, half_extent, square):
    """Another table and camera, for this process."""
    import pusht_env

    pusht_env.TONE_DARK, pusht_env.TONE_LIGHT, pusht_env.HALF_EXTENT, pusht_env.SQUARE = int(dark), int(light), half_extent, square


def worker(seed, modes, extra, runs):
    """Run vit.py for one seed and a few modes that share one training; print one JSON line a mode."""
    import torch
    import vit

    torch.set_num_threads(1)
    cache, train, measure, trained, seen = vit.cache_frames, vit.train, vit.measure, {}, {}

    def keep_frames(*args):
        trained["frames"] = cache(*args)
        return trained["frames"]

    def train_once(model, *args, **kwargs):
        if "weights" not in trained:
            trained["history"], seen["probe_at"] = [], {}
            for epoch in train(model, *args, **kwargs):
                trained["history"].append(epoch)
                if len(trained["history"]) % 10 == 0 and "frames" in trained:
                    seen["probe_at"][len(trained["history"])] = probe_now(model, trained["frames"], kwargs["interleave_bug"])
            trained["weights"] = model.state_dict()
        model.load_state_dict(trained["weights"])
        yield from trained["history"]

    def look(args, frames, models, history):
        m, maps = measure(args, frames, models, history)
        seen.update(rows_and_columns(maps, frames.masks["block"]))
        return m, maps

    vit.cache_frames, vit.train, vit.measure = keep_frames, train_once, look
    for mode in modes:
        out = runs / mode.replace(" ", "") / f"seed{seed}"
        status = vit.main(["--seed", str(seed), "--out", str(out), "--device", "cpu", *MODES[mode], *(flag.format(seed=seed) for flag in extra)])
        if status:
            sys.exit(status)
        m = json.loads((out / "metrics.json").read_text())
        print("RESULT " + json.dumps([mode, seed, {key: m[key] for key in KEPT} | seen]), flush=True)


def run_all(seeds, at_once, jobs, extra, store):
    """Run what `store` does not hold yet, at_once processes at a time; save after each."""
    data = json.loads(store.read_text()) if store.exists() else {}
    if data.get("made_by") != made_by() or data.get("extra") != extra:
        data = {"made_by": made_by(), "extra": extra, "runs": {mode: {} for mode in MODES}}
    todo = [(seed, job) for job in jobs for seed in range(seeds) if any(str(seed) not in data["runs"][mode] for mode in job)]
    env = os.environ | {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    start, failed = time.time(), []

    def one(seed, job):
        command = [sys.executable, __file__, *sys.argv[1:], "--worker", str(seed), "--modes", *job]
        return subprocess.run(command, env=env, capture_output=True, text=True)

    with ThreadPoolExecutor(at_once) as pool:
        futures = {pool.submit(one, *job): job for job in todo}
        for n, future in enumerate(as_completed(futures), 1):
            (seed, job), done = futures[future], future.result()
            results = [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]
            for mode, s, m in results:
                data["runs"][mode][str(s)] = m
            part = store.with_suffix(".part")
            part.write_text(json.dumps(data, indent=0, sort_keys=True) + "\n")
            os.replace(part, store)
            left = (time.time() - start) / n * (len(todo) - n)
            print(f"{n:>3} of {len(todo)}  {left / 60:5.1f} min left  seed {seed:>2}: " + (", ".join(
                f"{mode} {m['probe_trained']:.2f} (alignment {m['alignment']:.2f}{', pinned' * m['pinned']})" for mode, _, m in results)), flush=True)
            if done.returncode:
                failed.append((seed, job))
                print(f"    failed, status {done.returncode}: {done.stderr.strip().splitlines()[-1:]}", flush=True)
    for seed, job in failed:
        print(f"failed: seed {seed}, {', '.join(job)}; run the same command again to try only these")
    return data, failed


def column(runs, key):
    return [m[key] for _, m in sorted(runs.items(), key=lambda item: int(item[0])) if m[key] is not None]


def cell(values, sign=""):
    return f"{sum(values) / len(values):{sign}.2f} ({min(values):{sign}.2f} to {max(values):{sign}.2f})" if values else "none"


def mode_table(runs):
    """A markdown table of all modes that ran."""
    yield "| mode | trained probe | gap over random-init | alignment | rollout peak on block | occlusion peak in a row / a column of the block | pinned |"
    yield "|---|---|---|---|---|---|---|"
    for mode, found in runs.items():
        if found:
            pinned = [seed for seed, m in sorted(found.items(), key=lambda item: int(item[0])) if m["pinned"]]
            share = lambda key: sum(column(found, key)) / len(found)
            yield (f"| {mode} | {cell(column(found, 'probe_trained'))} | {cell(column(found, 'probe_gap'), '+')} | {cell(column(found, 'alignment'))} "
                   f"| {cell(column(found, 'rollout_block_hit_trained'))} | {share('row_hit'):.2f} / {share('column_hit'):.2f} "
                   f"| {len(pinned)} of {len(found)}{': seed ' + ', '.join(pinned) if pinned else ''} |")


def foreign_table(stores):
    """The README's table of frames that we did not draw: {size: data} -> markdown, for each size the modes and on how many seeds the order holds."""
    for size, data in stores.items():
        clean = data["runs"]["clean"]
        in_order = [s for s, m in clean.items() if m["probe_trained"] > m["probe_random"] > m["majority"] > 0.25]
        yield (f"{size} × {size} pixels, {len(clean)} seeds, mean (minimum to maximum). Random-init {cell(column(clean, 'probe_random'))}, majority "
               f"{cell(column(clean, 'majority'))}, raw pixels {cell(column(clean, 'probe_pixels'))}; trained > random-init > majority > chance on "
               f"{len(in_order)} of {len(clean)} seeds, the gap's own interval excludes 0 on {sum(m['probe_gap_ci'][0] > 0 for m in clean.values())}. "
               f"Rollout of the random-init model peaks on the block in {cell(column(clean, 'rollout_block_hit_random'))} of the frames. Raw pixels beat the trained ViT on "
               f"{sum(m['probe_pixels'] > m['probe_trained'] for m in clean.values())} seeds; the interleaved probe is above the clean run's interval on "
               f"{sum(m['probe_trained'] > clean[s]['probe_trained_ci'][1] for s, m in data['runs']['patch_interleave'].items())}, below it on "
               f"{sum(m['probe_trained'] < clean[s]['probe_trained_ci'][0] for s, m in data['runs']['patch_interleave'].items())}.")
        yield ""
        yield from mode_table(data["runs"])
        yield ""


def tables(data):
    """The README's evidence as markdown: a table of the clean run, one of all modes, and what holds on which seeds."""
    runs = data["runs"]
    clean, n = runs["clean"], len(runs["clean"])
    yield f"Mean (minimum to maximum) over {n} seeds, {' '.join(data['extra']) or 'default flags'}, one thread a run."
    yield ""
    yield "| number, clean run | over seeds |"
    yield "|---|---|"
    for label, key, sign in (
            ("trained ViT, linear probe", "probe_trained", ""), ("random-init ViT, linear probe", "probe_random", ""),
            ("gap: trained − random-init", "probe_gap", "+"), ("raw pixels, linear probe", "probe_pixels", ""),
            ("frozen random CNN, linear probe", "probe_cnn", ""), ("majority", "majority", ""),
            ("alignment: occlusion peak on the block", "alignment", ""), ("same, random-init", "occlusion_block_hit_random", ""),
            ("occlusion mass on the block, × uniform", "occlusion_block_mass_trained", ""),
            ("rollout peak on the block, trained", "rollout_block_hit_trained", ""), ("same, random-init", "rollout_block_hit_random", ""),
            ("rollout peak, × uniform, trained", "rollout_peak_trained", ""), ("same, random-init", "rollout_peak_random", ""),
            ("cross-entropy, last epoch", "train_ce", ""), ("epoch of escape from ln 4", "escape_epoch", ""), ("frames", "num_frames", "")):
        yield f"| {label} | {cell(column(clean, key), sign)} |"
    yield ""
    yield from mode_table(runs)
    yield ""
    share = lambda key: sum(column(clean, key)) / n
    yield f"A blind guess would be in a row of the block in {share('row_blind'):.2f} and in a column in {share('column_blind'):.2f} of the frames."
    yield ""
    out_of_order = [s for s, m in clean.items() if not m["probe_trained"] > m["probe_random"] > m["majority"] > 0.25]
    unsure = [s for s, m in clean.items() if m["probe_gap_ci"][0] <= 0]
    yield f"- trained > random-init > majority > chance: on {n - len(out_of_order)} of {n} seeds{said(out_of_order)}; the gap's own 95 % interval excludes 0 on {n - len(unsure)}{said(unsure)}."
    at = [m["probe_at"] for m in clean.values() if m.get("probe_at")]
    if at:
        steps = {epoch: sum(m[epoch] for m in at) / len(at) for epoch in at[0]}
        yield (f"- Mean trained probe after {', '.join(steps)} epochs: {', '.join(f'{p:.3f}' for p in steps.values())}; "
               f"seeds with cross-entropy still above 1 by then: {', '.join(str(sum(m['escape_epoch'] is None or m['escape_epoch'] > int(e) for m in clean.values())) for e in steps)}.")
    better = {key: sum(m[key] >= m["probe_trained"] for m in clean.values()) for key in ("probe_pixels", "probe_cnn")}
    yield f"- Raw pixels do as well as the trained ViT, or better, on {better['probe_pixels']} of {n} seeds, the frozen random CNN on {better['probe_cnn']}."
    for mode, found in (item for item in runs.items() if item[0] in ("shuffle_pos", "no_pos") and item[1]):
        unsure = [s for s, m in found.items() if m["probe_gap_ci"][0] <= 0]
        change = [m["probe_random"] - clean[s]["probe_random"] for s, m in found.items()]
        yield (f"- `{mode}`: the gap's own 95 % interval includes 0 on {len(unsure)} of {len(found)} seeds; "
               f"the random-init probe changes by {cell(change, '+')}.")
    broken = runs["patch_interleave"]
    if broken:
        inside = [s for s, m in broken.items() if clean[s]["probe_trained_ci"][0] <= m["probe_trained"] <= clean[s]["probe_trained_ci"][1]]
        change = [m["probe_trained"] - clean[s]["probe_trained"] for s, m in broken.items()]
        yield (f"- `patch_interleave`: the probe stays inside the clean run's 95 % interval on {len(inside)} of {len(broken)} seeds, mean change "
               f"{sum(change) / len(change):+.3f}, upwards on {sum(c > 0 for c in change)}; cross-entropy falls below 1 in epoch "
               f"{cell(column(broken, 'escape_epoch'))}, clean in epoch {cell(column(clean, 'escape_epoch'))}; the lowest clean alignment is {min(column(clean, 'alignment')):.2f}, "
               f"the highest interleaved one {max(column(broken, 'alignment')):.2f}.")
    late = runs["warmup 1"]
    if late:
        epoch = lambda m: m["escape_epoch"] or math.inf
        later = [s for s, m in late.items() if epoch(m) > epoch(clean[s])]
        yield (f"- `--warmup 1`: cross-entropy falls below 1 in epoch {cell(column(late, 'escape_epoch'))} of the runs in which it does, "
               f"with the default warm-up in epoch {cell(column(clean, 'escape_epoch'))}; later than that, or never, on {len(later)} of {len(late)} seeds.")


def said(seeds):
    return f" (not on {', '.join(sorted(seeds, key=int))})" if seeds else ""


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--seeds", type=int, default=20, help="seeds 0 to N - 1")
    p.add_argument("--at-once", type=int, default=2, help="processes at a time, one thread each")
    p.add_argument("--table", action="store_true", help="run nothing, print the tables")
    p.add_argument("--smoke", action="store_true", help="tiny runs, into another file; to try this script")
    p.add_argument("--scene", nargs=4, type=float, metavar=("DARK", "LIGHT", "HALF", "SQUARE"), help="another scene, into another file")
    p.add_argument("--flags", default="", metavar="'...'", help="other flags for vit.py, into another file")
    p.add_argument("--frames", metavar="FILE", help="frames from elsewhere, {seed} in the name; into another file")
    p.add_argument("--store", type=Path, metavar="FILE", help="where the numbers go; default: tests/evidence.json, or a file in outputs/ with any of the four flags above")
    p.add_argument("--modes", nargs="+", metavar="MODE", choices=MODES, help="only these modes, clean among them")
    p.add_argument("--worker", type=int, metavar="SEED", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.worker is None and "clean" not in (args.modes or MODES):
        p.error(f"argument --modes: {' '.join(args.modes)} has no clean, which the tables compare the others with")
    extra = ["--smoke"] * args.smoke + (["--frames", args.frames] if args.frames else []) + args.flags.split()
    name = "-".join([*map("{:g}".format, args.scene or []), *re.findall("[a-z0-9.]+", " ".join(extra))])
    runs = RUNS / name
    store = args.store or (runs / "evidence.json" if name else STORE)
    if args.scene:
        set_scene(*args.scene)
    if args.worker is not None:
        return worker(args.worker, args.modes, extra, runs)
    if args.table:
        data, failed = json.loads(store.read_text()), []
    else:
        runs.mkdir(parents=True, exist_ok=True)
        jobs = [job for job in ([mode for mode in job if mode in (args.modes or MODES)] for job in JOBS) if job]
        data, failed = run_all(args.seeds, args.at_once, jobs, extra, store)
    print("\n".join(tables(data)))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
