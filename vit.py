"""A Vision Transformer from scratch, on frames of the PushT task, and what measurement proves about it."""
# One question runs through this file: does the representation carry the scene, and how would I know?
# The model learns to say in which quadrant of the table a T-shaped block lies.  Then it is measured: what a linear
# probe reads from its class token, where its attention flows, what its answer depends on.
#
#     python vit.py --seed 0                    the clean run
#     python vit.py --break patch_interleave    one forgotten permute: accuracy cannot see it
#     python vit.py --break shuffle_pos         the position tags are swapped when the model is probed
#     python vit.py --warmup 1 --rerun          no warm-up: some seeds are still at chance at the end
#
# The data walks one way: arguments, frames, patches, tokens, features, probe, report.  The model is that of
# Dosovitskiy et al. 2021 (arXiv:2010.11929, section 3.1); the same stack stands in big_vision's models/vit.py
# and in transformers' ViTModel, whose weights fit into TinyViT and back (tests/test_towers.py proves it).

# region setup: flags, seeds, and every way to break the model
# Nothing in here trains or draws.  The trap: a flag that fails only after a minute of training.  So every value is
# checked before the first frame is drawn; a bad one costs one line and exit status 2.
import argparse, base64, codecs, importlib.util, json, math, os, re, sys, tempfile, textwrap, time, zlib
from collections import namedtuple
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from pusht_env import MAX_STEPS, PushTEnv, load_frames, outline, png
from scripted_expert import ScriptedExpert

IMG_HW, PATCH, CHANNELS = 64, 8, 3         # our frames are 64 x 64 pixels, a patch is 8 x 8
GRID, NUM_PATCHES, PATCH_DIM = IMG_HW // PATCH, (IMG_HW // PATCH) ** 2, PATCH * PATCH * CHANNELS    # 8 a side, 64 in all, 192 numbers each
QUADRANTS = ("NE", "NW", "SW", "SE")
NUM_QUADRANTS = len(QUADRANTS)
LN4 = math.log(NUM_QUADRANTS)              # cross-entropy of a head that knows nothing: 1.386
ALIGNED = 0.65                             # at the default flags every clean run is above, every interleaved one below (README)

# Every way to break the model: what it does | was the expected effect seen? | what the report says then | what if not.
# A new one is one new entry here, and its switch where `break_mode` is asked for: new_vit, measure or run.
BREAKS = {
    "patch_interleave": ("patchify forgets its permute, in training and probing", lambda m: m["alignment"] < ALIGNED,
        "Alignment tells: {alignment:.2f}. The map no longer shows the place that the answer depends on.",
        "alignment is {alignment:.2f}, the map finds the block."),
    "shuffle_pos": ("the position tags are permuted, in probing only", lambda m: m["probe_gap_ci"][0] <= 0,
        "Same weights, same pixels, other tags: what is left is an edge over random-init of {probe_gap:+.2f}, not told apart from none.",
        "with the tags permuted an edge over random-init of {probe_gap:+.2f} is left. Some of *where* is in the features without the tags."),
    "no_pos": ("no position tags at all, a true bag of patches", lambda m: m["probe_trained"] > m["majority"],
        "A bag of patches, and yet more than the majority's {majority:.2f}: some of *where* is in their looks. Edge over random-init: {probe_gap:+.2f}.",
        "a bag of patches reads no more than the majority's {majority:.2f}."),
}
NUMBERS = {  # flag: type, smallest, largest, default, default with --smoke, help
    "seed": (int, 0, 2**31, 0, 0, "seeds everything: episodes, weights, batches"),
    "episodes": (int, 2, 2000, 40, 8, "expert episodes; the last quarter is held out"),
    "frame_stride": (int, 1, MAX_STEPS, 4, 16, "keep every n-th frame of an episode"),
    "dim": (int, 1, 2048, 96, 24, "width of a token, divisible by --heads"),
    "depth": (int, 1, 24, 2, 2, "number of blocks"),
    "heads": (int, 1, 64, 3, 2, "attention heads per block"),
    "epochs": (int, 1, 10000, 30, 3, "passes over the training frames"),
    "warmup": (int, 1, 10000, 15, 2, "the epoch from which the learning rate is full; with 1 some seeds are still at chance at the end"),
    "batch_size": (int, 1, 4096, 32, 32, "frames per optimizer step"),
    "lr": (float, 1e-8, 1, 1e-3, 1e-3, "Adam's learning rate after the warm-up"),
    "predict": (float, 0, 1, None, None, "your guess of the trained probe, graded at the end"),
}


