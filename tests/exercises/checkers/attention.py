"""Exercise 3: the learner's Block against the one in vit.py, on the same weights.

When they differ, the attention is computed for every combination of the mistakes below, fewest
first; the combination that gives the learner's numbers is the one that was made.
"""
import itertools
from typing import Callable, NamedTuple

import torch

import vit

from . import NotAttempted, Wrong, function, where

B, N, DIM, HEADS = 2, 10, 24, 4            # these and d all differ, so that a swap shows in the shape
D = DIM // HEADS


class Mistake(NamedTuple):
    """name: None for the right way; do: the line, as a function; effect: what it does to a model."""
    name: str | None
    do: Callable
    effect: str = ""


ABSORBED = ("Trained from scratch it is the same function, only the rows of the qkv weight come out in your order; "
            "weights of another Block (all of q, then all of k, then all of v, each head's numbers together) give "
            "nonsense.")


def in_order(qkv):
    """q, k, v as they should be, (B, HEADS, N, D) each."""
    return [t.reshape(B, N, HEADS, D).transpose(1, 2) for t in qkv.chunk(3, -1)]


LINES = [[  # 1 split
    Mistake(None, in_order),
    Mistake("heads split without the transpose", lambda qkv: [t.reshape(B, HEADS, N, D) for t in qkv.chunk(3, -1)],
            "The memory lies token by token, so head 0 gets the first N / h tokens, all of their numbers, the "
            "next head the next tokens, and no head sees more than its own. Row t of an attention map is not "
            "token t. It trains, but no map of it means anything."),
    Mistake("q, k, v cut out of each head in turn",
            lambda qkv: qkv.reshape(B, N, HEADS, 3, D).permute(3, 0, 2, 1, 4), ABSORBED),
    Mistake("q, k, v cut out number by number",
            lambda qkv: qkv.reshape(B, N, HEADS, D, 3).permute(4, 0, 2, 1, 3), ABSORBED),
    Mistake("neighbouring numbers dealt out to different heads",
            lambda qkv: qkv.reshape(B, N, 3, D, HEADS).permute(2, 0, 4, 1, 3), ABSORBED),
    Mistake("qkv reshaped straight to (3, B, h, N, d)", lambda qkv: qkv.reshape(3, B, HEADS, N, D),
            "reshape moves no number, and the memory lies picture by picture, token by token. So q, k and v are "
            "thirds of the whole batch: they come from different tokens, and of different pictures, and an answer "
            "depends on what else is in the batch."),
    Mistake("keys and values swapped", lambda qkv: [in_order(qkv)[i] for i in (0, 2, 1)], ABSORBED),
    Mistake("queries and values swapped", lambda qkv: [in_order(qkv)[i] for i in (2, 1, 0)], ABSORBED),
    Mistake("q, k, v taken in the order k, v, q", lambda qkv: [in_order(qkv)[i] for i in (1, 2, 0)], ABSORBED),
    Mistake("q, k, v taken in the order v, q, k", lambda qkv: [in_order(qkv)[i] for i in (2, 0, 1)], ABSORBED),
], [        # 2 match
    Mistake(None, lambda q, k: q @ k.mT),
    Mistake("queries and keys swapped", lambda q, k: k @ q.mT,
            "Who asks and who answers changed places. Trained from scratch it is the same function (q and k swap "
            "their weights); weights of another Block give nonsense."),
    Mistake("keys reshaped, not transposed", lambda q, k: q @ k.reshape(*k.shape[:-2], D, N),
            "reshape moves no number, so each score is a query against numbers of several keys. It trains, but column s "
            "of a map is not token s."),
], [        # 2 scale
    Mistake(None, lambda s: s / D ** 0.5),
    Mistake("missing scale", lambda s: s,
            "The scores are too large by the root of d, so softmax starts nearer to all-or-nothing and passes "
            "less gradient back (Vaswani et al. 2017, section 3.2.1). The weights of q can absorb the factor: the "
            "model can say as much as before, it starts in a worse place."),
    Mistake("scaled by d, not by its root", lambda s: s / D,
            "The scores are too small by the root of d: every token starts by taking nearly the same from all. "
            "The weights of q can absorb the factor: the model starts in a flatter place."),
    Mistake("scaled by the root of dim, not of d", lambda s: s / DIM ** 0.5,
            "The scores are too small by the root of the number of heads. The weights of q can absorb the factor: "
            "the model starts in a flatter place."),
    Mistake("scaled by the root of N, not of d", lambda s: s / N ** 0.5,
            "A score is a sum over d numbers, whatever the number of tokens. At one picture size the weights of q can "
            "absorb the factor; at a larger one every token takes more evenly from all."),
    Mistake("multiplied by the root of d, not divided", lambda s: s * D ** 0.5,
            "The scores are d times too large, so softmax starts close to all-or-nothing and passes hardly any "
            "gradient back."),
], [        # 3 share
    Mistake(None, lambda s: s.softmax(-1)),
    Mistake("softmax over the wrong axis, the queries", lambda s: s.softmax(-2),
            "Each key hands out a total of one over all queries; what a query takes does not sum to one, so it is "
            "no average and rollout means nothing. In our last block the class token asks alone: there every "
            "weight would be 1, and attention is a plain sum."),
    Mistake("softmax over the wrong axis, the heads", lambda s: s.softmax(1),
            "The heads share out each pair of tokens among themselves; what a query takes does not sum to one, it "
            "grows with the number of tokens, and rollout means nothing."),
    Mistake("softmax over the wrong axis, the pictures", lambda s: s.softmax(0),
            "The pictures of a batch share out each pair of tokens among themselves: an answer depends on what "
            "else is in the batch."),
    Mistake("no softmax", lambda s: s,
            "Weights may be negative and do not sum to one; what a query takes has any size, and rollout means "
            "nothing."),
    Mistake("divided by the sum, without exp", lambda s: s / s.sum(-1, keepdim=True),
            "The weights sum to one, but they may be negative, and where the sum is near zero they are huge."),
    Mistake("sigmoid, not softmax", lambda s: s.sigmoid(),
            "Every weight lies between 0 and 1 for itself, so the tokens do not compete; what a query takes does not "
            "sum to one, it grows with the number of tokens, and rollout means nothing."),
    Mistake("scaled after the softmax, not before", lambda s: (s * D ** 0.5).softmax(-1) / D ** 0.5,
            "Softmax sees the scores unscaled, as if the scale were missing, and then every row sums to one over the "
            "root of d: what a query takes is too small by that factor, and rollout needs rows that sum to one."),
], [        # 4 merge
    Mistake(None, lambda x: x.transpose(1, 2).reshape(B, N, DIM)),
    Mistake("heads merged without the transpose", lambda x: x.reshape(B, N, DIM),
            "The shape fits, so it trains. But the memory lies head by head: row 0, the class token's, gets head "
            "0's results for the first h tokens and nothing of the other heads. The attention maps were taken "
            "before and look fine; they tell about other tokens than those that receive. With a single query, as "
            "in our last block, nothing gets mixed up: a test on that block cannot see it."),
    Mistake("the heads' numbers dealt out in turn", lambda x: x.permute(0, 2, 3, 1).reshape(B, N, DIM),
            "Every token keeps its own results in another order: proj absorbs that when trained from scratch; "
            "weights of another Block give nonsense."),
]]


