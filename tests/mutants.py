"""Found in the wild: bugs that people reported in their ViT code, put into a copy of vit.py one at a time.

    python tests/mutants.py --seeds 2        which of our numbers sees which bug; about 5 minutes on two cores
    python tests/mutants.py --table          only print the table of tests/mutants.json

tests/test_mutants.py shows that the fast tests catch each of them.  This command asks the harder question: would a run's
own report have told?  Each bug is trained and probed at the default flags.  A number sees a bug if on every seed it leaves
what a sound run shows: the probe leaves the clean run's 95 % interval downwards; alignment falls below vit.ALIGNED;
rollout's hits on the block fall below the lowest of the clean runs in tests/evidence.json; weight parity is off if, with
a ViTModel's weights, features differ from its own by more than 1e-4.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import evidence

ROOT = Path(__file__).resolve().parent.parent
STORE = ROOT / "tests" / "mutants.json"

PERMUTE, MERGE = "x.permute(0, 1, 3, 2, 4, 5)", "h = h.transpose(1, 2).flatten(2) "
GRID = "(x.shape[1] // PATCH, x.shape[2] // PATCH))"
FUSED = [("            h = attn @ v ", "            h, attn = F.scaled_dot_product_attention(q, k, v), None #"),
         ("None if self.training else attn.mean(dim=1)", "None if self.training or attn is None else attn.mean(dim=1)")]
MUTANTS = {  # name: (the test file that catches it, [(piece of vit.py, what the bug makes of it)])
    "patch grid transposed": ("test_patches", [(PERMUTE, "x.permute(0, 3, 1, 2, 4, 5)")]),
    "patch pixels channels first": ("test_patches", [(PERMUTE, "x.permute(0, 1, 3, 5, 2, 4)")]),
    "no permute at all": ("test_patches", [("    if not interleave_bug:\n", "    if False:\n")]),
    "heads merged without the transpose": ("test_towers", [(MERGE, "h = h.reshape(B, -1, dim) ")]),
    "softmax over the queries": ("test_towers", [("(q @ k.mT / math.sqrt(hd)).softmax(dim=-1)", "(q @ k.mT / math.sqrt(hd)).softmax(dim=-2)")]),
    "height and width swapped in the map": ("test_probe", [(GRID, "(x.shape[2] // PATCH, x.shape[1] // PATCH))")]),
    "map filled column by column": ("test_probe", [(GRID, GRID + ".mT")]),
    "rollout's rows normalised over the batch": ("test_probe", [("a = a / a.sum(dim=-1, keepdim=True)", "a = a / a.sum(dim=0, keepdim=True)")]),
    "attention not collected, a fused kernel": ("test_probe", FUSED),
    "the same, and rollout skips what is not there": ("test_probe", FUSED + [
        ("for block in reversed(model.blocks):", "for block in [b for b in reversed(model.blocks) if b.last_attn is not None]:")]),
}

PARITY = """
import torch
from transformers import ViTModel
import towers
with torch.no_grad():
    theirs = towers.tower(ViTModel, 48, 3, 3)
    ours, images = towers.tiny_vit(theirs), torch.rand(4, 64, 64, 3) * 2 - 1
    print((ours.features(images) - towers.look(theirs, images).last_hidden_state[:, 0]).abs().max().item())
