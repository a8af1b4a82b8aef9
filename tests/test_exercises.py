"""The checkers of tests/exercises: right answers pass, wrong ones are named, and what is said about models is true."""
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).resolve().parent
EXERCISES, ANSWERS = HERE / "exercises", HERE / "exercise_answers"
sys.path[:0] = [str(HERE.parent), str(EXERCISES), str(ANSWERS)]

import vit
import wrong_attention
import wrong_patchify
import wrong_rollout
from checkers import NotAttempted, Wrong, attention, diagnose, patchify, predict, rollout, verdict

CHECKS = {"ex1_patchify": patchify.check, "ex3_attention": attention.check, "ex4_rollout": rollout.check}
ORDERS = [axes for axes in itertools.permutations(range(5)) if axes != (0, 2, 1, 3, 4)]      # the 119 wrong ones


@pytest.mark.parametrize("name", CHECKS)
def test_a_stub_is_not_attempted_and_a_model_answer_is_right(name):
    if "raise NotImplementedError" in (EXERCISES / f"{name}.py").read_text():      # else somebody is just solving it
        assert verdict(CHECKS[name], EXERCISES / f"{name}.py", "well done").state == "not attempted yet"
    result = verdict(CHECKS[name], ANSWERS / f"{name}.py", "well done")
    assert (result.state, result.message) == ("solved", "well done")


def mistake(check, answer):
    with pytest.raises(Wrong) as caught:
        check(answer)
    return caught.value


@pytest.mark.parametrize("name", wrong_patchify.WRONG)
def test_wrong_patchify_is_named(name):
    seen = mistake(patchify.check_answer, wrong_patchify.WRONG[name])
    assert seen.name.startswith(name.strip())
    assert len(seen.effect) > 40


@pytest.mark.parametrize("name", wrong_attention.REPLACED)
def test_wrong_attention_is_named(name, tmp_path):
    (tmp_path / "ex3_attention.py").write_text(wrong_attention.wrong(name))
    assert mistake(attention.check, tmp_path / "ex3_attention.py").name.startswith(name.strip())


def test_two_mistakes_in_attention_are_both_named(tmp_path):
    names = ["heads never moved before the tokens, and merged as if", "heads merged without the transpose"]
    (tmp_path / "answer.py").write_text(wrong_attention.both(*names))
    assert mistake(attention.check, tmp_path / "answer.py").name.endswith("so the heads of one token look at each other")
    names = ["heads split without the transpose", "missing scale", "heads merged without the transpose"]
    (tmp_path / "answer.py").write_text(wrong_attention.both(*names))
    assert mistake(attention.check, tmp_path / "answer.py").name == "; and ".join(names)


@pytest.mark.parametrize("name", wrong_rollout.WRONG)
def test_wrong_rollout_is_named(name):
    assert mistake(rollout.check_answer, wrong_rollout.WRONG[name]).name.startswith(name.strip())


def test_a_right_but_slow_patchify_is_told_before_it_keeps_exercise_2_waiting():
    def slow(images, patch):
        time.sleep(0.01)
        return wrong_patchify.right(images, patch)
    assert patchify.check_answer(slow).startswith("right, but slow: exercise 2 cuts about 19500 pictures, which takes yours 3 minutes")
    assert patchify.check_answer(wrong_patchify.right) is None


# ---- exercise 1: what is said about the 119 orders, proved on a model ---------------------------

def order_of(axes, H=64, W=64, C=3, patch=8):
    images = patchify.addresses(1, H, W, C)
    out = wrong_patchify.axes(*(a + 1 for a in axes))(images, patch)
    return patchify.Order(out[0].long(), H, W, C, patch)


@pytest.fixture(scope="module")
def families():
    return {axes: patchify.family(order_of(axes)) for axes in ORDERS}


