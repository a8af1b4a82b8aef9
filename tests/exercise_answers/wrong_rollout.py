"""Wrong answers to exercise 4, as a learner would write them, each under the name that the checker must give."""
import torch


def run(attentions, stay=True, normalise=False, reverse=False, read=lambda R: R[:, 0, 1:]):
    result = None
    for A in reversed(attentions) if reverse else attentions:
        if stay:
            A = (A + torch.eye(A.shape[-1], dtype=A.dtype)) / 2
        if normalise:
            A = A / A.sum(dim=1, keepdim=True)
        result = A if result is None else A @ result
    return read(result)


def spread(R):
    row = R[:, 0, 1:]
    return row / row.sum(1, keepdim=True)


def unscaled(attentions):
    return run([2 * A + torch.eye(A.shape[-1], dtype=A.dtype) for A in attentions])


def in_place(attentions):
    for A in attentions:
        A += torch.eye(A.shape[-1], dtype=A.dtype)
        A /= 2
    return run(attentions, stay=False)


WRONG = {
    "no residual": lambda a: run(a, stay=False),
    "wrong order of the product": lambda a: run(a, reverse=True),
    "normalised over columns": lambda a: run(a, normalise=True),
    "class token not dropped": lambda a: run(a, read=lambda R: R[:, 0]),
    "the last patch dropped, not the class token": lambda a: run(a, read=lambda R: R[:, 0, :-1]),
    "the column of the class token, not its row": lambda a: run(a, read=lambda R: R[:, 1:, 0]),
    "the mean over all rows, not the class token's": lambda a: run(a, read=lambda R: R.mean(1)[:, 1:]),
    "spread over the patches until they sum to one": lambda a: run(a, read=spread),
    "identity added, rows not normalised": unscaled,
    "only the last block": lambda a: run(a[-1:]),
    "only the first block": lambda a: run(a[:1]),
    "blocks averaged, not multiplied": lambda a: run([torch.stack(a).mean(0)]),
    "the first block left out": lambda a: run(a[1:]),
    "the last block left out": lambda a: run(a[:-1]),
    "no residual; and only the last block": lambda a: a[-1][:, 0, 1:],
    "scaled so that the largest is one": lambda a: run(a) / run(a).max(1, keepdim=True).values,
    "scaled so that the largest is one ": lambda a: run(a) / run(a).max(),
    "the map is right, but the attention that it was given": in_place,
    "the map is right, but the attention that it was given ": lambda a: run([a.pop(0) for _ in range(len(a))]),
    "right with three blocks (2, 65, 65), wrong with two (1, 7, 7)": lambda a: run(a).squeeze(),
    "it returns list, not a tensor": lambda a: run(a).tolist(),
    "no residual; and wrong order of the product": lambda a: run(a, stay=False, reverse=True),
    "wrong shape": lambda a: run(a).reshape(-1, 8, 8),
    "not one of those known here": lambda a: run(a) ** 2,
    "it stops with an error": lambda a: run(a) @ torch.eye(3),
    "it returns nothing (None)": lambda a: None,
}
