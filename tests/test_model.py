"""TinyViT against transformers' ViTModel with the same weights, and the properties it must have."""

import math

import pytest
import torch
from transformers import ViTConfig, ViTModel

import vit


def reference(dim, depth, heads, seed=0, hw=64):
    """A ViTModel of the same shape with random weights, eager attention, in eval mode."""
    torch.manual_seed(seed)
    config = ViTConfig(hidden_size=dim, num_hidden_layers=depth, num_attention_heads=heads, intermediate_size=4 * dim,
                       image_size=hw, patch_size=vit.PATCH, layer_norm_eps=1e-6, hidden_dropout_prob=0.0,
                       attention_probs_dropout_prob=0.0, attn_implementation="eager")
    model = ViTModel(config, add_pooling_layer=False).eval()
    with torch.no_grad():                                      # the library starts biases and class token at zero, which hides mistakes
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return model


def copy_weights(theirs, ours):
    """The weights of a ViTModel into a TinyViT.  The patch convolution's kernel is channels first, ours channels last."""
    e = theirs.embeddings
    with torch.no_grad():
        ours.patch_embed.weight.copy_(e.patch_embeddings.projection.weight.permute(0, 2, 3, 1).flatten(1))
        ours.patch_embed.bias.copy_(e.patch_embeddings.projection.bias)
        ours.cls.copy_(e.cls_token)
        ours.pos.copy_(e.position_embeddings)
        ours.norm.load_state_dict(theirs.layernorm.state_dict())
        state = theirs.state_dict()
        for i, block in enumerate(ours.blocks):
            names = [name for name in state if f".{i}." in name and "layer" in name]

            def find(*parts):
                name, = [n for n in names if all(p in n for p in parts)]
                return state[name]

            for kind in ("weight", "bias"):
                qkv = [find(*alias, kind) for alias in (Q(names), K(names), V(names))]
                getattr(block.qkv, kind).copy_(torch.cat(qkv))
                getattr(block.proj, kind).copy_(find(*O(names), kind))
                getattr(block.norm1, kind).copy_(find("layernorm_before", kind))
                getattr(block.norm2, kind).copy_(find("layernorm_after", kind))
                getattr(block.mlp[0], kind).copy_(find(*UP(names), kind))
                getattr(block.mlp[2], kind).copy_(find(*DOWN(names), kind))


def alias(*choices):
    """The library has renamed its modules over the years; take the spelling that this version has."""
    return lambda names: next(parts for parts in choices if any(all(p in n for p in parts) for n in names))


Q, K, V = (alias((f"attention.{x}.",), (f"attention.attention.{x}.",), (f".{y}.",)) for x, y in (("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj")))
O = alias(("attention.output.dense.",), (".o_proj.",), (".out_proj.",))
UP, DOWN = alias(("intermediate.dense.",), (".fc1.",), (".up_proj.",)), alias((".output.dense.", "layer"), (".fc2.",), (".down_proj.",))