def parse_args(argv=None):
    """Flags -> namespace, checked.  A bad one ends the program with one line on stderr and status 2."""
    p = argparse.ArgumentParser(prog="vit.py", description=__doc__, allow_abbrev=False)
    p.error = lambda message: p.exit(2, f"vit.py: {message}\n")
    argv = [re.sub("^--[a-z_]+", lambda flag: flag[0].replace("_", "-"), str(a))               # --batch_size works too
            for a in (sys.argv[1:] if argv is None else argv)]
    for flag, (kind, low, high, default, smoke, text) in NUMBERS.items():
        p.add_argument("--" + flag.replace("_", "-"), type=kind, default=smoke if "--smoke" in argv else default,
                       help=f"{text} ({kind.__name__} from {low} to {high}; default: {default})")
    p.add_argument("--break", dest="break_mode", choices=BREAKS, help="; ".join(f"{b}: {v[0]}" for b, v in BREAKS.items()))
    p.add_argument("--patchify", metavar="FILE.py", help="use the function patchify(images, patch) of your own file")
    p.add_argument("--frames", metavar="FILE.npz", help="run on the frames of this file instead of our own")
    p.add_argument("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto", help="auto: cuda if there is one")
    p.add_argument("--rerun", action="store_true", help="also record vit.rrd for the Rerun viewer")
    p.add_argument("--smoke", action="store_true", help="a tiny run of the whole path; its numbers mean nothing")
    p.add_argument("--out", type=Path, metavar="DIR", help="folder to write into; default: one per mode and seed in outputs/")
    args = p.parse_args(argv)
    for flag, (kind, low, high, *_) in NUMBERS.items():
        value = getattr(args, flag)
        if value is not None and not low <= value <= high:     # nan fails too
            p.error(f"argument --{flag.replace('_', '-')}: {value} is not allowed; allowed is {kind.__name__} from {low} to {high}")
    there = {"auto": True, "cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    for wrong, why in ((args.dim % args.heads, f"dim: {args.dim} is not divisible by --heads {args.heads}"),
                       (not there[args.device], f"device: no {args.device} here; allowed are {', '.join(d for d in there if there[d])}"),
                       (args.patchify and args.break_mode, f"patchify: not together with --break {args.break_mode}"),
                       (args.rerun and not importlib.util.find_spec("rerun"), "rerun: not installed; pip install rerun-sdk")):
        if wrong:
            p.error(f"argument --{why}")
    args.device = ("cuda" if there["cuda"] else "cpu") if args.device == "auto" else args.device
    args.mode, args.fail = args.break_mode or ("patchify" if args.patchify else "clean"), p.error
    special = [Path(args.frames or "").stem] * bool(args.frames) + ["smoke"] * args.smoke + [f"{flag}{getattr(args, flag)}" for
               flag in list(NUMBERS)[1:-1] if getattr(args, flag) != p.get_default(flag)]
    folder = lambda mode: Path("outputs", "-".join([mode, *special, f"seed{args.seed}"]))    # a broken run never overwrites
    args.out, args.clean = args.out or folder(args.mode), folder("clean")                      # a clean one
    return args
# endregion


# region data: the expert plays, we keep frames
# The trap: frames of one episode look alike.  A split by frame would test on what was trained on; we split by episode.
# images (N, H, W, 3) float32 in [-1, 1]; labels, episodes (N,) int64; masks: name -> (N, H, W) bool, where objects are.
Frames = namedtuple("Frames", "images labels episodes masks")


def quadrant(tee_x, tee_y):
    """Quadrant of a block position in metres, y up: 0 NE, 1 NW, 2 SW, 3 SE; an axis counts as N, E.  Scalars or arrays."""
    return np.array([[2, 3], [1, 0]])[np.greater_equal(tee_y, 0).astype(int), np.greater_equal(tee_x, 0).astype(int)]


def to_float(frames):
    """uint8 (N, H, W, 3) -> float32 in [-1, 1].  Mid-grey becomes 0: the table's tone decides how loud its tokens are."""
    return torch.from_numpy(frames).float().div_(127.5).sub_(1)


def to_uint8(image):
    """The way back, for one image (H, W, 3) or many."""
    return ((image + 1) * 127.5).round().byte().numpy()


def cache_frames(episodes, seed, stride):
    """The expert plays `episodes` episodes (environment and expert seed: seed + e); keep every stride-th frame -> Frames."""
    env, kept, masks = PushTEnv(), [], {"block": [], "pusher": [], "target": []}
    for e in range(episodes):
        env.reset(seed + e)
        expert, done, step = ScriptedExpert(noise=0.08, seed=seed + e), False, 0
        while not done:
            if step % stride == 0:
                kept.append((env.render_frame(IMG_HW, IMG_HW), quadrant(*env.tee_pose[:2]), e))
                for name, mask in env.masks(IMG_HW, IMG_HW).items():
                    masks[name].append(mask)
            _, _, done, _ = env.step(expert.action(env))
            step += 1
    images, labels, owner = (np.stack(column) for column in zip(*kept))
    return Frames(to_float(images), torch.from_numpy(labels), owner, {name: np.stack(m) for name, m in masks.items()})


def foreign_frames(path):
    """Frames that we did not draw, from an .npz file (pusht_env.load_frames).  ValueError, one line, if it does not fit."""
    frames, labels, episodes, masks = load_frames(path, quadrant)
    return Frames(to_float(frames), torch.from_numpy(labels), episodes, masks)


