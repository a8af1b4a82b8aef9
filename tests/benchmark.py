"""Speed and memory, from one run on one machine, as ratios that travel.

    python tests/benchmark.py                # everything, about three minutes
    python tests/benchmark.py --no-run       # without the default run of vit.py

Every figure is taken beside what it is compared with, in turns, and is the median of the turns: machines are shared
and their clocks drift.  Nothing here is a test; nothing fails.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import vit  # noqa: E402
from pusht_env import PushTEnv  # noqa: E402
from scripted_expert import ScriptedExpert  # noqa: E402


def in_turns(turns, **tasks):
    """Median seconds of each task; the tasks take turns, after one turn each to warm up."""
    times = {name: [] for name in tasks}
    for turn in range(turns + 1):
        for name, task in tasks.items():
            start = time.perf_counter()
            task()
            if turn:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def training_step(model, forward, images, labels):
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def step():
        loss = F.cross_entropy(forward(images), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()

    return step


def flops_of_a_step(batch, dim=96, depth=2, heads=3, N=vit.NUM_PATCHES):
    """Multiply-adds of the matrix products of one training step, times 2.  Backward costs twice forward, but for the
    patch embedding, whose input needs no gradient."""
    S = N + 1
    embed = batch * N * vit.PATCH_DIM * dim
    full = batch * (S * 12 * dim * dim + 2 * S * S * dim)                # q, k, v, projection, MLP; scores and their use
    last = batch * (12 * dim * dim + 2 * heads * S * dim)                # the class token alone: its query goes to the tokens
    return 2 * (2 * embed + 3 * ((depth - 1) * full + last))


def model_speed():
    from transformers import ViTConfig, ViTModel

    images, labels = torch.rand(32, 64, 64, 3) * 2 - 1, torch.randint(0, 4, (32,))
    ours = vit.TinyViT(96, 2, 3, 4)
    config = ViTConfig(hidden_size=96, num_hidden_layers=2, num_attention_heads=3, intermediate_size=384, image_size=64, patch_size=8,
                       hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, attn_implementation="eager")
    theirs = torch.nn.ModuleDict({"vit": ViTModel(config, add_pooling_layer=False), "head": torch.nn.Linear(96, 4)})
    channels_first = lambda x: theirs["head"](theirs["vit"](x.permute(0, 3, 1, 2)).last_hidden_state[:, 0])
    a = torch.randn(1024, 1024)
    t = in_turns(15, ours=training_step(ours, ours, images, labels), theirs=training_step(theirs, channels_first, images, labels), matmul=lambda: a @ a)
    rate, used = 2 * 1024**3 / t["matmul"] / 1e9, flops_of_a_step(32) / t["ours"] / 1e9
    print(f"float32 matrix product, 1024 x 1024     {rate:8.0f} GFLOP/s on {torch.get_num_threads()} threads")
    print(f"training step, batch 32                 {t['ours'] * 1e3:8.1f} ms   ViTModel, eager {t['theirs'] * 1e3:.1f} ms   ratio {t['ours'] / t['theirs']:.2f}  (wanted: 0.6 at most)")
    print(f"  {flops_of_a_step(32) / 1e9:.2f} GFLOP of matrix products a step: {used:.0f} GFLOP/s, {used / rate:.0%} of the rate above")
    return rate


def env_speed():
    try:
        import gym_pusht  # noqa: F401
        import gymnasium
    except ImportError:
        return print("gym-pusht is not installed: no comparison with it")
    ours, theirs = PushTEnv(), gymnasium.make("gym_pusht/PushT-v0", obs_type="state", render_mode="rgb_array", observation_width=64, observation_height=64).unwrapped
    ours.reset(0), theirs.reset(seed=0)
    rng = np.random.default_rng(0)

    def our_steps():
        for _ in range(100):
            if ours.step(rng.uniform(-0.3, 0.3, 2))[2]:
                ours.reset(0)

    def their_steps():
        for _ in range(100):
            theirs.step(rng.uniform(100, 400, 2))

    t = in_turns(5, ours=our_steps, theirs=their_steps)
    print(f"environment steps                       {100 / t['ours']:8.0f} a second   gym-pusht {100 / t['theirs']:.0f}   ratio {t['theirs'] / t['ours']:.1f}")
    t = in_turns(5, ours=lambda: [ours.render_frame(64, 64) for _ in range(50)], theirs=lambda: [theirs._render(visualize=False) if hasattr(theirs, "_render") else theirs.render() for _ in range(50)])
    print(f"64 x 64 frames                          {50 / t['ours']:8.0f} a second   gym-pusht {50 / t['theirs']:.0f}   ratio {t['theirs'] / t['ours']:.1f}")
    env, expert = PushTEnv(), ScriptedExpert(noise=0.08)
    env.reset(0)
    t = in_turns(20, masks=lambda: env.masks(64, 64), expert=lambda: expert.action(env))
    print(f"masks of a frame {t['masks'] * 1e6:.0f} us, one action of the expert {t['expert'] * 1e6:.0f} us")


TIMED = """
import resource, sys, time
start = time.perf_counter()
sys.path.insert(0, {root!r})
import vit
spent = {{"imports": time.perf_counter() - start}}
def timed(name, label):
    function = getattr(vit, name)
    def call(*args, **kwargs):
        began = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent[label] = spent.get(label, 0) + time.perf_counter() - began
    setattr(vit, name, call)
