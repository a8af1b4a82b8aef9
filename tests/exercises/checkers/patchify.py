"""Exercise 1: which mistake is it, and what does it do to a model?

There is no table of known answers here.  The learner's function runs on pictures in which every
value is its own address, so the output says where each value came from.  From that, for token t:
    place[t, k]    the patch that its value k came from
    inside[t, k]   the position of that value in its patch
and the family follows: `place` constant along each token means whole patches; anything else means
that pixels got mixed across tokens.
"""
import itertools
import time
from dataclasses import dataclass

import torch

import vit

from . import NotAttempted, Wrong, function, where

PICTURES = 19_500                          # that a default run cuts: 30 epochs of about 560, and some 2,500 when it measures
VIEW = ("gh", "ph", "gw", "pw", "C")       # axes of the six-axis view, after the batch
CASES = {                                  # B, H, W, C, patch
    "two pictures, 64 x 64 x 3, patch 8": (2, 64, 64, 3, 8),
    "two pictures, 24 x 40 x 3, patch 8 (not square)": (2, 24, 40, 3, 8),
    "three pictures, 20 x 8 x 5, patch 4 (tall, five channels)": (3, 20, 8, 5, 4),
    "two pictures, 12 x 18 x 1, patch 6 (one channel)": (2, 12, 18, 1, 6),
    "one picture, 16 x 24 x 3, patch 8 (a batch of one)": (1, 16, 24, 3, 8),
}


def addresses(B, H, W, C, dtype=torch.float32):
    """(B, H, W, C) in which every value is its own flat index (exact in float32: all are below 2**24)."""
    return torch.arange(B * H * W * C, dtype=dtype).reshape(B, H, W, C)


# ---- where the values of one picture went -------------------------------------------------------

@dataclass
class Order:
    """sources (N, D) int64: for each value of each token its flat index in one picture (H, W, C)."""
    sources: torch.Tensor
    H: int
    W: int
    C: int
    patch: int

    def __post_init__(self):
        N, D = self.sources.shape
        self.gh, self.gw = self.H // self.patch, self.W // self.patch
        right = vit.patchify(addresses(1, self.H, self.W, self.C), self.patch).flatten().long()
        home = torch.empty_like(right)
        home[right] = torch.arange(N * D)                # index in the picture -> index in the right tokens
        self.place, self.inside = home[self.sources] // D, home[self.sources] % D

    def axes(self):
        """The order of the axes of VIEW that gives exactly these tokens, as names; None if none does."""
        view = addresses(1, self.H, self.W, self.C).long().reshape(self.gh, self.patch, self.gw, self.patch, self.C)
        for axes in itertools.permutations(range(5)):
            if torch.equal(view.permute(axes).flatten(), self.sources.flatten()):
                return tuple(VIEW[a] for a in axes)


def inside_name(order):
    """What happened inside the tokens: None nothing, "" not the same thing in each, else its name."""
    p, C = order.patch, order.C
    row = order.inside[0]
    if not (order.inside == row).all():
        return ""
    cube = torch.arange(p * p * C).reshape(p, p, C)      # pixel row, pixel column, channel
    names = {(0, 1, 2): None,
             (1, 0, 2): "pixels transposed inside each patch",
             (2, 0, 1): "channels first",
             (2, 1, 0): "channels first and pixels transposed inside each patch",
             (0, 2, 1): "channels between the pixel rows and the pixel columns",
             (1, 2, 0): "channels between the pixel columns and the pixel rows"}
    return next((name for axes, name in names.items() if torch.equal(cube.permute(axes).flatten(), row)),
                "pixels of each patch in another order")


def across_name(order):
    """What happened to whole tokens: None nothing, else its name."""
    seen, tokens = order.place[:, 0], torch.arange(len(order.place))
    if torch.equal(seen, tokens):
        return None
    columns_first = tokens.reshape(order.gh, order.gw).T.flatten()
    return "grid transposed" if torch.equal(seen, columns_first) else "tokens in another order"


