"""Exercise 1: write patchify (15 minutes).

Objective: a picture is a sequence. Cut each picture into square patches and lay every patch
out as one row of numbers: the tokens that a Vision Transformer reads.

Write: the body of `patchify`, without looking at vit.py.
Check: pytest tests/exercises -k ex1
Then (exercise 2): python vit.py --patchify tests/exercises/ex1_patchify.py
"""
import torch


def patchify(images: torch.Tensor, patch: int) -> torch.Tensor:
    """(B, H, W, C) -> (B, gh * gw, patch * patch * C), where gh = H / patch and gw = W / patch.

    Tokens in reading order: along the first row of patches, then the second row, and so on.
    Inside a token the patch's pixels in reading order, and of each pixel its C channels together.
    Any B, H, W, C (H and W are multiples of patch); the dtype stays; `images` is left as it was,
    and may lie in memory in any order (say, a permuted tensor).
    """
    raise NotImplementedError("exercise 1")
