"""Exercise 4: write rollout (10 minutes).

Objective: where does attention flow, from the class token down to the patches, through all
blocks? Attention rollout (Abnar and Zuidema 2020, section 3) multiplies it up the stack.

Write: the body of `rollout`, without looking at vit.py.
Check: pytest tests/exercises -k ex4
"""
import torch


def rollout(attentions: list[torch.Tensor]) -> torch.Tensor:
    """attentions[i]: (B, N, N), the head-averaged weights of block i, the first block first;
    [:, a, b] is how much token a takes from token b, so every row sums to one. Token 0 is the
    class token, tokens 1 .. N-1 are the patches. -> (B, N - 1): the class token's share in
    each patch.

    A block adds its attention to what was there (x + attention(x)): half of a token stays
    itself. Rows sum to one at every step.
    """
    raise NotImplementedError("exercise 4")