def family(order):
    """-> (kind, name, effect) of an order, None when it is right.  Every figure is counted in this order.

    kind: "within" tokens, "whole" tokens, "both" of these, "uneven" (each token its own order inside),
    "mixed" across tokens.
    """
    place, (N, D) = order.place, order.sources.shape
    if not (place == place[:, :1]).all():
        return mixed(order)
    inside, across = inside_name(order), across_name(order)
    moved = int((place[:, 0] != torch.arange(N)).sum())
    displaced = (f"{moved} of {N} tokens sit in another patch's cell. A position table that is learned from scratch "
                 "absorbs this: its rows come out in your order, and the probe cannot tell. But every map that is "
                 "drawn on the grid shows those tokens in the wrong place, and every number that compares a map "
                 "with the block is wrong with it.")
    if inside == "":
        return "uneven", "every token in an order of its own" + (f", and {across}" if across else ""), (
            "Each token holds one whole patch, but the order inside differs from token to token. One Linear serves "
            "all tokens, so it cannot absorb this: the same thing looks different in every place.")
    if inside and across:
        name = f"{across}, and {inside}"
        if (across, inside) == ("grid transposed", "pixels transposed inside each patch"):
            name = "columns before rows, in the grid and inside each patch"
        return "both", name, (f"Inside a token, the {D} numbers have another order, the same in every token: the "
                              f"Linear absorbs that. Across tokens, {displaced}")
    if inside:
        return "within", inside, (
            f"Each token holds the right patch, its {D} numbers in another order, the same in every token. The "
            "Linear absorbs this entirely: put the columns of its weight into that order and the model is the same "
            "function, every map included. It shows only when you load weights that were trained with the other "
            "order, or draw the tokens.")
    if across:
        return "whole", across, displaced
    return None


