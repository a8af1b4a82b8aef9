"""Exercise 4: the learner's rollout against cls_rollout of vit.py, on a model's own attention.

As in exercise 3, every combination of the mistakes below is computed, fewest first, and the one
that gives the learner's numbers is named.
"""
import itertools
from typing import Callable, NamedTuple

import torch

import vit

from . import NotAttempted, Wrong, function, where


class Mistake(NamedTuple):
    name: str | None
    do: Callable
    effect: str = ""


def halves(A):
    return 0.5 * A + 0.5 * torch.eye(A.shape[-1], dtype=A.dtype)


def product(matrices):
    out = matrices[0]
    for A in matrices[1:]:
        out = A @ out
    return out


STEPS = [[  # what stays
    Mistake(None, halves),
    Mistake("no residual", lambda A: A,
            "A block computes x + attention(x): half of a token stays itself. Without the identity every token "
            "forgets itself in every block, and the map tells of a network that was never run. With each block "
            "more it comes nearer to the same average for every token."),
    Mistake("identity added, rows not normalised", lambda A: A + torch.eye(A.shape[-1], dtype=A.dtype),
            "Every row sums to 2 instead of 1, so after L blocks everything is 2**L times too large. In x uniform "
            "the map is right, but its numbers are no shares any more."),
], [        # normalise
    Mistake(None, lambda A: A),
    Mistake("normalised over columns", lambda A: A / A.sum(-2, keepdim=True),
            "Row a says what token a takes; it has to sum to one. Divided by the columns' sums, a token that many "
            "look at loses weight just because many look at it, which is the opposite of what the map is for."),
], [        # multiply
    Mistake(None, product),
    Mistake("wrong order of the product", lambda matrices: product(matrices[::-1]),
            "The class token's row has to start in the last block and walk down. Yours starts in block 1, where "
            "the class token asks the same question of every picture (it has not seen any yet), and walks up."),
    Mistake("only the last block", lambda matrices: matrices[-1],
            "The last block takes from tokens that are mixtures already; what they were mixed from is lost."),
    Mistake("only the first block", lambda matrices: matrices[0], "All that happens in the blocks above is lost."),
    Mistake("the first block left out", lambda matrices: product(matrices[1:]),
            "The map ends one block too early: at tokens that are mixtures already, not at patches."),
    Mistake("the last block left out", lambda matrices: product(matrices[:-1]),
            "The map starts one block too low: what the class token takes at the end is missing."),
    Mistake("blocks averaged, not multiplied", lambda matrices: sum(matrices) / len(matrices),
            "An average forgets the paths: what flows through a token in one block and on in the next."),
], [        # read
    Mistake(None, lambda R: R[:, 0]),
    Mistake("the column of the class token, not its row", lambda R: R[:, :, 0],
            "The column says how much each patch took from the class token: the flow in the other direction."),
    Mistake("the mean over all rows, not the class token's", lambda R: R.mean(1),
            "That is where all tokens look; the answer is read from one."),
], [        # drop
    Mistake(None, lambda row: row[:, 1:]),
    Mistake("class token not dropped", lambda row: row,
            "Token 0 is no patch: one number too many for the grid. And at least 1 / 2**L of the row, after L "
            "blocks, is what stayed on the class token itself, which is no place in the picture."),
    Mistake("the last patch dropped, not the class token", lambda row: row[:, :-1],
            "Every weight moves one patch to the right, and the class token's own share lights up the top left "
            "corner of every picture."),
    Mistake("spread over the patches until they sum to one", lambda row: row[:, 1:] / row[:, 1:].sum(-1, keepdim=True),
            "In x uniform nothing changes. But how much stayed on the class token itself can no longer be seen."),
    *[Mistake("scaled so that the largest is one", do,
              "In x uniform nothing changes. But these are no shares any more: a flat map looks as loud as a sharp one.")
      for do in (lambda row: row[:, 1:] / row[:, 1:].amax(-1, keepdim=True), lambda row: row[:, 1:] / row[:, 1:].max())],
]]


def rollout(attentions, stay, normalise, multiply, read, drop):
    return drop.do(read.do(multiply.do([normalise.do(stay.do(A)) for A in attentions])))


