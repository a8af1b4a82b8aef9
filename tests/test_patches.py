"""patchify, against two things that it must equal, and against every wrong order of its axes."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import vit

SHAPES = [(2, 64, 64, 3, 8), (1, 16, 24, 3, 4), (3, 24, 16, 1, 8), (2, 12, 12, 5, 4), (2, 8, 8, 3, 8)]


def by_unfold(images, patch):
    """The same by torch.nn.functional.unfold, which gives channels first: (B, C * p * p, N)."""
    B, H, W, C = images.shape
    columns = F.unfold(images.permute(0, 3, 1, 2), patch, stride=patch)
    return columns.reshape(B, C, patch * patch, -1).permute(0, 3, 2, 1).reshape(B, -1, patch * patch * C)


@pytest.mark.parametrize("B, H, W, C, patch", SHAPES)
def test_equals_unfold(B, H, W, C, patch):
    images = torch.randn(B, H, W, C)
    assert torch.equal(vit.patchify(images, patch), by_unfold(images, patch))


@pytest.mark.parametrize("B, H, W, C, patch", SHAPES)
def test_a_linear_on_patches_is_a_strided_convolution(B, H, W, C, patch):
    images = torch.randn(B, H, W, C, dtype=torch.float64)
    linear = torch.nn.Linear(patch * patch * C, 7, dtype=torch.float64)
    kernel = linear.weight.reshape(7, patch, patch, C).permute(0, 3, 1, 2)
    conv = F.conv2d(images.permute(0, 3, 1, 2), kernel, linear.bias, stride=patch)       # (B, 7, gh, gw)
    torch.testing.assert_close(linear(vit.patchify(images, patch)), conv.flatten(2).transpose(1, 2))


def wrong_order(images, patch, order):
    """patchify with another order of the axes (gh, patch, gw, patch, C)."""
    B, H, W, C = images.shape
    x = images.reshape(B, H // patch, patch, W // patch, patch, C)
    return x.permute(0, *order).reshape(B, (H // patch) * (W // patch), patch * patch * C)


def test_each_of_the_119_wrong_orders_is_rejected():
    images = torch.arange(2 * 16 * 24 * 3, dtype=torch.float32).reshape(2, 16, 24, 3)
    orders = [order for order in itertools.permutations(range(1, 6)) if order != (1, 3, 2, 4, 5)]
    assert len(orders) == 119
    for order in orders:
        assert not torch.equal(wrong_order(images, 8, order), by_unfold(images, 8)), order
    assert torch.equal(wrong_order(images, 8, (1, 3, 2, 4, 5)), by_unfold(images, 8))


def test_the_bug_skips_the_permute_and_makes_rows_of_pixels():
    images = torch.arange(64 * 64 * 3, dtype=torch.float32).reshape(1, 64, 64, 3)
    tokens = vit.patchify(images, 8, interleave_bug=True)
    assert torch.equal(tokens, wrong_order(images, 8, (1, 2, 3, 4, 5)))
    assert torch.equal(tokens[0], images.reshape(64, 192))     # token t is row t of the picture


def test_input_is_not_changed_and_strided_input_is_fine():
    images = torch.randn(2, 64, 64, 3)
    before = images.clone()
    vit.patchify(images, 8).add_(1)
    assert torch.equal(images, before)
    flipped = torch.randn(2, 3, 64, 64).permute(0, 2, 3, 1)
    assert torch.equal(vit.patchify(flipped, 8), by_unfold(flipped, 8))


@pytest.mark.parametrize("H, W", [(63, 64), (64, 60)])
def test_a_picture_that_is_not_a_whole_number_of_patches_is_refused(H, W):
    with pytest.raises(ValueError, match=f"{H} x {W}.*8 x 8"):
        vit.patchify(torch.zeros(1, H, W, 3), 8)
