"""Exercise 3: write attention (15 minutes).

Objective: scaled dot-product attention in several heads (Vaswani et al. 2017, section 3.2):
every token asks a question (q), every token offers an answer (k, v), and softmax decides
whose answer counts how much.

Write: the four lines marked 1 to 4; everything else is the Block of vit.py, without its short
cut for the last block.
Check: pytest tests/exercises -k ex3
"""
import torch
from torch import nn


class Block(nn.Module):
    """Pre-norm transformer block: (B, N, dim) -> (B, N, dim). B pictures, N tokens, h heads, d = dim / h."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, N, dim = x.shape
        h, d = self.heads, dim // self.heads
        # Of each token's 3 * dim numbers the first dim are its q, the next its k, the last its v;
        # and of each of these the first d belong to head 0, the next d to head 1, and so on.
        qkv = self.qkv(self.norm1(x))      # (B, N, 3 * dim)
        raise NotImplementedError("exercise 3: delete this line and complete the next four")
        q, k, v = ...                      # 1  split into heads: three times (B, h, N, d)
        scores = ...                       # 2  how well each query fits each key: (B, h, N, N)
        weights = ...                      # 3  how much of each key's token a query takes: (B, h, N, N)
        mixed = ...                        # 4  the values, so weighted, heads side by side again: (B, N, dim)
        x = x + self.proj(mixed)
        return x + self.mlp(self.norm2(x))
