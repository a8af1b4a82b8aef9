"""Wrong answers to exercise 3: one line of the model answer replaced, under the name that the checker must give."""
from pathlib import Path

MODEL_ANSWER = (Path(__file__).parent / "ex3_attention.py").read_text()

SPLIT = "(t.reshape(B, N, self.heads, -1).transpose(1, 2) for t in qkv.chunk(3, -1))"
SCORES = "q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5"
SOFTMAX = "scores.softmax(-1)"
MERGE = "(weights @ v).transpose(1, 2).reshape(B, N, dim)"

REPLACED = {
    "missing scale": (SCORES, "q @ k.transpose(-2, -1)"),
    "scaled by d, not by its root": (SCORES, "q @ k.transpose(-2, -1) / q.shape[-1]"),
    "scaled by the root of dim, not of d": (SCORES, "q @ k.transpose(-2, -1) / dim ** 0.5"),
    "multiplied by the root of d, not divided": (SCORES, "q @ k.transpose(-2, -1) * q.shape[-1] ** 0.5"),
    "queries and keys swapped": (SCORES, "k @ q.transpose(-2, -1) / q.shape[-1] ** 0.5"),
    "softmax over the wrong axis, the queries": (SOFTMAX, "scores.softmax(-2)"),
    "softmax over the wrong axis, the heads": (SOFTMAX, "scores.softmax(1)"),
    "softmax over the wrong axis, the pictures": (SOFTMAX, "scores.softmax(0)"),
    "no softmax": (SOFTMAX, "scores"),
    "heads split without the transpose": (SPLIT, "(t.reshape(B, self.heads, N, -1) for t in qkv.chunk(3, -1))"),
    "q, k, v cut out of each head in turn": (SPLIT, "qkv.reshape(B, N, self.heads, -1).transpose(1, 2).chunk(3, -1)"),
    "q, k, v cut out number by number": (SPLIT, "qkv.reshape(B, N, self.heads, -1, 3).permute(4, 0, 2, 1, 3)"),
    "neighbouring numbers dealt out to different heads":
        (SPLIT, "(t.reshape(B, N, -1, self.heads).permute(0, 3, 1, 2) for t in qkv.chunk(3, -1))"),
    "heads merged without the transpose": (MERGE, "(weights @ v).reshape(B, N, dim)"),
    "the heads' numbers dealt out in turn": (MERGE, "(weights @ v).permute(0, 2, 3, 1).reshape(B, N, dim)"),
    "qkv reshaped straight to (3, B, h, N, d)": (SPLIT, "qkv.reshape(3, B, h, N, d)"),
    "keys and values swapped": ("q, k, v = (", "q, v, k = ("),
    "queries and values swapped": ("q, k, v = (", "v, k, q = ("),
    "q, k, v taken in the order k, v, q": ("q, k, v = (", "v, q, k = ("),
    "q, k, v taken in the order v, q, k": ("q, k, v = (", "k, v, q = ("),
    "keys reshaped, not transposed": (SCORES, "q @ k.reshape(B, h, d, N) / d ** 0.5"),
    "scaled by the root of N, not of d": (SCORES, "q @ k.mT / N ** 0.5"),
    "divided by the sum, without exp": (SOFTMAX, "scores / scores.sum(-1, keepdim=True)"),
    "sigmoid, not softmax": (SOFTMAX, "scores.sigmoid()"),
    "scaled after the softmax, not before": (SOFTMAX, "(q @ k.mT).softmax(-1) / d ** 0.5"),
    "heads never moved before the tokens, and merged as if":
        (SPLIT, "(t.reshape(B, N, h, d) for t in qkv.chunk(3, -1))"),
    "never split into heads": (SPLIT, "(t[:, None] for t in qkv.chunk(3, -1))"),
    "a mask that hides later tokens": (SOFTMAX, "scores.masked_fill(torch.ones(N, N).triu(1) > 0, -torch.inf).softmax(-1)"),
    "no attention at all": (MERGE, "v.transpose(1, 2).reshape(B, N, dim)"),
    "the weights mix the queries, not the values": (MERGE, "(weights @ q).transpose(1, 2).reshape(B, N, dim)"),
    "the weights mix the keys, not the values": (MERGE, "(weights @ k).transpose(1, 2).reshape(B, N, dim)"),
    "the weights transposed before they meet the values": (MERGE, "(weights.mT @ v).transpose(1, 2).reshape(B, N, dim)"),
    "right numbers, but not the gradient": (SPLIT, SPLIT.replace("qkv.chunk", "qkv.detach().chunk")),
    "right numbers, but not the gradient ": (SOFTMAX, "scores.softmax(-1).detach()"),
    "one of the four lines is still": (MERGE, "..."),
    "wrong shape": ("return x + self.mlp(self.norm2(x))", "return x[:, 0]"),
    "not one of those known here": ("x = x + self.proj(mixed)", "x = self.proj(mixed)"),
    "it stops with an error": (MERGE, "(weights @ v).transpose(1, 2).reshape(B, N, N)"),
    "the file cannot be imported": ("class Block(nn.Module):", "class Block(nn.Module)"),
    "ex3_attention.py has no `Block`": ("class Block", "class MyBlock"),
}


def wrong(name):
    """The text of the wrong answer `name`."""
    old, new = REPLACED[name]
    assert MODEL_ANSWER.count(old) == 1, old
    return MODEL_ANSWER.replace(old, new)


def both(*names):
    """The text of an answer with several of these mistakes."""
    text = MODEL_ANSWER
    for name in names:
        text = text.replace(*REPLACED[name])
    return text
