"""Wrong answers to exercise 1, each under the name (or the start of it) that the checker must give."""
import sys

import torch


def view(images, p):
    B, H, W, C = images.shape
    return images.reshape(B, H // p, p, W // p, p, C)


def tokens(x, images, p):
    B, H, W, C = images.shape
    return x.reshape(B, H // p * (W // p), p * p * C)


def right(images, p):
    return tokens(view(images, p).permute(0, 1, 3, 2, 4, 5), images, p)


def axes(*order):
    """The six-axis view (B, gh, ph, gw, pw, C) with its axes in this order."""
    return lambda images, p: tokens(view(images, p).permute(0, *order), images, p)


def in_place(images, p):
    out = right(images, p)
    images.view(-1).copy_(out.reshape(-1))               # "saves memory"
    return images.view(out.shape)


def transposed_in_place(images, p):
    out = right(images, p)
    images.transpose_(1, 2)
    return out


def batch_last(images, p):
    B, H, W, C = images.shape
    return view(images, p).permute(1, 3, 0, 2, 4, 5).reshape(B, H // p * (W // p), p * p * C)


def unfold(images, p):
    return torch.nn.functional.unfold(images.permute(0, 3, 1, 2), p, stride=p)


def unfold_transposed(images, p):
    return unfold(images, p).mT


def h_for_w(images, p):
    B, H, W, C = images.shape
    x = images.reshape(B, W // p, p, H // p, p, C)       # H and W changed places
    return x.permute(0, 1, 3, 2, 4, 5).reshape(B, H // p * (W // p), p * p * C)


def typed_sizes(images, p):
    return images.reshape(len(images), 8, 8, 8, 8, 3).permute(0, 1, 3, 2, 4, 5).reshape(len(images), 64, 192)


def view_only(images, p):
    B, H, W, C = images.shape
    return tokens(images.view(B, H // p, p, W // p, p * C).permute(0, 1, 3, 2, 4), images, p)


def view_after_permute(images, p):
    B, H, W, C = images.shape
    return view(images, p).permute(0, 1, 3, 2, 4, 5).view(B, H // p * (W // p), p * p * C)


def memory_order(images, p):
    """Right wherever the picture is contiguous."""
    x = torch.as_strided(images, images.shape, torch.empty(images.shape).stride())
    return right(x, p)


def snake(images, p):
    out = right(images, p).clone()
    out[:, 1::2] = out[:, 1::2].flip(-1)
    return out


def one_by_one(images, p):
    return torch.stack([right(x[None], p)[0].roll(i, 0) for i, x in enumerate(images)])


def repeated(images, p):
    out = right(images, p).clone()
    out[:, -1] = out[:, 0]
    return out


WRONG = {
    "never permuted": axes(1, 2, 3, 4, 5),
    "grid transposed": axes(3, 1, 2, 4, 5),
    "pixels transposed inside each patch": axes(1, 3, 4, 2, 5),
    "channels first": axes(1, 3, 5, 2, 4),
    "channels first ": unfold_transposed,
    "columns before rows": axes(3, 1, 4, 2, 5),
    "grid transposed, and channels first": axes(3, 1, 5, 2, 4),
    "pixels mixed across tokens": axes(2, 4, 1, 3, 5),
    "pixels mixed across tokens ": h_for_w,
    "pixels mixed across tokens  ": memory_order,
    "tokens in another order": lambda images, p: right(images, p).flip(1),
    "pixels of each patch in another order": lambda images, p: right(images, p).flip(2),
    "every token in an order of its own": snake,
    "every picture in an order of its own": one_by_one,
    "wrong flattening of the batch: pictures mixed": batch_last,
    "wrong flattening of the batch: pictures mixed ": lambda images, p: right(images, p).roll(1, 0),
    "wrong flattening of the batch: batch and tokens": lambda images, p: right(images, p).flatten(0, 1),
    "wrong flattening of the batch: it comes after": lambda images, p: right(images, p).transpose(0, 1),
    "right values, wrong dtype: float32 in, float64 out": lambda images, p: right(images, p).double(),
    "right values, wrong dtype: float32 in, int64 out": lambda images, p: right(images, p).long(),
    "right values, wrong dtype: float64 in, float32 out": lambda images, p: right(images, p).float(),
    "a view that changes the input": in_place,
    "a view that changes the input ": transposed_in_place,
    ".view where numbers have to move": view_after_permute,
    ".view where numbers have to move, on a picture that is not contiguous": view_only,
    "tokens and their values swapped": unfold,
    "the tokens became one long row": lambda images, p: right(images, p).flatten(1),
    "wrong shape: the axes are still to be flattened": lambda images, p: view(images, p).permute(0, 1, 3, 2, 4, 5),
    "wrong shape;": lambda images, p: right(images, p)[:, 1:],
    "values changed": lambda images, p: right(images, p) / 127.5 - 1,
    "values lost": repeated,
    "values changed ": lambda images, p: right(images, p) - right(images, p).min(),
    "the batch axis is lost": lambda images, p: right(images, p).squeeze(0),
    "it returns nothing (None)": lambda images, p: None,
    "it returns ndarray, not a tensor": lambda images, p: right(images, p).numpy(),
    "it returns list, not a tensor": lambda images, p: list(right(images, p)),
    "it stops with an error ": lambda images, p: sys.exit(),
    "it stops with an error": typed_sizes,
}