def test_the_119_orders_fall_into_families_by_size(families):
    kinds = [kind for kind, _, _ in families.values()]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"within": 5, "whole": 1, "both": 5, "mixed": 108}
    assert patchify.family(order_of((0, 2, 1, 3, 4))) is None
    names = [name for kind, name, _ in families.values() if kind != "mixed"]
    assert len(set(names)) == 11                         # no two whole-patch orders share a name
    assert sum(name.startswith("never permuted") for _, name, _ in families.values()) == 1


@pytest.mark.parametrize("axes", ORDERS)
def test_each_of_the_119_orders_is_rejected_by_name_with_a_picture(axes, families):
    kind, name, effect = families[axes]
    seen = mistake(patchify.check_answer, wrong_patchify.axes(*(a + 1 for a in axes)))
    assert seen.name == name and effect in seen.effect
    assert ", ".join(patchify.VIEW[a] for a in axes) in seen.effect     # so all 119 messages differ
    assert "expected" in seen.picture and "yours" in seen.picture
    assert all(len(line) < 100 for line in seen.picture.splitlines()[2:])


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = vit.TinyViT(24, 2, 2, vit.NUM_QUADRANTS).double().eval()
    torch.nn.init.normal_(model.pos)                     # loud tags: a wrong one must show
    return model, torch.rand(3, 64, 64, 3, dtype=torch.double) * 2 - 1


def tokens_of(axes, images):
    return wrong_patchify.axes(*(a + 1 for a in axes))(images, vit.PATCH)


def absorbed(model, order, columns, rows):
    """The model's state with the Linear's columns and the position table's rows put into the wrong order."""
    state = {key: value.clone() for key, value in model.state_dict().items()}
    if columns:
        state["patch_embed.weight"] = state["patch_embed.weight"][:, order.inside[0]]
    if rows:
        state["pos"] = torch.cat([state["pos"][:, :1], state["pos"][:, 1:][:, order.place[:, 0]]], dim=1)
    twin = vit.TinyViT(24, 2, 2, vit.NUM_QUADRANTS).double().eval()
    twin.load_state_dict(state)
    return twin


@torch.no_grad()
def test_the_linear_absorbs_within_and_the_position_table_absorbs_whole(model, families):
    """Exactly what the family says is absorbed is absorbed by that, and by nothing less."""
    model, images = model
    want = model.features(images)
    for axes, (kind, name, _) in families.items():
        if kind == "mixed":
            continue
        order, tokens = order_of(axes), tokens_of(axes, images)
        for columns, rows in itertools.product((False, True), repeat=2):
            got = absorbed(model, order, columns, rows).encode(tokens)
            enough = columns >= (kind in ("within", "both")) and rows >= (kind in ("whole", "both"))
            assert torch.allclose(got, want, atol=1e-10) == enough, (name, columns, rows)


def test_nothing_absorbs_pixels_mixed_across_tokens(families):
    """The best affine map from any one wrong token to any one right token misses at least a part of it.

    Pixels are independent noise, so a value that is not in a token cannot be guessed from it.  A small picture
    (grid 3 x 2, patch 2, 3 channels), in which no two axes of the view but ph and pw have the same length.
    """
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(200, 6, 4, 3, generator=generator, dtype=torch.double)
    right = vit.patchify(images, 2)
    right = right - right.mean(0)
    for axes in ORDERS:
        kind = patchify.family(order_of(axes, 6, 4, 3, 2))[0]
        assert kind == families[axes][0]                 # the family does not hang on the size
        wrong = wrong_patchify.axes(*(a + 1 for a in axes))(images, 2)
        wrong = wrong - wrong.mean(0)
        missed = torch.empty(6, 6)                       # [right token, wrong token]: share of variance that is missed
        for t in range(6):
            basis = torch.linalg.qr(wrong[:, t])[0]
            for s in range(6):
                rest = right[:, s] - basis @ (basis.T @ right[:, s])
                missed[s, t] = rest.square().sum() / right[:, s].square().sum()
        if kind == "mixed":
            assert missed.min() > 0.05, axes
        else:
            assert missed.min(1).values.max() < 1e-20, axes


