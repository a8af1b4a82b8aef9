"""The properties that TinyViT must have.  That it is a real ViT: test_towers.py."""

import math

import pytest
import torch

import vit


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
    for i, q in enumerate(labels.tolist()):                    # a patch whose colour is the label
        images[i, 8:16, 8:16] = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]][q]) * 1.9 - 0.9
    model = vit.TinyViT(24, 2, 2, 4)
    history = list(vit.train(model, images, labels, epochs=30, batch_size=16, lr=3e-3, warmup=5, seed=0))
    steps = [step for epoch in history for step in epoch.steps]
    assert len(steps) == 30 * 4 and [lr for _, lr in steps[:20]] == pytest.approx([3e-3 * (epoch / 5) for epoch in range(1, 6) for _ in range(4)])
    assert all(lr == 3e-3 for _, lr in steps[20:]) and [epoch.lr for epoch in history] == [steps[4 * n][1] for n in range(30)]
    assert history[0].loss == pytest.approx(sum(loss for loss, _ in steps[:4]) / 4)
    assert history[0].loss > 1.2 and history[-1].loss < 0.05 and abs(vit.LN4 - math.log(4)) < 1e-12


def test_without_a_warm_up_the_learning_rate_is_full_at_every_step():
    model, images = vit.TinyViT(24, 2, 2, 4), torch.rand(8, 64, 64, 3)
    history = list(vit.train(model, images, torch.arange(8) % 4, epochs=2, batch_size=4, lr=1e-3, warmup=1, seed=0))
    assert [lr for epoch in history for _, lr in epoch.steps] == [1e-3] * 4


@pytest.mark.parametrize("seed", range(3))
def test_full_size_first_steps_make_all_frames_look_alike_and_a_warm_up_less_so(seed):
    """Why there is a warm-up.  Epochs 1 to 5 of 15 have the same sum of learning rates as one epoch without it."""
    frames = vit.cache_frames(40, seed, 4)
    images, labels = frames.images, frames.labels
    model = vit.new_vit(vit.parse_args(["--device", "cpu"]), seed, 64, None)
    spread = lambda: vit.cls_features(model, images).std(axis=0).mean()      # how much the feature differs between frames
    start, first, gradients, left = model.state_dict(), spread(), [], {}
    start = {name: value.clone() for name, value in start.items()}
    for batch in torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).split(32):
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    cosines = torch.nn.functional.cosine_similarity(torch.stack(gradients)[:, None], torch.stack(gradients)[None], dim=2)
    n = len(gradients)
    assert (cosines.sum() - n) / (n * n - n) > 0.5             # the first gradients agree: they are not noise
    for warmup, epochs in ((15, 5), (1, 1)):
        model.load_state_dict(start)
        list(vit.train(model, images, labels, epochs=epochs, batch_size=32, lr=1e-3, warmup=warmup, seed=seed))
        left[warmup] = spread() / first
    assert left[1] < 0.1 and left[15] > 3 * left[1], left