def mixed(order):
    place, (N, D) = order.place, order.sources.shape
    counts = [len(row.unique()) for row in place]
    token = torch.arange(N)[:, None]
    rows, columns = (place // order.gw == token // order.gw).all(), (place % order.gw == token % order.gw).all()
    left = ("Here a token still belongs to its grid row, but not to its column" if rows else
            "Here a token still belongs to its grid column, but not to its row" if columns else
            f"Here {float((place == token).double().mean()):.0%} of the values lie in the cell where a map would "
            "draw them")
    patches = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    name = "pixels mixed across tokens"
    if torch.equal(order.sources.flatten(), torch.arange(N * D)):
        name = "never permuted (the numbers lie as they lay in the picture, only the shape is new)"
    return "mixed", name, (
        f"Each token holds values of {patches} different patches. Nothing absorbs this: the Linear sees one token "
        "at a time, and the position table only adds to it, so neither can bring a patch together again. The "
        "blocks may still learn the task from such tokens, and then the probe does not show it; but a token is no "
        f"longer a place, so no map over tokens is a map of the picture. {left}.")


# ---- from an output to the mistake --------------------------------------------------------------

def shape_mistake(shape, want, B):
    _, N, D = want
    known = {
        (B * N, D): ("wrong flattening of the batch: batch and tokens became one axis",
                     "The tokens of all pictures stand in one sequence: nobody knows which picture a token "
                     "belongs to."),
        (N, B, D): ("wrong flattening of the batch: it comes after the tokens",
                    f"Every 'picture' would be one patch of each picture. With {N} pictures in a batch it even "
                    "runs."),
        (B, D, N): ("tokens and their values swapped", "Every 'token' would be one pixel position, from all "
                                                       "patches."),
        (B, N * D): ("the tokens became one long row", "There is no sequence left, only a flat picture."),
    }
    if B == 1 and shape == (N, D):
        return (f"the batch axis is lost: you return {shape}, wanted is {want}",
                "A squeeze() or an index takes away an axis of length one. A batch of one is a picture alone, or the rest of "
                "an epoch; a model takes (pictures, tokens, values) then too.")
    name = "wrong shape: the axes are still to be flattened" if len(shape) > 3 else "wrong shape"
    name, effect = known.get(shape, (name, "A model takes (pictures, tokens, values); it stops at the first line "
                                           "that needs that."))
    return f"{name}; you return {shape}, wanted is {want}", effect


def dtype_effect(given, got):
    if given == torch.float32:
        cut = "" if got.is_floating_point else " And pictures lie in [-1, 1]: as whole numbers nearly all of it is 0."
        return f"The Linear's weights are {str(given)[6:]}; given {str(got)[6:]} tokens it stops with an error.{cut}"
    return ("A model that runs in another precision gets float32 tokens, and its Linear stops with an error. Let the "
            "dtype be.")


def mistake(out, images, patch):
    """What is wrong with `out` as the tokens of `images` (addresses)?  (name, effect), None when nothing is."""
    want = vit.patchify(images, patch)
    B, H, W, C = images.shape
    if not isinstance(out, torch.Tensor):
        if out is None:
            return "it returns nothing (None)", "Is the `return` missing? A model has nothing to read."
        return f"it returns {type(out).__name__}, not a tensor", (
            "The Linear takes tensors only and stops with an error. " + (
                "Stay in torch: reshape and permute are there too; or end with torch.from_numpy." if type(out).__name__ == "ndarray"
                else "torch.stack makes one tensor of a list of tensors of one shape." if isinstance(out, (list, tuple)) else ""))
    if out.shape != want.shape:
        return shape_mistake(tuple(out.shape), tuple(want.shape), B)
    if out.dtype != images.dtype:
        same = torch.equal(out, want.to(out.dtype))
        name = (f"{'right values, wrong dtype' if same else 'wrong dtype'}: {str(images.dtype)[6:]} in, "
                f"{str(out.dtype)[6:]} out")
        return name, dtype_effect(images.dtype, out.dtype)
    if torch.equal(out, want):
        return None
    total = images.numel()                               # the values are 0 .. total - 1
    if not ((out >= 0) & (out < total) & (out == out.round())).all():
        return "values changed", ("patchify only moves numbers; some of yours are not in the picture at all. A model "
                                  "would see other pictures.")
    sources = out.long()
    missing = total - len(sources.unique())
    if missing:
        return "values lost", (f"{missing} of {total} values are missing and others appear more than once: whatever "
                               "was in them, no model will see it.")
    size = H * W * C
    owner = sources // size
    if (owner != torch.arange(B)[:, None, None]).any():
        strangers = int((owner != torch.arange(B)[:, None, None]).any(dim=(1, 2)).sum())
        return "wrong flattening of the batch: pictures mixed with each other", (
            f"{strangers} of {B} pictures hold pixels of another one. Labels then belong to no picture, and an "
            "answer depends on what else was in the batch; with a batch of one nothing shows.")
    orders = sources % size
    if (orders != orders[0]).any():
        return "every picture in an order of its own", (
            "What the model learns on one picture does not hold for the next; nothing absorbs this.")
    order = Order(orders[0], H, W, C, patch)
    _, name, effect = family(order)
    axes = order.axes()
    if axes:
        effect = (f"Your axes come out as {', '.join(axes)} (gh, gw: which patch; "
                  f"ph, pw: which pixel in it).\n{effect}")
    return name, effect


# ---- a text picture of expected and seen --------------------------------------------------------

def draw(fn):
    """Expected and seen tokens of a 4 x 6 picture with 2 x 2 patches, as text; "" when they agree there."""
    for B, C in ((1, 1), (1, 3), (2, 1)):
        images, values = addresses(B, 4, 6, C), set(range(B * 24 * C))
        want = vit.patchify(images, 2)
        try:
            out = fn(images.clone(), 2)
        except Exception:
            continue
        if isinstance(out, torch.Tensor) and out.shape == want.shape and not torch.equal(out.to(want.dtype), want) \
                and set(out.flatten().tolist()) <= values:
            return draw_grid(want, out) if C == 1 else draw_tokens(want, out)
    return ""


def label(address, C):
    """A0 .. F3: patch A..F (a..f in the second picture), pixel 0..3 in it, and with three channels r, g, b."""
    b, rest = divmod(int(address), 24 * C)
    pixel, channel = divmod(rest, C)
    y, x = divmod(pixel, 6)
    return chr(ord("aA"[b == 0]) + y // 2 * 3 + x // 2) + str(y % 2 * 2 + x % 2) + ("rgb"[channel] if C == 3 else "")


def draw_grid(want, out):
    def lines(tokens):
        for b, picture in enumerate(tokens):
            if b:
                yield ""
            for row in range(2):
                if row:
                    yield "------+-------+------"
                for y in range(2):
                    cells = (picture[3 * row + column, 2 * y:2 * y + 2] for column in range(3))
                    yield " | ".join(" ".join(label(v, 1) for v in cell) for cell in cells)
    sides = "\n".join(f"    {a:21}     {b}".rstrip() for a, b in zip(lines(want), lines(out)))
    return ("The tokens of a 4 x 6 picture, patch 2, each in its cell\n"
            "(letter: the patch a value came from; digit: the pixel in it):\n\n"
            f"    {'expected':21}     yours\n{sides}")


def draw_tokens(want, out):
    t = int((want != out).any(dim=2)[0].nonzero()[0])
    line = lambda tokens: " ".join(label(v, 3) for v in tokens[0, t])
    return (f"Token {t} of a 4 x 6 picture, patch 2\n"
            "(letter: the patch a value came from; digit: the pixel in it; r, g, b: the channel):\n\n"
            f"    expected  {line(want)}\n    yours     {line(out)}")


# ---- the check ----------------------------------------------------------------------------------

def inputs():
    """(name, images, patch) for every case; each is a batch of addresses."""
    for name, (*shape, patch) in CASES.items():
        yield name, addresses(*shape), patch
    images = addresses(2, 24, 40, 3)
    yield ("pictures that are not contiguous in memory (a permuted tensor)",
           images.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1), 8)
    yield "float64 pictures", addresses(2, 24, 40, 3, torch.float64), 8


def check(path):
    """Wrong or NotAttempted for the function `patchify` in the file `path`; right: None, or what is to be said besides."""
    return check_answer(function(path, "patchify"))


def check_answer(fn):
    """As `check`, for the object itself."""
    right = []
    for name, images, patch in inputs():
        given = images.clone(memory_format=torch.preserve_format)
        stride = given.stride()
        only = f"Seen on: {name}."
        if right:
            only += f" It was right on: {right[0]}."
            only += " Did a size get typed in, or H where W belongs?" * (name in CASES)
        try:
            out = fn(given, patch)
        except NotImplementedError:
            raise NotAttempted from None
        except (Exception, SystemExit) as error:
            if isinstance(error, RuntimeError) and "view" in str(error):
                where_to = "" if images.is_contiguous() else ", on a picture that is not contiguous"
                raise Wrong(f".view where numbers have to move{where_to}",
                            "view gives the same memory another shape and never moves a number; reshape copies when "
                            "it must. "
                            f"{where(error)}\n{only}") from None
            if isinstance(error, ModuleNotFoundError):
                raise Wrong("it stops with an error", f"{where(error)}\nInstall it, or do without: torch is enough here.") from None
            raise Wrong("it stops with an error", f"{where(error)}\n{only}") from None
        found = mistake(out, images, patch)
        if found:
            raise Wrong(found[0], f"{found[1]}\n{only}", draw(fn))
        if given.shape != images.shape or given.stride() != stride or not torch.equal(given, images):
            raise Wrong("a view that changes the input: the tokens are right, the picture is no longer what it was",
                        "A view shares the picture's memory, so writing to it (or an operation that ends in _) "
                        "writes into the caller's "
                        "frames. Training hands over copies, but the probe hands over the cached frames themselves: "
                        "the next thing "
                        f"that reads them gets scrambled pictures.\n{only}")
        right.append(name)
    pictures = torch.rand(32, 64, 64, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1    # as the model gets them
    if not torch.equal(fn(pictures.clone(), 8), vit.patchify(pictures, 8)):
        raise Wrong("values changed", "It is right on whole numbers from 0 up, but pictures lie in [-1, 1], and some of those "
                    "values come out as others. patchify only moves numbers.")
    return slow(fn, pictures[:1])


def slow(fn, picture):
    """What is said of a right answer that would keep exercise 2 waiting; None of one that is quick."""
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        fn(picture, 8)
        seconds.append(time.perf_counter() - began)
    minutes = min(seconds) * PICTURES / 60
    if minutes > 1:
        return (f"right, but slow: exercise 2 cuts about {PICTURES} pictures, which takes yours {minutes:.0f} minutes and more. "
                "Move all patches at once: a reshape, a permute, a reshape")