def test_figures_in_the_effects_are_counted(families):
    by_name = {name: effect for _, name, effect in families.values()}
    never = next(effect for name, effect in by_name.items() if name.startswith("never permuted"))
    assert "values of 8 different patches" in never      # one row of 64 pixels crosses 8 patches
    assert "still belongs to its grid row, but not to its column" in never
    # a transposed grid leaves only its diagonal in place
    assert by_name["grid transposed"].startswith("56 of 64 tokens sit in another patch's cell")


def test_mixed_rows_and_columns_are_told_by_hand_made_orders():
    images = patchify.addresses(1, 4, 4, 1)
    right = vit.patchify(images, 2)[0].long()            # tokens A B / C D
    swap = right.clone()
    swap[0, 0], swap[2, 0] = right[2, 0], right[0, 0]    # A and C trade a pixel: the column survives
    swap[1, 0], swap[3, 0] = right[3, 0], right[1, 0]
    effect = patchify.family(patchify.Order(swap, 4, 4, 1, 2))[2]
    assert "still belongs to its grid column, but not to its row" in effect
    swap = right.clone()
    swap[0, 0], swap[3, 0] = right[3, 0], right[0, 0]    # A and D: neither
    assert "88% of the values lie in the cell" in patchify.family(patchify.Order(swap, 4, 4, 1, 2))[2]


def test_a_patchify_that_writes_into_its_input_scrambles_what_the_probe_reads_next(model):
    model, images = model
    model.patchify = lambda images, patch, interleave_bug=False: wrong_patchify.in_place(images, patch)
    pictures = images.clone()
    try:
        first = vit.cls_features(model, pictures)
        # asked now: on an 8 x 8 grid of 8 x 8 patches a second pass undoes the first
        scrambled = not torch.equal(pictures, images)
        second = vit.cls_features(model, pictures)
    finally:
        model.patchify = vit.patchify
    assert scrambled and abs(first - second).max() > 1e-3


def test_the_picture_shows_the_grids():
    picture = patchify.draw(wrong_patchify.WRONG["grid transposed"])
    assert "A0 A1 | B0 B1 | C0 C1     A0 A1 | D0 D1 | B0 B1" in picture
    assert "D2 D3 | E2 E3 | F2 F3     E2 E3 | C2 C3 | F2 F3" in picture
    assert "expected  A0r A0g A0b A1r" in patchify.draw(wrong_patchify.WRONG["channels first"])
    assert patchify.draw(wrong_patchify.right) == ""


# ---- exercises 3 and 4: what is said is true ----------------------------------------------------

def line(name):
    """The five lines of attention with the mistake `name`."""
    return next(lines for lines in attention.combinations() if [m.name for m in lines if m.name] == [name])


def test_the_right_lines_are_the_block_of_vit():
    block, x = attention.reference()
    after = x + block.proj(attention.attention(block.qkv(block.norm1(x)), *attention.combinations()[0]))
    assert torch.allclose(after + block.mlp(block.norm2(after)), block(x), atol=1e-12)


def with_mistake(block, x, name):
    """The block's output on x, its attention with the mistake `name`."""
    after = x + block.proj(attention.attention(block.qkv(block.norm1(x)), *line(name)))
    return after + block.mlp(block.norm2(after))


@torch.no_grad()
@pytest.mark.parametrize("name, scale", [
    ("missing scale", lambda d, h: d ** -0.5), ("scaled by d, not by its root", lambda d, h: d ** 0.5),
    ("scaled by the root of dim, not of d", lambda d, h: h ** 0.5),
    ("scaled by the root of N, not of d", lambda d, h: (attention.N / d) ** 0.5),
    ("multiplied by the root of d, not divided", lambda d, h: 1 / d)])