def beside(qkv, split):
    """Attention over axis 2 where the heads were left: the heads of one token look at each other."""
    q, k, v = split(qkv)                                 # (B, N, HEADS, D)
    return ((q @ k.mT / D ** 0.5).softmax(-1) @ v).reshape(B, N, DIM)


def one_head(qkv, width):
    q, k, v = qkv.chunk(3, -1)
    return (q @ k.mT / width ** 0.5).softmax(-1) @ v


def mixing(qkv, i):
    q, k, _ = parts = in_order(qkv)
    return ((q @ k.mT / D ** 0.5).softmax(-1) @ parts[i]).transpose(1, 2).reshape(B, N, DIM)


def masked(qkv, mask):
    q, k, v = in_order(qkv)
    return ((q @ k.mT / D ** 0.5).masked_fill(mask, -torch.inf).softmax(-1) @ v).transpose(1, 2).reshape(B, N, DIM)


ONE_HEAD = ("It is sound attention, but of one head as wide as the model: each token takes one set of weights where "
            "h heads could take h different ones. It trains.")
WHOLE = [   # mistakes that are no combination of lines: name, all five lines as one function, effect
    Mistake("heads never moved before the tokens, so the heads of one token look at each other",
            lambda qkv: beside(qkv, lambda qkv: qkv.reshape(B, N, 3, HEADS, D).unbind(2)),
            "Your scores are (B, N, h, h), not (B, h, N, N). No token hears of any other: the class token's row is the "
            "same for every picture, and no training can change that."),
    Mistake("heads never moved before the tokens, and merged as if they had been",
            lambda qkv: beside(qkv, lambda qkv: qkv.reshape(B, N, 3, HEADS, D).unbind(2)).reshape(B, N, HEADS, D)
            .transpose(1, 2).reshape(B, N, DIM),
            "Your scores are (B, N, h, h), not (B, h, N, N): the heads of one token look at each other. The merge then "
            "hands row 0, the class token's, head 0 of the first h tokens, and that is all it hears of the others."),
    Mistake("never split into heads", lambda qkv: one_head(qkv, DIM), ONE_HEAD),
    Mistake("never split into heads", lambda qkv: one_head(qkv, D), ONE_HEAD),
    Mistake("a mask that hides later tokens, as in a language model",
            lambda qkv: masked(qkv, torch.ones(N, N, dtype=torch.bool).triu(1)),
            "A picture has no past. The class token stands first, so it would see itself alone: its row is the same "
            "for every picture, and no training can change that."),
    Mistake("no attention at all, every token takes its own value", lambda qkv: qkv.chunk(3, -1)[2],
            "No token hears of any other: the class token's row is the same for every picture, and no training can "
            "change that."),
    *[Mistake(f"the weights mix the {name}, not the values", lambda qkv, i=i: mixing(qkv, i),
              "A token then hands over the very numbers that it is matched by, and a third of the qkv weight, that of "
              "v, is never used.") for i, name in enumerate(("queries", "keys"))],
    Mistake("the weights transposed before they meet the values",
            lambda qkv: (lambda q, k, v: ((q @ k.mT / D ** 0.5).softmax(-1).mT @ v).transpose(1, 2).reshape(B, N, DIM))(
                *in_order(qkv)),
            "A token takes from those that ask for it, not from those that it asks for; what it takes does not sum to "
            "one, and the map shows the flow in the other direction."),
]


