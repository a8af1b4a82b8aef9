"""A model answer to exercise 3."""

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
        q, k, v = (t.reshape(B, N, self.heads, -1).transpose(1, 2) for t in qkv.chunk(3, -1))    # (B, h, N, d)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5                                    # (B, h, N, N)
        weights = scores.softmax(-1)
        mixed = (weights @ v).transpose(1, 2).reshape(B, N, dim)
        x = x + self.proj(mixed)
        return x + self.mlp(self.norm2(x))