def test_the_weights_of_q_absorb_a_wrong_scale(name, scale):
    block, x = attention.reference()
    want = block(x)
    for parameter in (block.qkv.weight, block.qkv.bias):
        parameter[:attention.DIM] *= scale(attention.D, attention.HEADS)
    assert torch.allclose(with_mistake(block, x, name), want, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("name, reorder", [
    ("queries and keys swapped", lambda rows: rows[[1, 0, 2]]),
    ("keys and values swapped", lambda rows: rows[[0, 2, 1]]),
    ("queries and values swapped", lambda rows: rows[[2, 1, 0]]),
    ("q, k, v taken in the order k, v, q", lambda rows: rows[[2, 0, 1]]),
    ("q, k, v taken in the order v, q, k", lambda rows: rows[[1, 2, 0]]),
    ("q, k, v cut out of each head in turn", lambda rows: rows.transpose(0, 1)),
    ("q, k, v cut out number by number", lambda rows: rows.permute(1, 2, 0)),
    ("neighbouring numbers dealt out to different heads", lambda rows: rows.transpose(1, 2)),
    ("the heads' numbers dealt out in turn", None)])
def test_an_order_of_the_weights_absorbs_a_wrong_order(name, reorder):
    """Where the checker says that it is the same function when trained from scratch, the reordered weights show it."""
    block, x = attention.reference()
    want, H, D = block(x), attention.HEADS, attention.D
    if reorder:
        index = reorder(torch.arange(3 * H * D).reshape(3, H, D)).flatten()
        block.qkv.weight.copy_(block.qkv.weight[index])
        block.qkv.bias.copy_(block.qkv.bias[index])
    else:
        block.proj.weight.copy_(block.proj.weight[:, torch.arange(H * D).reshape(H, D).T.flatten()])
    assert torch.allclose(with_mistake(block, x, name), want, atol=1e-10)


def test_what_merging_without_the_transpose_mixes():
    B, N, H, D = attention.B, attention.N, attention.HEADS, attention.D
    merge = line("heads merged without the transpose")[4].do
    head, token = torch.arange(H)[:, None, None].expand(H, N, D), torch.arange(N)[:, None].expand(H, N, D)
    # the class token's row holds head 0 only, and of it the first h tokens
    assert set(merge(head.expand(B, H, N, D))[0, 0].tolist()) == {0}
    assert set(merge(token.expand(B, H, N, D))[0, 0].tolist()) == set(range(H))
    x = torch.randn(B, H, 1, D)
    assert torch.equal(x.reshape(B, 1, H * D), x.transpose(1, 2).reshape(B, 1, H * D))   # one query: nothing to mix up


def test_what_splitting_without_the_transpose_mixes():
    B, N, H, D, DIM = attention.B, attention.N, attention.HEADS, attention.D, attention.DIM
    N_h = 2 * H                                          # a whole number of tokens a head
    token = torch.arange(N_h)[:, None].expand(B, N_h, DIM).reshape(B, H, N_h, D)
    assert [set(token[0, h].flatten().tolist()) for h in range(H)] == [{2 * h, 2 * h + 1} for h in range(H)]


def test_what_the_wrong_softmax_sums_to():
    scores = torch.randn(attention.B, attention.HEADS, attention.N, attention.N, dtype=torch.double)
    names = [mistake.name for mistake in attention.LINES[3] if mistake.name]
    weights = {name: line(name)[3].do(scores) for name in names}
    assert len(weights) == 7
    for name, w in weights.items():                      # what a query takes does not sum to one, but for one mistake
        assert ((w.sum(-1) - 1).abs().max() > 0.1) == (name != "divided by the sum, without exp")
    assert weights["divided by the sum, without exp"].min() < 0 and weights["divided by the sum, without exp"].max() > 10
    after = weights["scaled after the softmax, not before"].sum(-1)
    assert torch.allclose(after, torch.full_like(after, attention.D ** -0.5))
    assert weights["sigmoid, not softmax"].sum(-1).mean() > attention.N / 3     # it grows with the number of tokens
    grown = weights["softmax over the wrong axis, the heads"].sum(-1).mean()
    assert abs(grown - attention.N / attention.HEADS) < 1e-9        # it grows with the number of tokens
    assert (scores[:, :, :1].softmax(-2) == 1).all()     # one query, softmax over the queries


def whole(name):
    """The attention with a mistake that is no combination of lines."""
    return next(mistake.do for mistake in attention.WHOLE if mistake.name.startswith(name))


@torch.no_grad()
def test_what_is_said_about_mistakes_in_the_whole_attention():
    block, x = attention.reference()
    x[1, 0] = x[0, 0]                                    # the class token comes in alike, as in block 1
    qkv = block.qkv(block.norm1(x))
    deaf = {mistake.name: torch.allclose(*mistake.do(qkv)[:, 0]) for mistake in attention.WHOLE}
    said = {mistake.name: "the same for every picture" in " ".join(mistake.effect.split()) for mistake in attention.WHOLE}
    assert deaf == said and sum(said.values()) == 3
    other = torch.cat([qkv[..., :-attention.DIM], torch.randn_like(qkv[..., -attention.DIM:])], -1)     # other values
    for name in ("the weights mix the queries", "the weights mix the keys"):
        assert torch.equal(whole(name)(qkv), whole(name)(other))
    other = qkv.clone()
    other[:, attention.HEADS:] = torch.randn_like(other[:, attention.HEADS:])       # other tokens after the first h
    merged = whole("heads never moved before the tokens, and")
    assert torch.equal(merged(qkv)[:, 0], merged(other)[:, 0]) and not torch.equal(merged(qkv)[:, 1:], merged(other)[:, 1:])


def test_what_reshaping_qkv_straight_mixes():
    picture = torch.arange(attention.B)[:, None, None].expand(attention.B, attention.N, 3 * attention.DIM)
    q, k, v = line("qkv reshaped straight to (3, B, h, N, d)")[0].do(picture)
    assert set(q.flatten().tolist()) == {0} and set(k.flatten().tolist()) == {0, 1} and set(v.flatten().tolist()) == {1}


def test_heads_merged_without_the_transpose_trains(tmp_path):
    """The wrong Block learns where a bright patch is, as the right one does."""
    (tmp_path / "merged.py").write_text(wrong_attention.wrong("heads merged without the transpose"))
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (64,), generator=generator)
    tokens = 0.3 * torch.randn(64, 9, 24, generator=generator)
    tokens[torch.arange(64), 1 + 2 * labels] += 1       # the token at place 1, 3, 5 or 7 is bright
    for file in (tmp_path / "merged.py", ANSWERS / "ex3_attention.py"):
        torch.manual_seed(0)
        block, head = patchify.function(file, "Block")(24, 4), torch.nn.Linear(24, 4)
        pos = torch.nn.Parameter(torch.randn(9, 24))
        parameters = [*block.parameters(), pos, *head.parameters()]
        for _ in range(80):                              # sign descent: what Adam does, in one line
            loss = torch.nn.functional.cross_entropy(head(block(tokens + pos)[:, 0]), labels)
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
                parameter.data -= 0.003 * gradient.sign()
        assert loss < 0.9, file                          # ln 4 = 1.386 is what knowing nothing costs