def attention(qkv, split, match, scale, share, merge):
    """qkv (B, N, 3 * DIM) -> (B, N, DIM), with each line done as the given Mistake does it."""
    q, k, v = split.do(qkv)
    return merge.do(share.do(scale.do(match.do(q, k))) @ v)


def combinations():
    """Every way to write the lines, fewest mistakes first."""
    return sorted(itertools.product(*LINES), key=lambda lines: sum(line.name is not None for line in lines))


def reference():
    """A Block of vit.py with weights large enough that the scale matters, and an input; float64."""
    generator = torch.Generator().manual_seed(0)
    block = vit.Block(DIM, HEADS).double().eval()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.double) * 0.3)
    return block, torch.randn(B, N, DIM, generator=generator, dtype=torch.double)


@torch.enable_grad()
def gradient(block, yours, x):
    """Wrong unless training would move the weights of q, k and v as it moves those of the reference."""
    want, got = (torch.autograd.grad(b(x).square().sum(), b.qkv.weight, allow_unused=True)[0] for b in (block, yours))
    if got is None or not torch.allclose(got, want, atol=1e-6):
        raise Wrong("right numbers, but not the gradient",
                    "Something between qkv and the output cuts the graph: .detach(), .data, .item(), NumPy, "
                    "torch.tensor(...). Training would leave " +
                    ("q, k and v as they were at the start." if got is None else "some of q, k and v as they were at the start."))


def check(path):
    """Wrong or NotAttempted for the class `Block` in the file `path`; nothing when it is right."""
    check_answer(function(path, "Block"))


@torch.no_grad()
def check_answer(Block):
    """As `check`, for the object itself."""
    block, x = reference()
    try:
        yours = Block(DIM, HEADS).double().eval()
        yours.load_state_dict(block.state_dict())
        out = yours(x.clone())
    except NotImplementedError:
        raise NotAttempted from None
    except (Exception, SystemExit) as error:
        if "ellipsis" in str(error):
            raise Wrong("one of the four lines is still `...`", where(error)) from None
        raise Wrong("it stops with an error", f"{where(error)}\n"
                    f"Tried with B = {B}, N = {N}, dim = {DIM}, h = {HEADS}, d = {D}.") from None
    want = block(x)
    if not isinstance(out, torch.Tensor) or out.shape != want.shape:
        got = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
        raise Wrong("wrong shape", f"The block returns {got}, wanted is {tuple(want.shape)}.")
    if torch.allclose(out, want, atol=1e-9):
        return gradient(block, yours, x)
    qkv = block.qkv(block.norm1(x))

    def is_yours(mixed):
        after = x + block.proj(mixed)
        return torch.allclose(out, after + block.mlp(block.norm2(after)), atol=1e-9)
    for whole in WHOLE:
        if is_yours(whole.do(qkv)):
            raise Wrong(whole.name, whole.effect)
    for lines in combinations():
        if is_yours(attention(qkv, *lines)):
            made = [line for line in lines if line.name]
            effects = dict.fromkeys(line.effect for line in made)
            raise Wrong("; and ".join(line.name for line in made), "\n".join(effects))
    raise Wrong("not one of those known here",
                f"The numbers differ by up to {float((out - want).abs().max()):.2g}, and no combination of the known "
                "mistakes in the four lines gives yours. Check the shapes line by line, and that the other lines are "
                "as they were.")