def split_by_episode(episodes):
    """Indices (train, held-out) of the frames: the last quarter of the episodes, at least one, is held out."""
    ids = np.unique(episodes)
    held_out = np.isin(episodes, ids[-max(1, len(ids) // 4):])
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)
# endregion


# region patches: cut the picture into a sequence
# A transformer eats a sequence of vectors.  The whole trick of a ViT: a patch of pixels is one vector, and a Linear on
# it is a strided convolution.  The trap is the permute.  Without it the shapes still fit, the loss still falls, the
# probe is still good, and every "patch" is something else: at 64 x 64 with 8 x 8 patches, one whole row of pixels.
def patchify(images, patch, interleave_bug=False):
    """images (B, H, W, C) -> flat patches (B, gh * gw, patch * patch * C): row-major grid, row-major pixels, channels last.
    interleave_bug skips the permute.  ValueError if H or W is not a multiple of `patch`."""
    B, H, W, C = images.shape
    if H % patch or W % patch:
        raise ValueError(f"a picture of {H} x {W} pixels cannot be cut into {patch} x {patch} patches")
    gh, gw = H // patch, W // patch
    x = images.reshape(B, gh, patch, gw, patch, C)             # row = (patch row, row in it), column = (...)
    if not interleave_bug:
        x = x.permute(0, 1, 3, 2, 4, 5)                        # (B, gh, gw, patch, patch, C): which patch, which pixel
    return x.reshape(B, gh * gw, patch * patch * C)
# endregion


# region model: class token, position tags, pre-norm blocks
# Written out: no nn.MultiheadAttention, no convolution.  The trap: reshape and transpose of the heads must be
# undone in the opposite order, or heads and tokens mix.  It trains all the same.
class Block(nn.Module):
    """Pre-norm transformer block (Dosovitskiy et al. 2021, equations 2 and 3): x + MSA(LN x), then x + MLP(LN x)."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.last_attn = None              # (B, Q, S), mean over heads, of the last eval-mode forward

    def forward(self, x, cls_only=False):
        """x (B, S, dim) -> (B, Q, dim), Q = S, or 1 with cls_only: only token 0 asks, all S tokens answer."""
        B, S, dim = x.shape
        h, nh, hd = self.norm1(x), self.heads, dim // self.heads
        if cls_only:                       # one query: cheaper to carry it to the tokens than all keys and values to it
            wq, wk, wv = self.qkv.weight.reshape(3, nh, hd, dim)
            bq, _, bv = self.qkv.bias.reshape(3, nh, 1, hd)    # q·(Wk h + bk) = (q Wk)·h + q·bk: softmax ignores the last
            q = (h[:, 0] @ wq.mT + bq) @ wk                    # (nh, B, dim)
            attn = (q.transpose(0, 1) @ h.mT / math.sqrt(hd)).softmax(dim=-1)          # (B, nh, S)
            h = (attn @ h).transpose(0, 1) @ wv.mT + bv        # (nh, B, hd): the weights sum to 1, so bv comes once
            attn, h = attn[:, :, None], h.transpose(0, 1)[:, :, None]                  # (B, nh, 1, S), (B, nh, 1, hd)
        else:
            q, k, v = self.qkv(h).reshape(B, S, 3, nh, hd).permute(2, 0, 3, 1, 4)      # (B, nh, S, hd) each
            attn = (q @ k.mT / math.sqrt(hd)).softmax(dim=-1)  # (B, nh, S, S)
            h = attn @ v                                       # (B, nh, S, hd)
        self.last_attn = None if self.training else attn.mean(dim=1)
        h = h.transpose(1, 2).flatten(2)                       # (B, Q, dim): heads side by side again
        x = x[:, : h.shape[1]] + self.proj(h)
        return x + self.mlp(self.norm2(x))


class TinyViT(nn.Module):
    """A ViT whose class token answers: patches -> Linear -> + position tags -> blocks -> norm -> head."""

    def __init__(self, dim, depth, heads, num_classes, num_patches=NUM_PATCHES):
        super().__init__()
        self.patch_embed = nn.Linear(PATCH_DIM, dim)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(0.02 * torch.randn(1, 1 + num_patches, dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, num_classes)
        self.patchify = patchify           # replaced by --patchify FILE.py
        self.cls_rows = None               # the CLS row before the first block and after each, of the last eval forward

    def features(self, images, interleave_bug=False, shuffle_pos=None):
        """images (B, H, W, 3) float in [-1, 1] -> the normed CLS row (B, dim)."""
        return self.encode(self.patchify(images, PATCH, interleave_bug), shuffle_pos)

    def encode(self, tokens, shuffle_pos=None):
        """Raw patches (B, N, PATCH_DIM) -> the normed CLS row (B, dim).  shuffle_pos (N,): token t wears tag shuffle_pos[t]."""
        tags = self.pos[:, 1:] if shuffle_pos is None else self.pos[:, 1:][:, shuffle_pos]
        cls = (self.cls + self.pos[:, :1]).expand(len(tokens), -1, -1)
        x = torch.cat([cls, self.patch_embed(tokens) + tags], dim=1)    # (B, 1 + N, dim)
        rows = [x[:, 0]]
        for i, block in enumerate(self.blocks):                # only the CLS row leaves the last block: it asks alone
            x = block(x, cls_only=i == len(self.blocks) - 1)
            rows.append(x[:, 0])
        self.cls_rows = None if self.training else rows
        return self.norm(x[:, 0])

    def forward(self, images, interleave_bug=False, shuffle_pos=None):
        """images (B, H, W, 3) -> logits (B, num_classes)."""
        return self.head(self.features(images, interleave_bug, shuffle_pos))
# endregion


# region train: Adam, and a warm-up
# At first the class token averages 64 nearly equal tokens: its feature hardly differs between frames, and the loss sits at
# ln 4.  The first gradients agree from batch to batch: they are about what all frames share.  Full-size Adam steps along
# them leave the features ten times more alike still (tests/test_model.py), and the loss leaves ln 4 later or not in time
# (README).  A warm-up begins with small steps.
Epoch = namedtuple("Epoch", "loss lr steps")    # mean cross-entropy, learning rate, [(loss, lr) of each step]


def train(model, images, labels, *, epochs, batch_size, lr, warmup, seed, interleave_bug=False):
    """Train on images (N, H, W, 3), labels (N,).  A generator: yields an Epoch after each epoch."""
    opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr, fused=True)
    batches = torch.Generator().manual_seed(seed)              # on the CPU: the same batches on every device
    for epoch in range(1, epochs + 1):
        now = opt.param_groups[0]["lr"] = lr * min(1, epoch / warmup)
        model.train()                                          # the caller may have probed in between
        steps, order = [], torch.randperm(len(labels), generator=batches).to(labels.device)
        for batch in order.split(batch_size):
            loss = F.cross_entropy(model(images[batch], interleave_bug), labels[batch])
            opt.zero_grad()
            loss.backward()
            opt.step()
            steps.append((loss.item(), now))
        mean = np.average([loss for loss, _ in steps], weights=[len(batch) for batch in order.split(batch_size)])
        yield Epoch(float(mean), now, steps)
# endregion


# region probe: what the features know, where attention flows, what the answer depends on
# A linear probe asks: could a straight cut through feature space tell the quadrants apart?  It has no knobs, so a good
# result is the features' merit.  The trap: it cannot see *where* the model looks.  Rollout and occlusion can.
def chunked(model, images, fn, size=256):
    """torch.cat of fn(chunk) over chunks of images, in eval mode, without gradients."""
    model.eval()
    with torch.no_grad():
        return torch.cat([fn(chunk) for chunk in images.split(size)])


def cls_features(model, images, interleave_bug=False, shuffle_pos=None):
    """images (N, H, W, 3) -> CLS features (N, dim) float64, on the CPU."""
    return chunked(model, images, lambda x: model.features(x, interleave_bug, shuffle_pos)).cpu().double().numpy()


def cnn_features(images, seed):
    """What a ViT replaces: a small conv stack, random, never trained.  images (N, H, W, 3) -> (N, 96) float64."""
    torch.manual_seed(seed)
    convs = [layer for i, o in ((CHANNELS, 16), (16, 32), (32, 24)) for layer in (nn.Conv2d(i, o, 3, 2, 1), nn.ReLU())]
    stack = nn.Sequential(*convs, nn.AdaptiveAvgPool2d(2), nn.Flatten()).to(images.device)    # 24 x 2 x 2 = 96
    return chunked(stack, images, lambda x: stack(x.permute(0, 3, 1, 2))).cpu().double().numpy()


def linear_probe(train_x, train_y, test_x, test_y):
    """Linear probe in closed form (Alain & Bengio 2017): least squares with intercept on one-hot labels, in float64.
    train_x (N, D), train_y (N,), test_x (M, D), test_y (M,) -> correct (M,) bool; its mean is the accuracy."""
    train_x, test_x = (np.pad(np.asarray(x, np.float64), ((0, 0), (0, 1)), constant_values=1) for x in (train_x, test_x))
    if train_x.shape[1] > len(train_x):    # raw pixels: the least-norm solution, through the small Gram matrix
        train_x, test_x = train_x @ train_x.T, test_x @ train_x.T
    weights = np.linalg.lstsq(train_x, np.eye(NUM_QUADRANTS)[train_y], rcond=None)[0]
    return (test_x @ weights).argmax(axis=1) == test_y


def bootstrap_ci(values, episodes, seed, resamples=2000):
    """95 % interval [low, high] of mean(values); values, episodes (M,).  Bootstrap (Efron 1979) over whole episodes."""
    # Frames of one episode are not independent; resampling single frames would give an interval that is too sure.
    owner = np.unique(episodes, return_inverse=True)[1]
    total, count = np.bincount(owner, values), np.bincount(owner)
    pick = np.random.default_rng(seed).integers(len(count), size=(resamples, len(count)))
    return np.percentile(total[pick].sum(axis=1) / count[pick].sum(axis=1), [2.5, 97.5]).tolist()


def cls_rollout(model, images, interleave_bug=False, shuffle_pos=None):
    """Attention rollout of the class token (Abnar & Zuidema 2020, section 3): images (N, H, W, 3) -> (N, gh, gw)."""
    # Per block half attention, half identity (the residual path), rows normalised, multiplied up the stack.
    def rollout(x):
        model.features(x, interleave_bug, shuffle_pos)
        row = None
        for block in reversed(model.blocks):                   # from the top, as only the class token's row is wanted
            attn = block.last_attn                             # (B, S, S), or (B, 1, S) in the last block: its CLS row
            a = 0.5 * attn + 0.5 * torch.eye(attn.shape[2], device=attn.device)[: attn.shape[1]]
            a = a / a.sum(dim=-1, keepdim=True)
            row = a if row is None else row @ a                # (B, 1, S)
        return row[:, 0, 1:].unflatten(1, (x.shape[1] // PATCH, x.shape[2] // PATCH))      # without the class token
    return chunked(model, images, rollout).cpu().numpy()


@torch.no_grad()
def occlusion(model, tokens, empty, shuffle_pos=None):
    """How much the model's own answer depends on each token (after Zeiler & Fergus 2014, section 4.2).
    tokens (B, N, PATCH_DIM); empty (N, PATCH_DIM), an empty table -> drop of the answer's log-probability (B, N)."""
    model.eval()
    drops = torch.zeros(tokens.shape[:2], dtype=torch.float64)
    for frame, drop in zip(tokens, drops):                     # (N, PATCH_DIM), (N,)
        t = (frame != empty).any(dim=1).nonzero()[:, 0]        # emptying an empty token changes nothing
        batch = frame.repeat(1 + len(t), 1, 1)                 # copy 0 is whole, copy 1 + i lost token t[i]
        batch[torch.arange(len(t), device=t.device) + 1, t] = empty[t]
        logp = model.head(model.encode(batch, shuffle_pos)).double().log_softmax(dim=-1)
        answer = logp[:, logp[0].argmax()]
        drop[t.cpu()] = (answer[0] - answer[1:]).clamp(min=0).cpu()    # a rise is not a dependence
    return drops.numpy()


def on_grid(masks):
    """Pixel masks (M, H, W) -> (M, N) bool: does the patch touch the object?"""
    M, H, W = masks.shape
    return masks.reshape(M, H // PATCH, PATCH, W // PATCH, PATCH).any(axis=(2, 4)).reshape(M, -1)


def looks_at(maps, touch):
    """Does a map look at an object?  maps (M, N), touch (M, N) bool -> per frame hit (M,) bool and mass (M,)."""
    # hit: the largest patch touches it (pointing game, Zhang et al. 2016).  mass: the map's share on the object over the
    # object's share of the area; a flat map has 1.  A map of zeros points nowhere.
    total, area = maps.sum(axis=1), touch.mean(axis=1)
    hit = touch[np.arange(len(maps)), maps.argmax(axis=1)] & (total > 0)
    return hit, (maps * touch).sum(axis=1) / np.where(total > 0, total, 1) / np.where(area > 0, area, 1)
# endregion


# region report: numbers with intervals, maps, files
# Everything measured goes into one flat dict, `m`, which becomes metrics.json; every sentence is computed from it.
# The trap: a report that says what was hoped for.  So each sentence has a second form, for when it did not happen.
VERSION = 2                                # of metrics.json and of the page's data


def measure(args, frames, models, history):
    """Every number of the report: (m, maps).  maps: `sample` (M,) frame indices, `tags`, and (M, N) maps in × uniform."""
    (T, H), bug = split_by_episode(frames.episodes), args.break_mode == "patch_interleave"
    x, y, N = frames.images.to(args.device), frames.labels.numpy(), models["trained"].pos.shape[1] - 1
    tags = torch.arange(N)
    if args.break_mode == "shuffle_pos":
        tags = torch.randperm(N, generator=torch.Generator().manual_seed(args.seed))
    probe = lambda features: linear_probe(features[T], y[T], features[H], y[H]).astype(float)
    right = {name: probe(cls_features(model, x, bug, tags)) for name, model in models.items()}
    right["gap"] = right["trained"] - right["random"]
    m = {f"probe_{name}": values.mean() for name, values in right.items()}
    m |= {f"probe_{name}_ci": bootstrap_ci(values, frames.episodes[H], args.seed) for name, values in right.items()}
    m |= {"probe_pixels": probe(frames.images.flatten(1)).mean(), "probe_cnn": probe(cnn_features(x, args.seed + 1)).mean(),
          "majority": np.bincount(y[H]).max() / len(H), "chance": 1 / NUM_QUADRANTS,
          "num_frames": len(y), "num_train": len(T), "num_test": len(H), "img_hw": x.shape[1], "train_ce": history[-1].loss,
          "escape_epoch": next((n for n, epoch in enumerate(history, 1) if epoch.loss < 1), None),
          "pinned": abs(history[-1].loss - LN4) <= 0.05}

    sample = H[np.unique(np.linspace(0, len(H) - 1, min(64, len(H))).astype(int))]
    tokens, maps = models["trained"].patchify(x, PATCH, bug), {"sample": sample, "tags": tags.tolist()}
    empty = tokens[T].median(dim=0).values                     # (N, PATCH_DIM): what usually lies at each position
    for name, model in models.items():
        rollout, occluded = cls_rollout(model, x[H], bug, tags).reshape(len(H), N), occlusion(model, tokens[sample], empty, tags)
        m[f"rollout_peak_{name}"] = np.median(rollout.max(axis=1) / rollout.mean(axis=1))
        for kind, found, which in (("rollout", rollout, H), ("occlusion", occluded, sample)):
            mean = found.mean(axis=1, keepdims=True)
            maps[f"{kind}_{name}"] = (found / np.where(mean > 0, mean, 1))[np.isin(which, sample)]
            for thing, mask in frames.masks.items():
                touch = on_grid(mask[which])
                seen = touch.any(axis=1)   # our frames show every object; those of others may not
                for what, values in zip(("hit", "mass"), looks_at(found[seen], touch[seen]) if seen.any() else ()):
                    m[f"{kind}_{thing}_{what}_{name}"] = values.mean()
    m["alignment"] = m.get("occlusion_block_hit_trained")
    fine = None if m["alignment"] is None else "aligned" if m["alignment"] >= ALIGNED else "misaligned"
    m |= {"verdict": "pinned" if m["pinned"] else fine, "version": VERSION, "torch": torch.__version__, "numpy": np.__version__}
    m |= {key: value for key, value in vars(args).items() if key not in ("out", "clean", "fail", "mode")}
    m |= {key: f"crc32 {zlib.crc32(Path(m[key]).read_bytes()):08x}" for key in ("frames", "patchify") if m[key]}    # no paths
    tidy = lambda v: [round(i, 6) for i in v] if isinstance(v, list) else round(float(v), 6) if isinstance(v, (float, np.floating)) else v
    return {key: tidy(m[key]) for key in sorted(m)}, maps


def sentence(m):
    """Does this run show trained > random-init > majority > chance?  One sentence."""
    order = dict(zip(("trained", "random-init", "majority", "chance"), map(m.get, ("probe_trained", "probe_random", "majority", "chance"))))
    wrong = [f"{a} {order[a]:.2f} is not above {b} {order[b]:.2f}" for a, b in zip(order, list(order)[1:]) if order[a] <= order[b]]
    low, high = m["probe_gap_ci"]
    return (f"This run {'does not show the order: ' + ', '.join(wrong) if wrong else 'shows ' + ' > '.join(order)}; "
            f"trained − random-init is {m['probe_gap']:+.2f}, 95 % interval {low:+.2f} to {high:+.2f}"
            + (", which includes 0: this run alone cannot tell them apart." if low <= 0 <= high else "."))


def lesson(m, clean):
    """What the break, or the learner's patchify, did: a few sentences from the numbers of this run and of the clean one."""
    mode, (low, high), run = m["break_mode"], (clean or m)["probe_trained_ci"], PATCH_DIM // CHANNELS
    text = f"Without the permute a token is {run} pixels in reading order, {run / m['img_hw']:.2g} row of the picture. "
    where = "fell below" if m["probe_trained"] < low else "rose above" if m["probe_trained"] > high else "stays in"
    silent = ", silent about the bug" * (mode == "patch_interleave" and where != "fell below")
    text = text * (mode == "patch_interleave") + f"The probe reads {m['probe_trained']:.2f}" + (
        f", clean {clean['probe_trained']:.2f} ({low:.2f} to {high:.2f}): it {where} that interval{silent}. " if clean else ". ")
    if mode in (None, "patch_interleave") and (m["pinned"] or m["alignment"] is None):
        return text + ("A pinned model's answer hangs on nothing in particular" if m["pinned"] else "Without masks there is no alignment"
                       ) + ", and nothing else here tells whether a token is a patch."
    _, seen, told, other = BREAKS[mode or "patch_interleave"]
    return text + (told if seen(m) else "Not the expected effect: " * bool(mode) + other).format(**m)


def grade(predicted, measured, name="trained probe"):
    """Grade a prediction made before the run -> two lines: the numbers, and what the surprise teaches."""
    off = measured - predicted
    teaches = "Close: you know this model." if abs(off) <= 0.05 else (
        f"It knows {'more' if off > 0 else 'less'} than you thought: which cue did you {'leave out' if off > 0 else 'count on'}?")
    return [f"Predicted {name} {predicted:.2f}, measured {measured:.2f}, difference {off:+.2f}.", teaches]


def table(m, clean):
    """The numbers as a markdown table, a line of at most 80 columns each, the clean run's beside them where there is one."""
    yield f"| {'':35} | this run | 95 % interval   |" + " clean run |" * bool(clean)
    yield f"|{'-' * 37}|---------:|-----------------|" + "----------:|" * bool(clean)
    for label, key in (("trained ViT, linear probe", "probe_trained"), ("random-init ViT, linear probe", "probe_random"),
                       ("gap: trained − random-init", "probe_gap"), ("raw pixels, linear probe", "probe_pixels"),
                       ("frozen random CNN, linear probe", "probe_cnn"), ("majority", "majority"), ("chance", "chance"),
                       ("alignment: answer hangs on block", "alignment"), ("rollout on block, trained", "rollout_block_hit_trained"),
                       ("rollout on block, random-init", "rollout_block_hit_random"), ("cross-entropy, last epoch", "train_ce"),
                       ("rollout peak × uniform, trained", "rollout_peak_trained"), ("rollout peak × uniform, random-init", "rollout_peak_random")):
        if m.get(key) is not None:
            span = " to ".join(f"{v:.2f}" for v in m.get(key + "_ci", ()))
            yield f"| {label:35} | {m[key]:8.2f} | {span:15} |" + (f" {clean[key]:9.2f} |" if clean else "")


def heat_maps(maps, touch, i):
    """Frame i of the sample as text maps side by side, one scale in × uniform for all; [ marks the block's patches."""
    side, shade = math.isqrt(touch.shape[1]), lambda v: " ░▒▓█"[np.searchsorted([0.5, 2, 4, 8], v, side="right")]
    shown = {"block": touch[i] * 99, "trained rollout": maps["rollout_trained"][i], "random rollout": maps["rollout_random"][i],
             "trained occlusion": maps["occlusion_trained"][i]}
    yield " ".join(f"{title:^{2 * side + 2}}" for title in shown)
    for row in np.arange(side * side).reshape(side, side):
        yield " ".join("|" + "".join(("[" if touch[i, t] else shade(v[t])) + shade(v[t]) for t in row) + "|" for v in shown.values())
    yield "× uniform: blank under 0.5, ░ to 2, ▒ to 4, ▓ to 8, █ above; [ is the block"


def page_data(args, frames, model, history, m, maps, words, clean):
    """What viewer.html shows, as one JSON-able dict: about 24 held-out frames, spread over quadrants and episodes."""
    b64, sample, hw = lambda data: base64.b64encode(data).decode(), maps["sample"], m["img_hw"]
    bug, index = args.break_mode == "patch_interleave", torch.arange(hw * hw * CHANNELS, dtype=torch.float32)
    order = model.patchify(index.reshape(1, hw, hw, CHANNELS), PATCH, bug)     # cut a picture of numbers: which went where?
    cls_features(model, frames.images[sample].to(args.device), bug, maps["tags"])
    lens = torch.stack([model.head(model.norm(row)).softmax(dim=-1) for row in model.cls_rows], dim=1).tolist()  # the logit lens
    of = [np.flatnonzero(frames.labels.numpy()[sample] == q) for q in range(NUM_QUADRANTS)]
    pick = np.unique(np.concatenate([f[np.linspace(0, len(f) - 1, min(6, len(f))).astype(int)] for f in of]))
    shown = [{"png": b64(png(to_uint8(frames.images[f]))), "label": int(frames.labels[f]), "episode": int(frames.episodes[f]),
              "index": int(f), "masks": {name: b64(np.packbits(mask[f])) for name, mask in frames.masks.items()},
              "maps": {key: maps[key][i].round(3).tolist() for key in maps if key not in ("sample", "tags")},
              "lens": [[round(p, 4) for p in row] for row in lens[i]]} for i in pick for f in [sample[i]]]
    return {"version": VERSION, "title": args.out.name, "mode": args.mode, "sentence": words[0], "lesson": " ".join(words[1:]),
            "metrics": m, "pinned": m["pinned"], "names": QUADRANTS, "hw": hw, "patch": PATCH, "loss": [e.loss for e in history],
            "lr": [e.lr for e in history], "tags": None if args.break_mode == "no_pos" else maps["tags"], "frames": shown,
            "order": b64(order.numpy().astype("<u2")) if torch.equal(order.flatten().sort().values, index) else None,
            "sibling": clean and clean | {"frames": [f | {"png": None, "masks": None} for f in clean["frames"]]}}


SLOT = re.compile(r'(<script id="data" type="application/json">)(.*?)(</script>)', re.DOTALL)


def fill_template(page):
    """viewer.html with the data in its slot, < > & escaped: no string in the data can end the script element."""
    data = re.sub("[<>&\u2028\u2029]", lambda c: f"\\u{ord(c[0]):04x}", json.dumps(page, separators=(",", ":")))
    return SLOT.sub(lambda slot: slot[1] + data + slot[3], Path(__file__).with_name("viewer.html").read_text("utf-8"), count=1)


def read_clean(folder, m):
    """(metrics, page data) of the clean run in `folder` if it is like this run; else (None, None), and a line that says why."""
    try:
        clean = json.loads((folder / "metrics.json").read_text("utf-8"))
        alike = ("version", "img_hw", "frames", "smoke", *list(NUMBERS)[:-1])
        if clean.keys() != m.keys() or clean["break_mode"] or any(clean[key] != m[key] for key in alike):
            raise ValueError("made by another version or with other flags")
        return clean, json.loads(SLOT.search((folder / "viewer.html").read_text("utf-8"))[2])
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, AttributeError) as error:
        print(f"The clean run in {folder} is ignored: {error}")
    return None, None


def write_whole(path, data):
    """Write beside `path`, then os.replace: a reader finds the old file or the new one, never half of one."""
    part = path.with_name(path.name + ".part")                 # what is left of it after a failure, `main` removes
    part.write_bytes(data)
    os.replace(part, path)


def start_recording(path):
    """vit.rrd for the Rerun viewer (rerun.io), as a stream that is written while the run goes on."""
    import rerun as rr, rerun.blueprint as rrb                 # only here: --rerun is optional
    maps = [rrb.Spatial2DView(name=f"{kind}, {who}", contents=["/frame/**", f"/{kind}/{who}"])
            for kind in ("rollout", "occlusion") for who in ("trained", "random")]
    views = [rrb.Vertical(rrb.Spatial2DView(origin="/frame"), rrb.TextDocumentView(origin="/report")), rrb.Grid(*maps, grid_columns=2),
             rrb.Vertical(rrb.TimeSeriesView(origin="/train/loss"), rrb.TimeSeriesView(origin="/train/lr"))]
    layout, rec = rrb.Horizontal(*views, column_shares=[3, 4, 3]), rr.RecordingStream("vit_on_pusht")       # opens at the last step:
    rec.save(path, rrb.Blueprint(layout, rrb.TimePanel(state="collapsed", timeline="step", play_state="following"), collapse_panels=True))
    return rec


def record_frames(rec, frames, maps, markdown):
    """The report, and on the timeline `frame` each sampled frame with the objects' outlines and the maps over it."""
    import rerun as rr
    rec.log("report", rr.TextDocument(markdown, media_type="text/markdown"), static=True)
    for n, f in reversed([*enumerate(maps["sample"])]):        # all at the last `step`, which so shows the first frame
        rec.set_time("frame", sequence=n)
        rec.log("frame/image", rr.Image(to_uint8(frames.images[f])))
        for thing, mask in frames.masks.items():
            rec.log(f"frame/outline/{thing}", rr.LineStrips2D(outline(mask[f])))
        for key in maps.keys() - {"sample", "tags"}:           # one scale per kind: its largest value is the most opaque
            top = max(maps[key.split("_")[0] + who].max() for who in ("_trained", "_random"))
            heat = np.kron(maps[key][n].reshape(frames.images.shape[1] // PATCH, -1) / max(top, 1), np.ones((PATCH, PATCH)))
            rec.log(key.replace("_", "/"), rr.Image((heat[..., None] * [0, 0, 0, 200] + [255, 90, 0, 0]).astype(np.uint8), draw_order=1))


def load_patchify(path):
    """The learner's function `patchify` from FILE.py, as cut(images, patch, interleave_bug).  ValueError if it does not fit."""
    scope, fits = {"__name__": "learner"}, (2, NUM_PATCHES, PATCH_DIM)
    try:
        exec(compile(Path(path).read_bytes(), path, "exec"), scope)
        out = scope["patchify"](torch.rand(2, IMG_HW, IMG_HW, CHANNELS) * 2 - 1, PATCH)
        ok = out.dtype == torch.float32 and out.shape == fits and bool(out.abs().max() <= 1)
    except (Exception, SystemExit) as error:                   # whatever a learner's file can do wrong, exit() too
        raise ValueError(f"has a patchify that fails: {type(error).__name__}: {error}") from None
    if not ok:
        raise ValueError(f"gives {out.dtype} {tuple(out.shape)}; allowed is torch.float32 {fits}, from -1 to 1 for images in that range")
    return lambda images, patch, interleave_bug=False: scope["patchify"](images, patch)


def make_folder(path):
    """Make the folder if it is not there.  OSError if that, or a file in it, is impossible."""
    path.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=path).close()


def new_vit(args, seed, hw, cut):
    """A fresh TinyViT.  no_pos needs no branch in the model: its tags are zero and stay zero."""
    torch.manual_seed(seed)
    model = TinyViT(args.dim, args.depth, args.heads, NUM_QUADRANTS, num_patches=(hw // PATCH) ** 2)
    model.patchify = cut or patchify
    if args.break_mode == "no_pos":
        model.pos.requires_grad_(False).zero_()
    return model.to(args.device)


def run(args):
    """One run: frames -> models -> numbers -> report."""
    given = {}
    for flag, load in (("frames", foreign_frames), ("patchify", load_patchify), ("out", make_folder)):
        try:
            given[flag] = load(getattr(args, flag)) if getattr(args, flag) else None
        except ValueError as error:
            args.fail(f"argument --{flag}: {getattr(args, flag)} {error}")
        except OSError as error:
            args.fail(f"argument --out: {args.out} is not a folder that can be written to ({error.strerror})")
    if args.predict is not None:
        print(f"Your prediction of the trained probe: {args.predict:.2f}")
    frames = given["frames"] or cache_frames(args.episodes, args.seed, args.frame_stride)
    (T, H), hw = split_by_episode(frames.episodes), frames.images.shape[1]
    print(f"{args.out.name}: {len(T)} frames to train on, {len(H)} of other episodes held out; on {args.device}", flush=True)

    rec = start_recording(args.out / "vit.rrd.part") if args.rerun else None
    models = {name: new_vit(args, args.seed + i, hw, given["patchify"]) for i, name in enumerate(("trained", "random"))}
    history, live, began = [], sys.stdout.isatty(), time.perf_counter()
    for epoch in train(models["trained"], frames.images[T].to(args.device), frames.labels[T].to(args.device), epochs=args.epochs,
                       batch_size=args.batch_size, lr=args.lr, warmup=args.warmup, seed=args.seed,
                       interleave_bug=args.break_mode == "patch_interleave"):
        for i, step in enumerate(epoch.steps if rec else (), start=len(history) * len(epoch.steps)):
            rec.set_time("step", sequence=i)
            for name, value in zip(("loss", "lr"), step):
                rec.log(f"train/{name}", sys.modules["rerun"].Scalars(value))
        history.append(epoch)
        n, line = len(history), f"epoch {len(history):>3} of {args.epochs}  loss {epoch.loss:.3f}"
        if n % max(1, args.epochs // 6) == 0 or n == args.epochs:
            print("\r\x1b[K" * live + line, flush=True)
        elif live:                         # a line that rewrites itself; never in a redirected log
            left = (time.perf_counter() - began) / n * (args.epochs - n)
            print(f"\r\x1b[K{line}  {left:.0f} s left", end="", flush=True)

    m, maps = measure(args, frames, models, history)
    clean, clean_page = read_clean(args.clean, m) if args.mode != "clean" else (None, None)
    print("", *table(m, clean), "", sep="\n")
    if "block" in frames.masks:            # the frame in the middle by alignment, not the prettiest
        touch = on_grid(frames.masks["block"][maps["sample"]])
        middle = np.argsort(looks_at(maps["occlusion_trained"], touch)[1])[len(touch) // 2]
        print(*heat_maps(maps, touch, middle), "", sep="\n")
    words = [sentence(m)] + [
        f"This run is pinned at chance (ln 4): the loss ended at {m['train_ce']:.3f}, so the head knows nothing; the features still probe at "
        f"{m['probe_trained']:.2f}. What to do: a longer --warmup, more --epochs, or another --seed."] * m["pinned"]
    words += [lesson(m, clean)] if args.mode != "clean" else []
    print(*[textwrap.fill(text, 79) for text in words], sep="\n", flush=True)

    page = page_data(args, frames, models["trained"], history, m, maps, words, clean_page)
    write_whole(args.out / "viewer.html", fill_template(page).encode())
    if rec:
        record_frames(rec, frames, maps, "\n\n".join([*words, "\n".join(table(m, clean))]))
        rec.disconnect()                   # flushes
        os.replace(args.out / "vit.rrd.part", args.out / "vit.rrd")
        print(f"\nRecorded; to look at it: rerun {args.out}/vit.rrd")
    write_whole(args.out / "metrics.json", (json.dumps(m, indent=1, allow_nan=False) + "\n").encode())
    print(f"\nWritten: {args.out}/metrics.json, and to hover over in a browser: {args.out}/viewer.html")
    if args.predict is not None:
        print("", *grade(args.predict, m["probe_trained"]), sep="\n")


def main(argv=None):
    """Run with these flags (None: those of the command line); returns the exit status."""
    codecs.register_error("plain", lambda e: (e.object[e.start:e.end].translate(str.maketrans("░▒▓█×−", ".:+#x-")), e.end))
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="plain")                 # an encoding without block characters gets plain ones
    args = parse_args(argv)
    try:
        return run(args) or 0
    except KeyboardInterrupt:
        status, why = 130, "interrupted; no file is half-written"
    except OSError as error:
        status, why = 1, f"argument --out: {args.out} cannot be written: {error}"
    for part in args.out.glob("*.part"):
        part.unlink()
    print("\r\x1b[K" * sys.stderr.isatty() + f"vit.py: {why}", file=sys.stderr)
    return status
# endregion


if __name__ == "__main__":
    sys.exit(main())