timed("cache_frames", "data"); timed("measure", "probe"); timed("page_data", "report"); timed("fill_template", "report")
timed("start_recording", "recording"); timed("record_frames", "recording")
train = vit.train
def timed_train(*args, **kwargs):
    began = time.perf_counter()
    for epoch in train(*args, **kwargs):
        spent["train"] = spent.get("train", 0) + time.perf_counter() - began
        began = time.perf_counter()
        yield epoch
        spent["recording"] += time.perf_counter() - began      # what the caller does with an epoch: it logs each step
        began = time.perf_counter()
vit.train = timed_train
status = vit.main(["--rerun", "--out", {out!r}])
total = time.perf_counter() - start
print("TIMES", {{k: round(v, 2) for k, v in spent.items()}}, round(total, 2), round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024), status)
"""


def default_run(rate, out):
    done = subprocess.run([sys.executable, "-c", TIMED.format(root=str(ROOT), out=str(out))], capture_output=True, text=True)
    line = next((line for line in done.stdout.splitlines() if line.startswith("TIMES ")), None)
    if line is None:
        return print("the default run failed:", done.stderr[-500:])
    spent, rest = eval(line[6 : line.index("}") + 1]), line[line.index("}") + 1 :].split()
    recording, memory = spent.pop("recording"), float(rest[1])
    total, size = float(rest[0]) - recording, (Path(out) / "vit.rrd").stat().st_size / 1e6
    print(f"default run, imports included           {total:8.1f} s    (wanted: under 45 s); at {rate:.0f} GFLOP/s that is the time of {total * rate / 1e3:.2f} TFLOP")
    for name, seconds in spent.items():
        wanted = "   (wanted: 4 % at most)" if name == "data" else ""
        print(f"  {name:38}{seconds:8.2f} s   {seconds / total:.1%}{wanted}")
    print(f"  with --rerun {recording:.2f} s more, {recording / total:.1%} (wanted: under 10 %), and {size:.1f} MB (wanted: under 30)")
    print(f"peak memory of that run                 {memory:8.0f} MiB  (wanted: under 1 GB)")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--no-run", action="store_true", help="leave out the default run of vit.py")
    p.add_argument("--out", default=str(ROOT / "outputs" / "benchmark"), help="folder of that run")
    args = p.parse_args()
    rate = model_speed()
    env_speed()
    if not args.no_run:
        default_run(rate, args.out)


if __name__ == "__main__":
    main()
