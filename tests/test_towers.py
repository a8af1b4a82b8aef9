"""TinyViT against the towers of `transformers` with the same weights, and each row of the README's table of what they add."""

import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import Dinov2Config, Dinov2Model, Dinov2WithRegistersModel, SiglipVisionConfig, SiglipVisionModel, ViTConfig, ViTModel

import vit
from running import ROOT
from towers import look, pairs, randomise, set_activation, set_epsilon, tiny_vit, to_tiny_vit, to_tower, tower

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
TANH = nn.GELU(approximate="tanh")
kinds = pytest.mark.parametrize("kind", [ViTModel, SiglipVisionModel, Dinov2Model])
dtypes = pytest.mark.parametrize("dtype", TOLERANCE)
shapes = pytest.mark.parametrize("dim, depth, heads, hw, batch, seed", [
    (96, 2, 3, 64, 3, 0), (32, 1, 4, 64, 1, 1), (48, 4, 2, 96, 2, 2), (24, 3, 1, 32, 5, 3)])


def same(a, b, relative=0):
    torch.testing.assert_close(a, b, atol=TOLERANCE[a.dtype], rtol=relative * TOLERANCE[a.dtype])


def distance(a, b):
    return (a - b).abs().max().item()


def pictures(batch=2, hw=64, seed=0, dtype=torch.float64):
    return torch.rand(batch, hw, hw, 3, dtype=dtype, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def embed(ours, images):
    """What enters TinyViT's first block, without the class token: (B, N, dim)."""
    return ours.patch_embed(vit.patchify(images, vit.PATCH)) + ours.pos[:, 1:]


def with_cls(ours, x):
    return torch.cat([(ours.cls + ours.pos[:, :1]).expand(len(x), -1, -1), x], dim=1)


@torch.no_grad()
def through_blocks(ours, x):
    """Tokens (B, S, dim) through all blocks, every token asking -> hidden states before and after each, attention (B, S, S) of each, normed end."""
    states, attentions = [x], []
    for block in ours.blocks:
        states.append(block(states[-1]))
        attentions.append(block.last_attn)
    return states, attentions, ours.norm(states[-1])


def same_function(ours, theirs, images):
    """Every hidden state, the attention of every layer and the features are the same."""
    out = look(theirs, images)
    x = embed(ours, images)
    states, attentions, end = through_blocks(ours, x if isinstance(theirs, SiglipVisionModel) else with_cls(ours, x))
    assert len(out.hidden_states) == len(states) == 1 + len(attentions) == 1 + len(out.attentions)
    for mine, its in zip(states + [end], [*out.hidden_states, out.last_hidden_state]):
        same(mine, its, relative=1)                            # these grow with depth
    for mine, its in zip(attentions, out.attentions):
        same(mine, its.mean(dim=1))
    if not isinstance(theirs, SiglipVisionModel):              # and as TinyViT runs by itself: the class token asks alone in the last block
        with torch.no_grad():
            same(ours.features(images), out.last_hidden_state[:, 0])
        for row, its in zip(ours.cls_rows, out.hidden_states):
            same(row, its[:, 0], relative=1)
        for block, its in zip(ours.blocks, out.attentions):
            same(block.last_attn, its.mean(dim=1)[:, :block.last_attn.shape[1]])
        assert [block.last_attn.shape[1] for block in ours.blocks] == [x.shape[1] + 1] * (len(ours.blocks) - 1) + [1]


@kinds
@dtypes
@shapes
def test_a_tower_s_weights_make_tiny_vit_the_same_function(kind, dtype, dim, depth, heads, hw, batch, seed):
    theirs, images = tower(kind, dim, depth, heads, hw=hw, seed=seed, dtype=dtype), pictures(batch, hw, seed, dtype)
    assert all(p.std() > 0.01 for name, p in theirs.named_parameters() if not name.endswith("lambda1"))     # truly random
    ours = tiny_vit(theirs)
    if kind is SiglipVisionModel:
        set_activation(ours, TANH)
    same_function(ours, theirs, images)


@kinds
@dtypes
@shapes
def test_tiny_vit_s_weights_make_a_tower_the_same_function(kind, dtype, dim, depth, heads, hw, batch, seed):
    torch.manual_seed(seed)
    ours = randomise(vit.TinyViT(dim, depth, heads, 4, num_patches=(hw // vit.PATCH) ** 2), seed).to(dtype).eval()
    theirs = tower(kind, dim, depth, heads, hw=hw, seed=seed + 10, dtype=dtype)
    to_tower(ours, theirs)
    same_function(set_activation(ours, TANH) if kind is SiglipVisionModel else ours, theirs, pictures(batch, hw, seed, dtype))


@kinds
@shapes
def test_weights_come_back_identical_and_what_is_left_over_has_a_row(kind, dim, depth, heads, hw, batch, seed):
    first, second = (tower(kind, dim, depth, heads, hw=hw, seed=s, layer_scale=True) for s in (seed, seed + 10))
    given, own = ({name: w.clone() for name, w in t.state_dict().items()} for t in (first, second))
    ours = tiny_vit(first)
    to_tower(ours, second)
    common = pairs(ours, second).keys()
    for name, w in second.state_dict().items():                # the second tower is the first now, save what only towers have
        assert torch.equal(w, given[name]) == (name in common) and torch.equal(w, own[name]) != (name in common), name
    left = {re.match(r"pooler|head|.*(mask_token|layer_scale)|", name)[0].split(".")[-1] for name in own if name not in common}
    assert left == {ViTModel: {"pooler"}, SiglipVisionModel: {"head"}, Dinov2Model: {"mask_token", "layer_scale"}}[kind]

    back = randomise(vit.TinyViT(dim, depth, heads, 4, num_patches=(hw // vit.PATCH) ** 2), seed=5)
    to_tiny_vit(second, back)
    only_ours = {"head.weight", "head.bias"} | ({"cls", "pos"} if kind is SiglipVisionModel else set())
    for (name, a), b in zip(ours.state_dict().items(), back.state_dict().values()):
        assert torch.equal(a, b) == (name not in only_ours), name
    assert torch.equal(ours.pos[:, 1:], back.pos[:, 1:])


@kinds
def test_every_weight_of_the_tower_counts_save_the_keys_bias(kind):
    theirs, images = tower(kind, 24, 2, 2, hw=32, dtype=torch.float64), pictures(hw=32)
    end = look(theirs, images).last_hidden_state
    for name, (_, w) in pairs(tiny_vit(theirs), theirs).items():       # so none could be copied wrongly unseen
        old = w.clone()
        w.add_(torch.randn_like(w))
        change = distance(look(theirs, images).last_hidden_state, end)
        assert change < 1e-12 if name.endswith("k_proj.bias") else change > 1e-3, name         # softmax takes out what all keys share
        w.copy_(old)


def test_a_weight_without_partner_is_an_error():
    theirs = tower(ViTModel, 24, 2, 2)
    with pytest.raises(KeyError, match="blocks.2.mlp.0.bias"):
        to_tiny_vit(theirs, vit.TinyViT(24, 3, 2, 4))
    with pytest.raises(KeyError, match="blocks.2"):
        to_tower(vit.TinyViT(24, 2, 2, 4), tower(ViTModel, 24, 3, 2))


# ---- what the real tower adds: a test for each row of the README's table.  Left out it shows, taken over it does not.

def test_row_gelu_tanh():
    theirs, images = tower(SiglipVisionModel, 48, 2, 3, dtype=torch.float64), pictures()
    assert SiglipVisionConfig().hidden_act == "gelu_pytorch_tanh" and ViTConfig().hidden_act == Dinov2Config().hidden_act == "gelu"
    end, ours = look(theirs, images).last_hidden_state, tiny_vit(theirs)
    assert distance(through_blocks(ours, embed(ours, images))[2], end) > 1e-4
    same(through_blocks(set_activation(ours, TANH), embed(ours, images))[2], end)


def test_row_layer_norm_epsilon():
    assert [c().layer_norm_eps for c in (ViTConfig, SiglipVisionConfig, Dinov2Config)] == [1e-12, 1e-6, 1e-6] and vit.Block(8, 1).norm1.eps == 1e-6
    theirs, images = tower(ViTModel, 48, 2, 3, dtype=torch.float64, layer_norm_eps=1e-12), pictures()
    end, ours = look(theirs, images).last_hidden_state[:, 0], tiny_vit(theirs)
    with torch.no_grad():
        assert distance(ours.features(images), end) > 1e-7
        same(set_epsilon(ours, 1e-12).features(images), end)


def test_row_no_class_token():
    theirs, images = tower(SiglipVisionModel, 48, 2, 3, dtype=torch.float64), pictures()
    end, ours = look(theirs, images).last_hidden_state, set_activation(tiny_vit(theirs), TANH)
    x = embed(ours, images)
    assert end.shape[1] == vit.NUM_PATCHES and distance(through_blocks(ours, with_cls(ours, x))[2][:, 1:], end) > 1e-2
    same(through_blocks(ours, x)[2], end)


def test_row_attention_pooling():
    theirs, images = tower(SiglipVisionModel, 48, 2, 3, dtype=torch.float64), pictures()
    ours, head = set_activation(tiny_vit(theirs), TANH), theirs.head
    end, pooled = through_blocks(ours, embed(ours, images))[2], look(theirs, images).pooler_output
    B, N, dim = end.shape
    wq, wk, wv = head.attention.in_proj_weight.chunk(3)
    bq, bk, bv = head.attention.in_proj_bias.chunk(3)
    with torch.no_grad():
        q = (head.probe @ wq.T + bq).expand(B, -1, -1)         # one learned query for all pictures
        q, k, v = (t.reshape(B, -1, 3, dim // 3).transpose(1, 2) for t in (q, end @ wk.T + bk, end @ wv.T + bv))
        x = ((q @ k.mT / (dim // 3) ** 0.5).softmax(dim=-1) @ v).transpose(1, 2).reshape(B, dim)
        x = x @ head.attention.out_proj.weight.T + head.attention.out_proj.bias        # the probe itself is not added
        h = F.layer_norm(x, (dim,), head.layernorm.weight, head.layernorm.bias, 1e-6)
        h = F.gelu(h @ head.mlp.fc1.weight.T + head.mlp.fc1.bias, approximate="tanh") @ head.mlp.fc2.weight.T + head.mlp.fc2.bias
        same(x + h, pooled)
        assert min(distance(other, pooled) for other in (x, x + head.probe[0] + h, end.mean(dim=1), end[:, 0])) > 1e-2


def test_row_tanh_pooler():
    theirs, images = tower(ViTModel, 48, 2, 3, dtype=torch.float64), pictures()
    pooled = look(theirs, images).pooler_output
    with torch.no_grad():
        features = tiny_vit(theirs).features(images)
        linear = features @ theirs.pooler.dense.weight.T + theirs.pooler.dense.bias
    assert distance(features, pooled) > 1e-2 and distance(linear, pooled) > 1e-2
    same(linear.tanh(), pooled)
    assert ViTModel(theirs.config, add_pooling_layer=False).pooler is None
    dino = tower(Dinov2Model, 48, 2, 3, dtype=torch.float64)   # DINOv2's pooler_output is our features, nothing added
    same(tiny_vit(dino).features(images).detach(), look(dino, images).pooler_output)


def test_row_layer_scale():
    theirs, images = tower(Dinov2Model, 48, 2, 3, dtype=torch.float64, layer_scale=True), pictures()
    ours = tiny_vit(theirs)
    with pytest.raises(AssertionError):
        same_function(ours, theirs, images)
    with torch.no_grad():                                      # scale * (W h + b) is (scale * W) h + scale * b
        for block, layer in zip(ours.blocks, theirs.encoder.layer):
            for linear, scale in ((block.proj, layer.layer_scale1.lambda1), (block.mlp[2], layer.layer_scale2.lambda1)):
                linear.weight.mul_(scale[:, None])
                linear.bias.mul_(scale)
    same_function(ours, theirs, images)


def test_row_registers():
    images, R = pictures(), 4
    plain = tower(Dinov2Model, 48, 2, 3, dtype=torch.float64, layer_scale=True)
    none, some = (tower(Dinov2WithRegistersModel, 48, 2, 3, dtype=torch.float64, num_register_tokens=n) for n in (0, R))
    assert none.load_state_dict(plain.state_dict(), strict=False).missing_keys == ["embeddings.register_tokens"]
    same(look(none, images).last_hidden_state, look(plain, images).last_hidden_state)          # none of them: Dinov2Model
    ours, out = tiny_vit(some), look(some, images)
    x = with_cls(ours, embed(ours, images))
    assert distance(through_blocks(ours, x)[2][:, 0], out.last_hidden_state[:, 0]) > 1e-2
    registers = some.embeddings.register_tokens.expand(len(x), -1, -1)                         # after the class token, and without a tag
    states, attentions, end = through_blocks(ours, torch.cat([x[:, :1], registers, x[:, 1:]], dim=1))
    assert end.shape[1] == 1 + R + vit.NUM_PATCHES
    for mine, its in zip([*states, end, *attentions], [*out.hidden_states, out.last_hidden_state, *(a.mean(dim=1) for a in out.attentions)]):
        same(mine, its)


def test_row_gated_mlp():
    class Gated(nn.Module):
        def __init__(self, theirs):
            super().__init__()
            self.up, self.gate, self.down = theirs.up_proj, theirs.gate_proj, theirs.down_proj

        def forward(self, h):
            return self.down(F.silu(self.gate(h)) * self.up(h))

    theirs, images = tower(Dinov2Model, 48, 2, 3, dtype=torch.float64, use_swiglu_ffn=True), pictures()
    with pytest.raises(KeyError, match="mlp"):
        tiny_vit(theirs)                                       # three matrices where ours has two
    plain = tower(Dinov2Model, 48, 2, 3, dtype=torch.float64)
    plain.load_state_dict({name: w for name, w in theirs.state_dict().items() if ".mlp." not in name}, strict=False)
    ours = tiny_vit(plain)
    for block, layer in zip(ours.blocks, theirs.encoder.layer):
        block.mlp = Gated(layer.mlp)
    assert theirs.encoder.layer[0].mlp.up_proj.weight.shape == (2 / 3 * 4 * 48, 48)
    same_function(ours, theirs, images)


def test_row_mask_token():
    theirs, images = tower(Dinov2Model, 48, 2, 3, dtype=torch.float64), pictures()
    masked = torch.rand(len(images), vit.NUM_PATCHES, generator=torch.Generator().manual_seed(0)) < 0.4
    ours = tiny_vit(theirs)
    end = look(theirs, images, bool_masked_pos=masked).last_hidden_state
    assert distance(through_blocks(ours, with_cls(ours, embed(ours, images)))[2], end) > 1e-2
    with torch.no_grad():                                      # in the patch's place, and with the place's tag
        x = torch.where(masked[..., None], theirs.embeddings.mask_token + ours.pos[:, 1:], embed(ours, images))
    same(through_blocks(ours, with_cls(ours, x))[2], end)


@kinds
def test_row_other_image_sizes(kind):
    flag = {} if kind is Dinov2Model else {"interpolate_pos_encoding": True}
    theirs, images = tower(kind, 48, 2, 3, hw=64, dtype=torch.float32), pictures(hw=96, dtype=torch.float32)
    if flag:
        with pytest.raises((ValueError, RuntimeError)):
            look(theirs, images)
    ours, end = tiny_vit(theirs), look(theirs, images, **flag).last_hidden_state
    if kind is SiglipVisionModel:
        set_activation(ours, TANH)
    with pytest.raises(RuntimeError):
        embed(ours, images)
    pos = ours.pos.data
    for mode in ("bilinear", "bicubic"):                       # the table as a picture of 8 x 8 with dim channels, to 12 x 12
        table = F.interpolate(pos[0, 1:].T.unflatten(1, (8, 8))[None], size=(12, 12), mode=mode, align_corners=False)
        ours.pos = nn.Parameter(torch.cat([pos[:, :1], table.flatten(2).mT], dim=1))
        x = embed(ours, images)
        mine = through_blocks(ours, x if kind is SiglipVisionModel else with_cls(ours, x))[2]
        if mode == "bilinear":
            assert distance(mine, end) > 1e-2
    same(mine, end)


@kinds
def test_row_softmax_in_float32(kind):
    theirs, images = tower(kind, 48, 2, 3, dtype=torch.float64), pictures()
    ours = set_activation(tiny_vit(theirs), TANH if kind is SiglipVisionModel else nn.GELU())
    x = embed(ours, images)
    end = through_blocks(ours, x if kind is SiglipVisionModel else with_cls(ours, x))[2]
    assert (1e-9 < distance(look(theirs, images, own_softmax=False).last_hidden_state, end) < 1e-5) == (kind is not Dinov2Model)
    same(look(theirs, images).last_hidden_state, end)
    theirs.set_attn_implementation("sdpa")                     # another path of the library, float64 throughout
    with torch.no_grad():
        same(theirs(images.permute(0, 3, 1, 2)).last_hidden_state, end)


def test_every_row_of_the_readme_is_a_test():
    section = re.search(r"^## In the real towers\n(.*?)^## ", (ROOT / "README.md").read_text("utf-8"), re.S | re.M)[1]
    table = re.search(r"^\| what \| where \|.*?\| test \|\n\|[-|]+\n((?:\|.*\n)+)", section, re.M)[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert all(len(row) == 4 and all(row) for row in rows)
    named = [row[3].strip("`") for row in rows]
    assert sorted(named) == sorted(name for name, thing in globals().items() if name.startswith("test_row_") and callable(thing))


# ---- rollout, against the recipe as published

def published_rollout(attentions, swapped=False):
    """Abnar & Zuidema 2020, section 3: attentions (B, heads, S, S) of every layer, first layer first -> (B, S, S).  In numpy, full matrices."""
    S = attentions[0].shape[-1]
    total = np.eye(S)
    for attention in attentions:
        A = 0.5 * attention.numpy().mean(axis=1) + 0.5 * np.eye(S)
        A /= A.sum(axis=-1, keepdims=True)
        total = total @ A if swapped else A @ total            # A_i of layer i times the rollout of the layers below it
    return total


@dtypes
@shapes
@pytest.mark.parametrize("kind", [ViTModel, Dinov2Model])
def test_cls_rollout_is_the_published_recipe_on_the_tower_s_own_attention(kind, dtype, dim, depth, heads, hw, batch, seed):
    theirs, images = tower(kind, dim, depth, heads, hw=hw, seed=seed, dtype=dtype), pictures(batch, hw, seed, dtype)
    attentions, g = look(theirs, images).attentions, hw // vit.PATCH
    ours = vit.cls_rollout(tiny_vit(theirs), images)           # times the number of patches: 1 is a flat map

    def away(theirs):
        return np.abs(ours - theirs[:, 0, 1:].reshape(batch, g, g)).max() * g * g

    assert ours.shape == (batch, g, g) and away(published_rollout(attentions)) < TOLERANCE[dtype]
    assert depth == 1 or away(published_rollout(attentions, swapped=True)) > 1e-2              # the wrong order would be caught
    assert depth == 1 or away(published_rollout(attentions[1:])) > 1e-2 and away(published_rollout(attentions[:-1])) > 1e-2