def combinations():
    """Every way to do the steps, fewest mistakes first."""
    return sorted(itertools.product(*STEPS), key=lambda steps: sum(step.name is not None for step in steps))


@torch.no_grad()
def case():
    """(attentions, want): three blocks' attention (2, 65, 65) in a random ViT, and its cls_rollout (2, 64); float64."""
    torch.manual_seed(0)
    model = vit.TinyViT(24, 3, 2, vit.NUM_QUADRANTS).double().eval()
    for block in model.blocks:
        block.qkv.weight.mul_(3)           # else all tokens look everywhere alike, and no mistake shows
    images = torch.rand(2, vit.IMG_HW, vit.IMG_HW, 3, dtype=torch.double) * 2 - 1
    want = torch.as_tensor(vit.cls_rollout(model, images)).reshape(2, -1)
    x = torch.cat([model.cls.expand(2, -1, -1), model.patch_embed(vit.patchify(images, vit.PATCH))], 1) + model.pos
    attentions = []
    for block in model.blocks:
        x = block(x)
        attentions.append(block.last_attn)
    return attentions, want


def check(path):
    """Wrong or NotAttempted for the function `rollout` in the file `path`; nothing when it is right."""
    check_answer(function(path, "rollout"))


def answer(fn, attentions):
    """What the learner's `fn` returns, as float64; Wrong or NotAttempted when that is no tensor."""
    tried = f"Tried with {len(attentions)} blocks, each {tuple(attentions[0].shape)} {str(attentions[0].dtype)[6:]}."
    try:
        out = fn(attentions)
    except NotImplementedError:
        raise NotAttempted from None
    except (Exception, SystemExit) as error:
        raise Wrong("it stops with an error", f"{where(error)}\n{tried}") from None
    if out is None:
        raise Wrong("it returns nothing (None)", "Is the `return` missing?")
    if not isinstance(out, torch.Tensor):
        raise Wrong(f"it returns {type(out).__name__}, not a tensor", "Wanted is one tensor (B, N - 1).")
    return out.double()


@torch.no_grad()
def check_answer(fn):
    """As `check`, for the object itself."""
    attentions, want = case()
    given = [A.clone() for A in attentions]
    out = answer(fn, given)
    if out.shape == want.shape and torch.allclose(out, want, atol=1e-9):
        if len(given) != len(attentions) or not all(map(torch.equal, given, attentions)):
            raise Wrong("the map is right, but the attention that it was given is no longer what it was",
                        "+=, /=, reverse() and pop() work on the caller's own matrices, or on its list. Whoever reads them next "
                        "reads something else. `A = A + ...` makes a new one.")
        few = [torch.rand(1, 7, 7, generator=torch.Generator().manual_seed(i), dtype=torch.double).softmax(-1) for i in range(2)]
        right, out = rollout(few, *combinations()[0]), answer(fn, [A.clone() for A in few])
        if out.shape != right.shape or not torch.allclose(out, right, atol=1e-9):
            raise Wrong(f"right with three blocks {tuple(attentions[0].shape)}, wrong with two {tuple(few[0].shape)}",
                        f"You return {tuple(out.shape)}, wanted is {tuple(right.shape)}. Did a size get typed in, or an axis of "
                        "length one squeezed away?")
        return
    for steps in combinations():
        got = rollout(attentions, *steps)
        if out.shape == got.shape and torch.allclose(out, got, rtol=1e-6, atol=1e-9):
            made = [step for step in steps if step.name]
            raise Wrong("; and ".join(step.name for step in made), "\n".join(step.effect for step in made))
    if out.shape != want.shape:
        raise Wrong(f"wrong shape: you return {tuple(out.shape)}, wanted is {tuple(want.shape)}",
                    "One number for each patch, for each picture.")
    raise Wrong("not one of those known here",
                f"The largest difference is {float((out - want).abs().max()):.2g}; your maps sum to "
                f"{float(out.sum(1).min()):.3f} at least, wanted is {float(want.sum(1).min()):.3f}. Try it by hand "
                "with two blocks and three tokens.")