def test_the_right_steps_are_cls_rollout_of_vit():
    attentions, want = rollout.case()
    got = rollout.rollout(attentions, *rollout.combinations()[0])
    assert torch.allclose(got, want.to(got), atol=1e-12)
    assert want.max() > 1.5 * want.mean()                # the case is not a flat map on which nothing shows


def test_what_is_said_about_wrong_rollouts():
    attentions, want = rollout.case()
    over_uniform = lambda row: row / row.mean(1, keepdim=True)
    wrong = {name: fn([A.clone() for A in attentions]) for name, fn in wrong_rollout.WRONG.items() if not name.startswith("it stops")}
    assert torch.allclose(over_uniform(wrong["identity added, rows not normalised"]), over_uniform(want))
    assert torch.allclose(wrong["identity added, rows not normalised"], 2 ** 3 * want)
    assert torch.allclose(over_uniform(wrong["spread over the patches until they sum to one"]), over_uniform(want))
    for name in ("scaled so that the largest is one", "scaled so that the largest is one "):
        assert torch.allclose(over_uniform(wrong[name]), over_uniform(want)) and wrong[name].max() == 1
    assert (wrong["class token not dropped"][:, 0] >= 1 / 2 ** 3).all()
    assert torch.allclose(wrong["the last patch dropped, not the class token"][:, 1:], want[:, :-1])
    # without the identity the rows of the product come nearer to each other than with it, and more so with each block
    def spread(stay, depth):
        R = rollout.product([stay(A) for A in attentions[:depth]])
        return (R - R.mean(1, keepdim=True)).abs().sum(-1).mean()
    assert spread(lambda A: A, 3) < spread(lambda A: A, 2) < spread(lambda A: A, 1)
    assert all(spread(lambda A: A, L) < spread(rollout.halves, L) for L in (1, 2, 3))