"""


def mutate(changes, folder):
    """Copy the project into `folder`, with these changes in vit.py.  A piece that is not there exactly once: ValueError."""
    shutil.copytree(ROOT, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*", "outputs", "node_modules", "__pycache__", "docs", "*.part"))
    script = Path(folder, "vit.py")
    text = script.read_text("utf-8")
    for old, new in changes:
        if text.count(old) != 1:
            raise ValueError(f"{old!r} stands {text.count(old)} times in vit.py, not once")
        text = text.replace(old, new)
    script.write_text(text, "utf-8")


def python(folder, *args):
    """Run Python in the copy, one thread."""
    env = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{folder}/tests"} | {n: "1" for n in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    return subprocess.run([sys.executable, *args], cwd=folder, env=env, capture_output=True, text=True)


def one(name, seed):
    """Train and probe one bug -> the numbers, or the error that stopped it."""
    with tempfile.TemporaryDirectory() as folder:
        mutate(MUTANTS[name][1], folder)
        done = python(folder, "vit.py", "--seed", str(seed), "--device", "cpu", "--out", f"{folder}/out")
        parity = python(folder, "-c", PARITY)
        found = {"parity": float(parity.stdout) if parity.returncode == 0 else parity.stderr.strip().splitlines()[-1]}
        if done.returncode:
            return found | {"error": done.stderr.strip().splitlines()[-1]}
        m = json.loads(Path(folder, "out", "metrics.json").read_text())
        return found | {key: m[key] for key in ("probe_trained", "alignment", "rollout_block_hit_trained", "pinned")}


def table(found, clean):
    """Markdown: a bug a row, the mean of each number, in bold if the number sees the bug on every seed."""
    sys.path.insert(0, str(ROOT))
    import vit

    lowest = min(m["rollout_block_hit_trained"] for m in clean.values())
    sees = {
        "probe": ("probe_trained", lambda m, seed: m["probe_trained"] < clean[seed]["probe_trained_ci"][0]),
        "alignment": ("alignment", lambda m, seed: m["alignment"] < vit.ALIGNED),
        "rollout on the block": ("rollout_block_hit_trained", lambda m, seed: m["rollout_block_hit_trained"] < lowest),
        "weight parity": ("parity", lambda m, seed: not m["parity"] <= 1e-4),
    }
    yield "| bug | " + " | ".join(sees) + " | who sees it |"
    yield "|---|" + "---|" * (len(sees) + 1)
    for name, runs in found.items():
        error = next((m["error"] for m in runs.values() if "error" in m), None)
        cells, who = [], ["the run stops"] if error else []
        for title, (key, is_seen) in sees.items():
            if any(key not in m for m in runs.values()):
                cells.append("–")
                continue
            seen = [is_seen(m, seed) for seed, m in runs.items()]
            mean = sum(m[key] for m in runs.values()) / len(runs)
            cells.append(("**{}**" if all(seen) else "{}").format(f"{mean:.0e}" if key == "parity" else f"{mean:.2f}"))
            who += [title if all(seen) else f"{title} on {sum(seen)} of {len(seen)} seeds"] if any(seen) else []
        yield f"| {name} | " + " | ".join(cells) + f" | {', '.join(who) or 'none of them'} |"


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--seeds", type=int, default=1, help="seeds 0 to N - 1")
    p.add_argument("--at-once", type=int, default=2, help="processes at a time, one thread each")
    p.add_argument("--table", action="store_true", help="run nothing, print the table")
    args = p.parse_args()
    data = json.loads(STORE.read_text()) if STORE.exists() else {}
    if not args.table and data.get("made_by") != evidence.made_by():
        data = {}                          # made by other code or flags: begin again
    found = {name: data.get("runs", {}).get(name, {}) for name in MUTANTS}
    if not args.table:
        todo = [(name, seed) for seed in range(args.seeds) for name in MUTANTS if str(seed) not in found[name]]
        with ThreadPoolExecutor(args.at_once) as pool:
            for (name, seed), m in zip(todo, pool.map(lambda job: one(*job), todo)):
                found[name][str(seed)] = m
                print(f"seed {seed}  {name}: {m}", flush=True)
                part = STORE.with_suffix(".part")
                part.write_text(json.dumps({"made_by": evidence.made_by(), "runs": found}, indent=0) + "\n")
                os.replace(part, STORE)
    print("\n".join(table(found, json.loads((ROOT / "tests" / "evidence.json").read_text())["runs"]["clean"])))


if __name__ == "__main__":
    sys.exit(main())
