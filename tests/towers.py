"""Weights both ways between vit.TinyViT and the vision towers of `transformers`; nothing is downloaded.

The towers: ViTModel, SiglipVisionModel, Dinov2Model, Dinov2WithRegistersModel.  What they have and TinyViT has not is
listed in the README, "In the real towers", and shown row by row in test_towers.py.
"""

import contextlib
import re
from unittest import mock

import torch
from torch import nn
from torch.nn import functional as F
from transformers import Dinov2Model, Dinov2WithRegistersModel, SiglipVisionModel, ViTModel

import vit

NAMES = {  # theirs, as a regular expression -> ours, with q, k, v for the three parts of qkv
    r"embeddings\.patch_embedding(s\.projection)?\.": "patch_embed.",
    r"embeddings\.cls_token": "cls",
    r"embeddings\.position_embedding(s|\.weight)": "pos",
    r"(encoder\.)?layers?\.(?P<i>\d+)\.(layernorm_before|layer_norm1|norm1)\.": r"blocks.\g<i>.norm1.",
    r"(encoder\.)?layers?\.(?P<i>\d+)\.(self_attn|attention)\.(?P<x>[qkv])_proj\.": r"blocks.\g<i>.\g<x>.",
    r"(encoder\.)?layers?\.(?P<i>\d+)\.(self_attn|attention)\.(o|out)_proj\.": r"blocks.\g<i>.proj.",
    r"(encoder\.)?layers?\.(?P<i>\d+)\.(layernorm_after|layer_norm2|norm2)\.": r"blocks.\g<i>.norm2.",
    r"(encoder\.)?layers?\.(?P<i>\d+)\.mlp\.fc1\.": r"blocks.\g<i>.mlp.0.",
    r"(encoder\.)?layers?\.(?P<i>\d+)\.mlp\.fc2\.": r"blocks.\g<i>.mlp.2.",
    r"(post_)?layernorm\.": "norm.",
}


def our_name(name):
    """What TinyViT calls this weight of a tower; None if it has no such weight."""
    return next((re.sub("^" + theirs, ours, name) for theirs, ours in NAMES.items() if re.match(theirs, name)), None)


def pairs(ours, theirs):
    """{their name: (view into TinyViT's weights, the tower's tensor)}, both of one shape, for all that both have.

    The views share memory with `ours`, so copy_ maps either way.  A KeyError names weights of TinyViT that found no
    partner; allowed are the head, and class token with its tag where the tower has none (SigLIP)."""
    views, state = {}, theirs.state_dict()
    for name, w in ours.state_dict().items():
        views |= {name.replace("qkv", x): part for x, part in zip("qkv", w.chunk(3))} if ".qkv." in name else {name: w}
    views["patch_embed.weight"] = views["patch_embed.weight"].unflatten(1, (vit.PATCH, vit.PATCH, -1)).permute(0, 3, 1, 2)  # channels first
    if "embeddings.cls_token" not in state:
        views["pos"] = views["pos"][0, 1:]
        del views["cls"]
    found = {name: (views[our_name(name)], w) for name, w in state.items() if our_name(name)}
    if lost := views.keys() - {our_name(name) for name in found} - {"head.weight", "head.bias"}:
        raise KeyError(f"{type(theirs).__name__} has no {sorted(lost)}")
    return found


def to_tower(ours, theirs):
    """Copy TinyViT's weights into a tower of the same shape.  What only the tower has stays as it is."""
    for view, w in pairs(ours, theirs).values():
        w.copy_(view)


def to_tiny_vit(theirs, ours):
    """Copy a tower's weights into a TinyViT of the same shape.  What only TinyViT has stays as it is."""
    for view, w in pairs(ours, theirs).values():
        view.copy_(w)


def randomise(module, seed):
    """Move every weight, in place.  The library starts biases and class token at zero, norms and layer scale at one: that hides mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return module


def tower(kind, dim, depth, heads, *, hw=64, seed=0, dtype=torch.float32, layer_scale=False, **config):
    """A random tower, `kind` one of the four classes, in eval mode with eager attention.  Layer scale is one unless asked for."""
    torch.manual_seed(seed)
    mlp = {"intermediate_size": 4 * dim} if kind in (ViTModel, SiglipVisionModel) else {"mlp_ratio": 4}
    config = {"layer_norm_eps": 1e-6, "attn_implementation": "eager", **mlp, **config}
    model = kind(kind.config_class(hidden_size=dim, num_hidden_layers=depth, num_attention_heads=heads, image_size=hw,
                                   patch_size=vit.PATCH, **config))
    randomise(model, seed)
    for name, p in model.named_parameters():
        if name.endswith("lambda1") and not layer_scale:
            p.data.fill_(1)
    return model.to(dtype).eval()


def tiny_vit(theirs):
    """A TinyViT of the tower's shape, dtype and weights, in eval mode; its own activation (GELU, erf) and epsilon (1e-6)."""
    c = theirs.config
    ours = vit.TinyViT(c.hidden_size, c.num_hidden_layers, c.num_attention_heads, 4, num_patches=(c.image_size // vit.PATCH) ** 2)
    ours = randomise(ours, seed=99).to(theirs.dtype).eval()
    to_tiny_vit(theirs, ours)
    return ours


def set_activation(ours, activation):
    """Another activation, a module, in every block; returns `ours`."""
    for block in ours.blocks:
        block.mlp[1] = activation
    return ours


def set_epsilon(ours, eps):
    """Another epsilon in every layer norm; returns `ours`."""
    for module in ours.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = eps
    return ours


@contextlib.contextmanager
def softmax_in_own_dtype():
    """Eager ViTModel and SiglipVisionModel ask for softmax(dtype=float32) even when their weights are float64; here it is not granted."""
    with mock.patch.object(F, "softmax", lambda x, dim, dtype=None: x.softmax(dim)):
        yield


@torch.no_grad()
def look(theirs, images, own_softmax=True, **kwargs):
    """The tower on images (B, H, W, 3): last_hidden_state, pooler_output, hidden_states and attentions (B, heads, S, S) of every layer."""
    with softmax_in_own_dtype() if own_softmax and theirs.dtype == torch.float64 else contextlib.nullcontext():
        return theirs(images.permute(0, 3, 1, 2), output_attentions=True, output_hidden_states=True, **kwargs)