def test_the_class_token_asks_the_same_of_every_picture_in_block_one(model):
    model, images = model
    model.features(images)
    assert torch.equal(model.cls_rows[0], model.cls_rows[0][:1].expand(len(images), -1))
    assert not torch.allclose(model.cls_rows[1], model.cls_rows[1][:1].expand(len(images), -1))


# ---- as a learner runs it -----------------------------------------------------------------------

def pytest_in(folder):
    env = {**os.environ, "PYTHONPATH": str(HERE.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    flags = ["-p", "no:cacheprovider", "--rootdir", str(folder), "-c", os.devnull]
    return subprocess.run([sys.executable, "-m", "pytest", str(folder), *flags], capture_output=True, text=True,
                          env=env, cwd=folder, timeout=300)


@pytest.fixture
def folder(tmp_path):
    """A fresh copy of the exercises, as they ship when nobody has solved them."""
    return shutil.copytree(EXERCISES, tmp_path / "a" / "b" / "exercises", ignore=shutil.ignore_patterns("__pycache__"))


def test_a_learners_session(folder):
    (folder / "ex1_patchify.py").write_text("def patchify(images, patch):\n    B, H, W, C = images.shape\n"
                                            "    return images.reshape(B, -1, patch * patch * C)\n")
    shutil.copy(ANSWERS / "ex3_attention.py", folder)
    shutil.copy(ANSWERS / "ex4_rollout.py", folder)
    result = pytest_in(folder)
    assert result.returncode == 1
    assert "The mistake: never permuted" in result.stdout and re.search("expected +yours", result.stdout)
    assert "Traceback" not in result.stdout and "checkers/" not in result.stdout
    assert "ex3_attention   right    the same numbers as the Block of vit.py" in result.stdout


# ---- exercises 5 and 6 --------------------------------------------------------------------------

GOOD = {"trained": 0.9, "random": 0.6, "interleaved": 0.3, "shuffled": 0.5, "bag": 0.6}


@pytest.mark.parametrize("change, name", [
    ({"bag": None}, "no number yet for bag"), ({"trained": 85}, "trained: 85 looks like a percentage"),
    ({"random": "0.5"}, "random: '0.5' is not a number"), ({"shuffled": -0.1}, "shuffled: -0.1 is no accuracy"),
    ({"random": float("nan")}, "random: nan is not a number"), ({"trained": True}, "trained: True is not a number"),
    ({"trained": 250}, "trained: 250 is no accuracy")])
def test_wrong_predictions_are_named(change, name):
    assert mistake(predict.checked, GOOD | change).name == name


def test_predictions_right_and_not_attempted():
    assert mistake(predict.checked, [0.5] * 5).name == "PREDICTIONS is no dictionary any more"
    assert predict.checked(GOOD) == GOOD
    with pytest.raises(NotAttempted):
        predict.checked(dict.fromkeys(GOOD))


RUNS = {mode: {"probe_trained": trained, "probe_trained_ci": [trained - 0.03, trained + 0.03], "probe_random": 0.6,
               "probe_random_ci": [0.5, 0.7], "majority": 0.4, "probe_pixels": 0.7, "alignment": alignment}
        for mode, trained, alignment in ((None, 0.86, 0.96), ("patch_interleave", 0.88, 0.31),
                                         ("shuffle_pos", 0.6, None), ("no_pos", 0.57, 0.5))}


def test_predictions_beside_measurements():
    text = "\n".join(predict.compare(GOOD, RUNS))
    assert re.search(r"^interleaved +0.30 +0.88 +\+0.58   0.85 to 0.91$", text, re.M)
    assert re.search(r"^bag +0.60 +0.57 +-0.03   0.54 to 0.60$", text, re.M)
    flat = " ".join(text.split())
    for name, (mode, key, words) in predict.MEASURED.items():       # the very lines that --predict prints
        assert " ".join(vit.grade(GOOD[name], RUNS[mode][key], words)) in flat
    assert "alignment: 0.31, clean: 0.96" in flat and "Inside the interval" in flat


@pytest.mark.parametrize("surprise", [0.0, 1.0])
def test_every_difference_asks_its_question(surprise):
    flat = " ".join("\n".join(predict.compare(dict.fromkeys(GOOD, surprise), RUNS)).split())
    assert "{" not in flat and flat.count("?") >= 5
    assert "Inside the interval" not in flat


FAKE = {"alignment": 0.31, "probe_trained": 0.88, "probe_gap_ci": [0.2, 0.31], "train_ce": 0.123456, "seed": 3}
SENTENCE = "its alignment is 0.31 and no more"


@pytest.fixture
def diagnosis(tmp_path):
    """diagnosis(answers, why) -> the mistake that the checker names, None when it is right.  Draw 7, invented runs."""
    for name in diagnose.NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.json").write_text(json.dumps(FAKE))
    (tmp_path / "draw").write_text("7\n")

    def diagnosis(answers, why=SENTENCE, folder=tmp_path):
        (tmp_path / "answer.py").write_text(f"ANSWERS = {answers!r}\nWHY = {dict.fromkeys('ABC', why)!r}\n")
        try:
            return diagnose.check(tmp_path / "answer.py", folder)
        except Wrong as wrong:
            return wrong
    return diagnosis


def test_every_wrong_diagnosis_is_named(diagnosis):
    truth = diagnose.key(7)
    assert diagnosis(truth) is None
    for wrong in itertools.permutations(truth.values()):
        answers = dict(zip("ABC", wrong))
        swapped = [answers[n] for n in "ABC" if answers[n] != truth[n]]
        if len(swapped) == 2:
            found = diagnosis(answers)
            assert found.name == " and ".join(sorted(swapped)) + " changed places"
            assert found.effect == diagnose.HINTS[tuple(sorted(swapped))]
        elif swapped:
            assert diagnosis(answers).name == "none of the three is right"


@pytest.mark.parametrize("why, name", [
    ("", "no reason for A yet"), ("alignment is 0.31", "the reason for A is no sentence yet"), ("I just know it", "the reason for A names no number"),
    ("its alignment is only 0.99", "the reason for A says 0.99, which no run measured")])
def test_a_diagnosis_needs_its_reason(diagnosis, why, name):
    assert diagnosis(diagnose.key(7), why).name == name


@pytest.mark.parametrize("why", ["alignment is 0.31 here", "train ce is .123 as in the other", "the gap is 0.2 to 0.31",
                                 "the occlusion map misses the block"])
def test_reasons_that_count(diagnosis, why):
    assert diagnosis(diagnose.key(7), why) is None


def test_other_wrong_diagnoses(diagnosis, tmp_path):
    truth = diagnose.key(7)
    assert diagnosis(truth | {"B": "broken"}).name == "B: 'broken' is none of the three"
    assert diagnosis(dict.fromkeys("ABC", "clean")).name == "one answer was given twice"
    assert diagnosis(truth, folder=tmp_path / "nowhere").name == "there are no runs to diagnose"
    assert diagnosis(truth | {"B": None}).name == "no answer for B yet"
    assert diagnosis(["clean"] * 3).name == "ANSWERS is no dictionary any more"
    (tmp_path / "empty.py").write_text("")
    assert mistake(diagnose.check, tmp_path / "empty.py").name == "empty.py has no `ANSWERS`"
    with pytest.raises(NotAttempted):
        diagnosis(dict.fromkeys("ABC"))


def test_the_draw_decides():
    keys = [tuple(diagnose.key(draw).values()) for draw in range(300)]
    assert all(35 < keys.count(order) < 65 for order in itertools.permutations(diagnose.BREAK))     # about 50 each
    assert diagnose.key(5) == diagnose.key(5)


def test_neutral_runs_say_nothing():
    page = {"title": "shuffle_pos-seed3", "mode": "shuffle_pos", "sentence": "It is silent", "lesson": "tags",
            "tags": [1, 0], "loss": [1.0], "sibling": {"mode": "clean"},
            "metrics": {"break_mode": "shuffle_pos", "verdict": "misaligned", "alignment": 0.3}}
    metrics, page = diagnose.neutral("A", page["metrics"], page)
    assert metrics == page["metrics"] == {"alignment": 0.3}
    assert (page["title"], page["mode"], page["lesson"], page["sibling"]) == ("run A", "run A", "", None)
    assert "shuffle_pos" not in json.dumps(page)


@pytest.mark.slow
def test_exercise_2_runs_a_learners_patchify_to_the_numbers_of_our_own(smoke):
    runs = [smoke(), smoke("--patchify", ANSWERS / "ex1_patchify.py")]
    ours, theirs = (json.loads((folder / "metrics.json").read_text()) for folder, _ in runs)
    assert theirs.pop("patchify") and not ours.pop("patchify")
    assert ours == theirs


@pytest.mark.slow
def test_exercise_5_makes_the_runs_and_reads_them_again(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(predict, "WORKPLACE", tmp_path)
    assert predict.main(GOOD, ["--smoke"]) == 0
    first = capfd.readouterr().out
    assert first.count("$ python vit.py") == 4 and len(list(tmp_path.glob("outputs/*/metrics.json"))) == 4
    assert predict.main(GOOD, ["--smoke"]) == 0
    second = capfd.readouterr().out
    assert "$" not in second and first.endswith(second)
    assert predict.main(dict.fromkeys(GOOD), ["--smoke"]) == 2
    assert capfd.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_exercise_6_makes_three_neutral_runs(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(diagnose, "FOLDER", tmp_path / "outputs" / "diagnose")
    assert diagnose.main(["--smoke", "--draw", "11"]) == 0
    said, runs = capfd.readouterr(), {}
    assert not re.search("interleave|shuffle|clean", said.out + said.err)
    assert sorted(p.name for p in diagnose.FOLDER.iterdir()) == ["A", "B", "C", "draw"]
    for name in diagnose.NAMES:
        runs[name] = json.loads((diagnose.FOLDER / name / "metrics.json").read_text())
        page = (diagnose.FOLDER / name / "viewer.html").read_text()
        data = json.loads(vit.SLOT.search(page)[2])
        assert data["metrics"] == runs[name] and data["sibling"] is None
        assert not {"break_mode", "verdict"} & runs[name].keys()
        assert not re.search("patch_interleave|shuffle_pos", json.dumps(data))
        assert diagnose.HIDE in page                     # and what it hides is there, under these names
        assert 'aria-labelledby="sees-title"' in page and 'id="walk-open"' in page
        assert data["lesson"] == "" and data["title"] == data["mode"] == f"run {name}"
    by = {mode: runs[name] for name, mode in diagnose.key(11).items()}
    assert by["clean"]["train_ce"] == by["shuffled"]["train_ce"] != by["interleaved"]["train_ce"]     # as the hint says