@pytest.mark.parametrize("dim, depth, heads, hw, batch, seed", [(96, 2, 3, 64, 3, 0), (32, 1, 4, 64, 1, 1), (48, 4, 2, 96, 2, 2), (24, 3, 1, 32, 5, 3)])
def test_equals_vit_model(dim, depth, heads, hw, batch, seed):
    theirs = reference(dim, depth, heads, seed, hw)
    ours = vit.TinyViT(dim, depth, heads, 4, num_patches=(hw // vit.PATCH) ** 2).eval()
    copy_weights(theirs, ours)
    images = torch.rand(batch, hw, hw, 3) * 2 - 1
    with torch.no_grad():
        out = theirs(images.permute(0, 3, 1, 2), output_attentions=True)
        features = ours.features(images)
    torch.testing.assert_close(features, out.last_hidden_state[:, 0], atol=1e-5, rtol=1e-5)
    for block, attention in zip(ours.blocks, out.attentions):
        rows = block.last_attn.shape[1]
        torch.testing.assert_close(block.last_attn, attention.mean(dim=1)[:, :rows], atol=1e-5, rtol=1e-5)
    assert ours.blocks[-1].last_attn.shape[1] == 1             # only the class token asks in the last block
    theirs.embeddings.position_embeddings.data.add_(torch.randn_like(theirs.embeddings.position_embeddings))
    with torch.no_grad():                                      # and the comparison can fail
        assert (theirs(images.permute(0, 3, 1, 2)).last_hidden_state[:, 0] - features).abs().max() > 1e-2


def test_the_last_block_asking_only_the_class_token_is_the_full_block():
    torch.manual_seed(0)
    block, x = vit.Block(48, 3).eval(), torch.randn(2, 10, 48)
    full = block(x)
    full_attn = block.last_attn
    torch.testing.assert_close(block(x, cls_only=True), full[:, :1])
    torch.testing.assert_close(block.last_attn, full_attn[:, :1])
    assert full.shape == (2, 10, 48) and block(x, cls_only=True).shape == (2, 1, 48)


def shuffled(images, perm):
    """The same pictures with their 64 patches in another order."""
    B, p, g = len(images), vit.PATCH, vit.GRID
    patches = images.reshape(B, g, p, g, p, 3).permute(0, 1, 3, 2, 4, 5).reshape(B, g * g, p, p, 3)[:, perm]
    return patches.reshape(B, g, g, p, p, 3).permute(0, 1, 3, 2, 4, 5).reshape(B, g * p, g * p, 3)


def test_without_tags_the_order_of_the_patches_does_not_matter_and_with_them_it_does():
    torch.manual_seed(0)
    model = vit.TinyViT(48, 2, 3, 4).double().eval()
    images = torch.rand(3, 64, 64, 3, dtype=torch.float64) * 2 - 1
    for seed in range(5):
        perm = torch.randperm(64, generator=torch.Generator().manual_seed(seed))
        assert (model.features(images) - model.features(shuffled(images, perm))).abs().max() > 1e-4
    model.pos.data.zero_()
    for seed in range(5):
        perm = torch.randperm(64, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(model.features(images), model.features(shuffled(images, perm)), atol=1e-12, rtol=1e-12)


def test_shuffling_the_tags_is_moving_the_patches_the_other_way():
    torch.manual_seed(0)
    model, images = vit.TinyViT(48, 2, 3, 4).double().eval(), torch.rand(2, 64, 64, 3, dtype=torch.float64)
    perm = torch.randperm(64)                                  # token t wears tag perm[t]: tag s is on token inverse[s]
    torch.testing.assert_close(model.features(images, shuffle_pos=perm), model.features(shuffled(images, perm.argsort())))


def test_attention_is_kept_in_eval_mode_only_and_is_a_distribution():
    model = vit.TinyViT(24, 2, 2, 4)
    model.train()(torch.rand(2, 64, 64, 3))
    assert all(block.last_attn is None for block in model.blocks) and model.cls_rows is None
    model.eval()(torch.rand(2, 64, 64, 3))
    for block in model.blocks:
        torch.testing.assert_close(block.last_attn.sum(dim=-1), torch.ones(block.last_attn.shape[:2]))
    assert len(model.cls_rows) == 3 and torch.equal(model.cls_rows[0][0], model.cls_rows[0][1])   # before any block: no picture in it


def test_shapes_and_start_values():
    torch.manual_seed(0)
    model = vit.TinyViT(96, 2, 3, 4)
    assert model.cls.abs().max() == 0 and model.pos.shape == (1, 65, 96) and 0.018 < model.pos.std() < 0.022
    assert model(torch.zeros(2, 64, 64, 3)).shape == (2, 4) and model.features(torch.zeros(2, 64, 64, 3)).shape == (2, 96)
    x = torch.rand(2, 64, 64, 3)
    torch.testing.assert_close(model.eval().encode(vit.patchify(x, 8)), model.features(x))
    torch.testing.assert_close(model.head(model.features(x)), model(x))


def test_training_learns_what_is_learnable_and_warm_up_is_linear():
    torch.manual_seed(0)
    images = torch.full((64, 64, 64, 3), -0.9)
    labels = torch.arange(64) % 4
    for i, q in enumerate(labels.tolist()):                    # a bright patch whose brightness is the label
        images[i, 8:16, 8:16] = q / 2 - 0.5
    model = vit.TinyViT(24, 2, 2, 4)
    history = list(vit.train(model, images, labels, epochs=30, batch_size=16, lr=3e-3, warmup=5, seed=0))
    steps = [step for epoch in history for step in epoch.steps]
    assert len(steps) == 30 * 4 and [lr for _, lr in steps[:20]] == pytest.approx([3e-3 * (i + 1) / 20 for i in range(20)])
    assert all(lr == 3e-3 for _, lr in steps[20:])
    assert history[0].loss == pytest.approx(sum(loss for loss, _ in steps[:4]) / 4)
    assert history[0].loss > 1.2 and history[-1].loss < 0.3 and abs(vit.LN4 - math.log(4)) < 1e-12
