"""Lawful page data without a run: what `vit.py` would put into the slot of `viewer.html`.

Real runs are tested too; this module makes the pages that a smoke run cannot give cheaply: hostile
strings, frames of 96 pixels, objects without masks, a pinned run, a broken run with its clean sibling.
Everything is drawn and computed with numpy alone, so that a mistake in `vit.py` cannot hide in here.
"""

import base64
import json
import struct
import zlib

import numpy as np

HALF_EXTENT = 0.43  # metres from the centre of the picture to its edge
NAMES = ["NE", "NW", "SW", "SE"]


def png(image):
    """uint8 (H, W, 3) -> the bytes of a PNG file (8 bit RGB, no filter, one IDAT chunk)."""
    h, w, _ = image.shape

    def chunk(kind, body):
        crc = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", crc)

    rows = b"".join(b"\0" + image[y].tobytes() for y in range(h))
    header = struct.pack(">IIBBBBB", w, h, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def b64(raw):
    return base64.b64encode(raw).decode()


def _tee(px, py, x, y, yaw):
    """Signed inside test of the T block (bar 0.12 x 0.03 m, stem 0.03 x 0.09 m) at a pose."""
    c, s = np.cos(yaw), np.sin(yaw)
    u, v = c * (px - x) + s * (py - y), -s * (px - x) + c * (py - y)
    bar = (abs(u) <= 0.06) & (abs(v) <= 0.015)
    stem = (abs(u) <= 0.015) & (abs(v + 0.06) <= 0.045)
    return bar | stem


def scene(hw, tee, pusher):
    """One picture: uint8 (hw, hw, 3), and its pixel masks {"block", "pusher", "target"}: bool (hw, hw)."""
    axis = (np.arange(hw) + 0.5) / hw * 2 * HALF_EXTENT - HALF_EXTENT
    px, py = np.meshgrid(axis, -axis)
    chequer = (np.floor((px + 0.45) / 0.05625) + np.floor((py + 0.45) / 0.05625)) % 2
    image = np.where(chequer[..., None] > 0, 220.0, 160.0).repeat(3, axis=2)
    image[np.maximum(abs(px), abs(py)) > 0.39] = 153
    target = _tee(px, py, 0, 0, 0)
    block = _tee(px, py, *tee)
    disc = (px - pusher[0]) ** 2 + (py - pusher[1]) ** 2 <= 0.018**2
    image[target] = 0.5 * image[target] + 0.5 * np.array([89, 204, 102])
    image[block] = [115, 128, 242]
    image[disc] = [230, 102, 89]
    return image.astype(np.uint8), {"block": block, "pusher": disc, "target": target}


def order_of(hw, patch, broken=False):
    """int (N, patch*patch*3): which value of the flat (H, W, 3) frame is the k-th value of token t."""
    g = hw // patch
    flat = np.arange(hw * hw * 3).reshape(g, patch, g, patch, 3)
    if not broken:
        flat = flat.transpose(0, 2, 1, 3, 4)
    return flat.reshape(g * g, patch * patch * 3)


def _touched(mask, patch):
    """bool (H, W) -> bool (N,): does the object touch the patch?"""
    g = mask.shape[0] // patch
    return mask.reshape(g, patch, g, patch).any(axis=(1, 3)).reshape(-1)


def _unit(values):
    mean = values.mean()
    return np.round(values / mean, 4) if mean > 0 else values


def _maps(rng, block, sees_block):
    n = len(block)
    g = int(n**0.5)
    where = block if sees_block else np.roll(block.reshape(g, g), g // 2, axis=1).reshape(-1)
    rollout = 0.25 + 0.15 * rng.random(n) + where * rng.uniform(4, 9, n)
    occlusion = where * rng.uniform(0.5, 2.0, n) + np.maximum(0, rng.normal(-0.02, 0.02, n))
    return {
        "rollout_trained": _unit(rollout).tolist(),
        "rollout_random": _unit(1 + 0.12 * rng.standard_normal(n).clip(-2, 2)).tolist(),
        "occlusion_trained": _unit(occlusion).tolist(),
        "occlusion_random": _unit(np.maximum(0, rng.normal(0.0, 1.0, n)) + 0.8 * block).tolist(),
    }


def _lens(rng, label, depth):
    rows = [np.array([0.31, 0.22, 0.27, 0.20])]  # before the first block nothing of the picture is in the row
    for step in range(depth):
        logits = rng.normal(0, 0.4, 4)
        logits[label] += 1.6 * (step + 1)
        rows.append(np.exp(logits) / np.exp(logits).sum())
    return [np.round(row, 5).tolist() for row in rows]


def _curve(epochs, warmup, pinned, rng):
    e = np.arange(1, epochs + 1)
    ln4 = np.log(4)
    if pinned:
        loss = ln4 + 0.004 * rng.standard_normal(epochs) + 0.02 * np.exp(-e / 4)
    else:
        loss = 0.08 + (ln4 - 0.08) / (1 + np.exp((e - 0.38 * epochs) / (0.07 * epochs))) + 0.012 * rng.standard_normal(epochs)
    lr = 1e-3 * np.minimum(1, e / warmup)
    return np.round(loss, 5).tolist(), np.round(lr, 8).tolist()


def _metrics(mode, pinned, masks, epochs, loss):
    looks = {}
    block_hit = {"patch_interleave": 0.27}.get(mode, 0.96)
    for kind in ("rollout", "occlusion"):
        for obj, hit, mass in (("block", block_hit, 9.1), ("pusher", 0.05, 1.4), ("target", 0.22, 2.3)):
            for model, share in (("trained", 1.0), ("random", 0.3)):
                looks[f"{kind}_{obj}_hit_{model}"] = round(hit * share, 3) if masks else None
                looks[f"{kind}_{obj}_mass_{model}"] = round(1 + (mass - 1) * share, 3) if masks else None
    silent = mode in ("clean", "patch_interleave", "patchify")
    trained = 0.87 if silent else 0.59
    gap = round(trained - 0.59, 3)
    return {
        "seed": 0, "episodes": 40, "frame_stride": 4, "dim": 96, "depth": 2, "heads": 3, "epochs": epochs,
        "warmup": 1 if pinned else 15, "batch_size": 32, "lr": 0.001, "smoke": False, "predict": None,
        "break_mode": None if mode in ("clean", "patchify") else mode,
        "num_frames": 740, "num_train": 554, "num_test": 186,
        "probe_trained": trained, "probe_trained_ci": [trained - 0.07, trained + 0.06],
        "probe_random": 0.59, "probe_random_ci": [0.51, 0.67],
        "probe_gap": gap, "probe_gap_ci": [gap - 0.09, gap + 0.09],
        "probe_pixels": 0.49, "probe_cnn": 0.62, "majority": 0.33, "chance": 0.25,
        "train_ce": loss[-1], "escape_epoch": None if pinned else int(0.4 * epochs), "pinned": pinned,
        "rollout_peak_trained": 8.1, "rollout_peak_random": 1.3,
        "alignment": looks["occlusion_block_hit_trained"],
        "verdict": "pinned" if pinned else ("aligned" if block_hit > 0.5 else "misaligned"),
        "numpy": "2.0.0", "torch": "2.13.0", **looks,
    }  # fmt: skip


def page_data(mode="clean", hw=64, frames=24, masks=True, pinned=False, sibling=False, seed=0, depth=2, **replace):
    """One page's data as a dict. `replace` overwrites top-level keys (title, sentence, names, ...)."""
    rng = np.random.default_rng(seed)
    patch, epochs = 8, 30
    n = (hw // patch) ** 2
    loss, lr = _curve(epochs, 1 if pinned else 15, pinned, rng)
    out = []
    for i in range(frames):
        label = i % 4
        bearing = (label + rng.uniform(0.12, 0.88)) * np.pi / 2
        far = rng.uniform(0.12, 0.26)
        tee = (far * np.cos(bearing), far * np.sin(bearing), rng.uniform(-np.pi, np.pi))
        image, objects = scene(hw, tee, (tee[0] + 0.1 * np.cos(tee[2]), tee[1] + 0.1 * np.sin(tee[2])))
        out.append({
            "png": b64(png(image)), "label": label, "episode": 30 + i // 3, "index": 554 + 7 * i,
            "masks": {k: b64(np.packbits(m.ravel()).tobytes()) for k, m in objects.items()} if masks else {},
            "maps": _maps(rng, _touched(objects["block"], patch), mode != "patch_interleave"),
            "lens": _lens(rng, label, depth),
        })  # fmt: skip
    tags = None if mode == "no_pos" else np.arange(n)
    if mode == "shuffle_pos":
        tags = rng.permutation(n)
    data = {
        "version": 1,
        "title": "seed 0" + ("" if mode == "clean" else f", --break {mode}") + (", --warmup 1" if pinned else ""),
        "mode": mode,
        "sentence": "Trained 0.87 > random 0.59 > majority 0.33 > chance 0.25: the order holds, and the gap of "
                    "+0.28 [0.19, 0.37] is clear of zero.",
        "lesson": "The loss ended at ln 4; try a longer --warmup." if pinned else "" if mode == "clean" else "The accuracy does not tell: the probe of this run is as good as the "
                  "clean one's. What it looks at does: compare the occlusion maps.",
        "pinned": pinned,
        "metrics": _metrics(mode, pinned, masks, epochs, loss),
        "names": NAMES, "hw": hw, "patch": patch, "loss": loss, "lr": lr,
        "order": b64(order_of(hw, patch, mode == "patch_interleave").astype("<u2").tobytes()),
        "tags": None if tags is None else tags.tolist(),
        "frames": out,
        "sibling": None,
    }  # fmt: skip
    if sibling:
        clean = page_data("clean", hw, frames, masks, seed=seed, depth=depth)
        del clean["sibling"]
        clean["frames"] = [{k: v for k, v in f.items() if k not in ("png", "masks")} for f in clean["frames"]]
        data["sibling"] = clean
    data.update(replace)
    return data


def fill(template, data):
    """Put data into the template's slot; every character that could end the element is escaped."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))  # ASCII only, so U+2028 and U+2029 are escaped too
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    before, slot, after = template.partition('<script id="data" type="application/json">null</script>')
    if not slot:
        raise ValueError("the template has no data slot")
    return before + slot.replace("null", text) + after
