"""The script as its users meet it: commands, files, words, bad input, faults."""

import importlib.util
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import vit
from running import ROOT, run_script

SOURCE = (ROOT / "vit.py").read_text("utf-8")
RERUN = importlib.util.find_spec("rerun") is not None


# The file itself

def test_seven_regions_in_order_and_closed():
    marks = re.findall(r"^# (region (\w+): .+|endregion)$", SOURCE, re.M)
    assert [name for _, name in marks if name] == ["setup", "data", "patches", "model", "train", "probe", "report"]
    assert [bool(name) for _, name in marks] == [True, False] * 7


def test_one_sitting_and_three_packages():
    code = [line for line in SOURCE.splitlines() if line.strip() and not line.strip().startswith("#")]
    assert len(code) <= 510, f"{len(code)} lines of code"
    allowed = sys.stdlib_module_names | {"numpy", "torch", "rerun", "pusht_env", "scripted_expert"}
    for name in ("vit.py", "pusht_env.py", "scripted_expert.py"):
        for line in (ROOT / name).read_text("utf-8").splitlines():
            if found := re.match(r"\s*(?:from|import) +([\w., ]+)", line):
                modules = {m.strip().split(".")[0].split(" ")[0] for m in found[1].split(",")} if line.strip().startswith("import") else {found[1].split(".")[0].split(" ")[0]}
                assert modules <= allowed, (name, line)


def test_the_model_has_no_convolution_and_importing_runs_nothing():
    assert not any(isinstance(part, (torch.nn.Conv2d, torch.nn.MultiheadAttention)) for part in vit.TinyViT(24, 2, 2, 4).modules())
    done = subprocess.run([sys.executable, "-c", "import vit, sys; print('rerun' in sys.modules)"], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "False" and done.stderr == ""


# Runs

@pytest.mark.slow
def test_two_identical_commands_give_the_same_bytes(smoke, tmp_path):
    made = []
    for name, seed in (("one", 3), ("two", 3), ("other", 4)):
        done = run_script("--smoke", "--seed", seed, "--out", tmp_path / name)
        assert done.returncode == 0, done.stderr
        made.append((tmp_path / name / "metrics.json").read_bytes())
    assert made[0] == made[1] != made[2]


def test_a_run_leaves_nothing_behind_that_changes_the_next(smoke, tmp_path, capsys):
    first, _ = smoke()
    assert vit.main(["--smoke", "--out", str(tmp_path / "again")]) == 0
    assert (first / "metrics.json").read_bytes() == (tmp_path / "again" / "metrics.json").read_bytes()


def test_metrics_hold_every_flag_and_every_number_sorted_and_rounded(smoke):
    text = (smoke()[0] / "metrics.json").read_text()
    m = json.loads(text)
    keys = {"num_frames", "num_train", "num_test", "probe_pixels", "probe_cnn", "majority", "chance", "train_ce", "escape_epoch",
            "pinned", "alignment", "verdict", "torch", "numpy", "break_mode", "device", "rerun", "smoke", "frames", "patchify",
            *vit.NUMBERS, *(f"probe_{name}{ci}" for name in ("trained", "random", "gap") for ci in ("", "_ci")),
            *(f"rollout_peak_{who}" for who in ("trained", "random")),
            *(f"{kind}_{thing}_{what}_{who}" for kind in ("rollout", "occlusion") for thing in ("block", "pusher", "target")
              for what in ("hit", "mass") for who in ("trained", "random"))}
    assert keys <= set(m) and list(m) == sorted(m)
    assert m["alignment"] == m["occlusion_block_hit_trained"] and m["num_frames"] == m["num_train"] + m["num_test"]
    assert not re.search(r"\d\.\d{7}", text) and "/" not in text       # six decimals, no paths
    assert m["probe_gap"] == pytest.approx(m["probe_trained"] - m["probe_random"], abs=2e-6)
    assert m["probe_trained_ci"][0] <= m["probe_trained"] <= m["probe_trained_ci"][1]


def test_the_numbers_are_those_of_the_frames(smoke):
    """Majority, splits and the pixel probe again, from the environment up."""
    m = json.loads((smoke()[0] / "metrics.json").read_text())
    frames = vit.cache_frames(m["episodes"], m["seed"], m["frame_stride"])
    train, test = vit.split_by_episode(frames.episodes)
    y = frames.labels.numpy()
    x = frames.images.flatten(1).double().numpy()
    one = lambda a: np.c_[a, np.ones(len(a))]
    weights = np.linalg.pinv(one(x[train])) @ np.eye(4)[y[train]]
    assert m["num_test"] == len(test) and m["majority"] == pytest.approx(np.bincount(y[test]).max() / len(test), abs=1e-6)
    assert m["probe_pixels"] == pytest.approx(((one(x[test]) @ weights).argmax(axis=1) == y[test]).mean(), abs=1e-6)


@pytest.mark.parametrize("mode", vit.BREAKS)
def test_every_break_runs_and_explains_itself(smoke, mode):
    out, text = smoke("--break", mode)
    m = json.loads((out / "metrics.json").read_text())
    assert m["break_mode"] == mode
    told = {"patch_interleave": "Without the permute a token is 64 pixels in reading order, 1 row of the picture.",
            "shuffle_pos": "other tags", "no_pos": "A bag of patches, and yet more"}[mode]
    assert told in " ".join(text.split()) or "Not the expected effect" in text


def test_shuffle_pos_leaves_pixels_and_training_alone(smoke):
    clean, broken = (json.loads((smoke(*flags)[0] / "metrics.json").read_text()) for flags in ((), ("--break", "shuffle_pos")))
    for key in ("train_ce", "probe_pixels", "probe_cnn", "num_frames"):
        assert clean[key] == broken[key]
    assert clean["rollout_peak_trained"] != broken["rollout_peak_trained"]


def test_no_pos_has_no_tags():
    args = vit.parse_args(["--smoke", "--break", "no_pos"])
    model = vit.new_vit(args, 0, 64, None)
    images, labels = torch.rand(8, 64, 64, 3), torch.arange(8) % 4
    list(vit.train(model, images, labels, epochs=2, batch_size=4, lr=1e-2, warmup=1, seed=0))
    assert model.pos.abs().max() == 0


def test_interleave_is_in_training_too():
    args, losses = vit.parse_args(["--smoke"]), []
    images, labels = torch.rand(8, 64, 64, 3), torch.arange(8) % 4
    for bug in (False, True):
        losses.append([e.loss for e in vit.train(vit.new_vit(args, 0, 64, None), images, labels, epochs=2, batch_size=4, lr=1e-3, warmup=1, seed=0, interleave_bug=bug)])
    assert losses[0] != losses[1]


def test_a_broken_run_stands_beside_its_clean_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for flags in ([], ["--break", "patch_interleave"]):
        assert vit.main(["--smoke", *flags]) == 0
    text = capsys.readouterr().out
    assert "clean run" in text and re.search(r"clean 0\.\d\d \(0\.\d\d to 0\.\d\d\): it (stays in|fell below|rose above) that interval", " ".join(text.split()))
    folders = sorted(p.name for p in (tmp_path / "outputs").iterdir())
    assert folders == ["clean-smoke-seed0", "patch_interleave-smoke-seed0"]
    page = (tmp_path / "outputs" / "patch_interleave-smoke-seed0" / "viewer.html").read_text("utf-8")
    data = json.loads(vit.SLOT.search(page)[2])
    clean = json.loads((tmp_path / "outputs" / "clean-smoke-seed0" / "metrics.json").read_text())
    assert data["sibling"]["metrics"] == clean and len(data["sibling"]["frames"]) == len(data["frames"])


@pytest.mark.parametrize("damage", ["{", "[]", "null", '{"version": 1}', "other flags", "other version"])
def test_a_clean_run_that_does_not_fit_is_ignored_with_a_line(smoke, tmp_path, capsys, damage):
    m = json.loads((smoke()[0] / "metrics.json").read_text())
    (tmp_path / "viewer.html").write_text((smoke()[0] / "viewer.html").read_text("utf-8"), "utf-8")
    changed = {"other flags": m | {"epochs": 77}, "other version": m | {"version": 0}}.get(damage)
    (tmp_path / "metrics.json").write_text(json.dumps(changed) if changed else damage)
    capsys.readouterr()
    assert vit.read_clean(tmp_path, m | {"break_mode": "no_pos"}) == (None, None)
    text = capsys.readouterr().out
    assert text.count("\n") == 1 and "is ignored" in text
    (tmp_path / "metrics.json").write_text(json.dumps(m))      # and one that fits is taken
    assert vit.read_clean(tmp_path, m | {"break_mode": "no_pos"})[0] == m
    assert vit.read_clean(tmp_path / "nothing", m) == (None, None) and capsys.readouterr().out == ""


# Words, from numbers

BASE = {"break_mode": None, "probe_trained": 0.9, "probe_random": 0.6, "probe_gap": 0.3, "probe_gap_ci": [0.2, 0.4], "majority": 0.3,
        "chance": 0.25, "alignment": 0.97, "img_hw": 64, "rollout_block_hit_trained": 0.9, "probe_trained_ci": [0.85, 0.95], "pinned": False}


def test_sentence_says_what_the_numbers_say():
    assert vit.sentence(BASE).startswith("This run shows trained > random-init > majority > chance; trained − random-init is +0.30, 95 % interval +0.20 to +0.40.")
    failing = vit.sentence(BASE | {"probe_random": 0.95, "probe_gap": -0.05, "probe_gap_ci": [-0.1, 0.02]})
    assert "does not show the order: trained 0.90 is not above random-init 0.95" in failing and "includes 0" in failing
    assert "random-init 0.20 is not above majority 0.30" in vit.sentence(BASE | {"probe_random": 0.2})


@pytest.mark.parametrize("change, told", [
    ({"break_mode": "patch_interleave", "alignment": 0.3}, "Alignment tells: 0.30"),
    ({"break_mode": "patch_interleave", "alignment": 0.9}, "Not the expected effect: alignment is 0.90"),
    ({"break_mode": "patch_interleave", "alignment": None}, "Without masks there is no alignment"),
    ({"break_mode": "patch_interleave", "alignment": 0.3, "pinned": True}, "A pinned model's answer hangs on nothing in particular"),
    ({"alignment": 0.3, "pinned": True}, "nothing else here tells whether a token is a patch"),
    ({"break_mode": "patch_interleave", "alignment": 0.3, "img_hw": 96}, "64 pixels in reading order, 0.67 row of the picture"),
    ({"break_mode": "shuffle_pos", "probe_gap": 0.01, "probe_gap_ci": [-0.1, 0.1]}, "edge over random-init of +0.01, not told apart from none"),
    ({"break_mode": "shuffle_pos", "probe_gap": 0.3}, "Not the expected effect: with the tags permuted an edge over random-init of +0.30"),
    ({"break_mode": "no_pos", "probe_gap": 0.2}, "yet more than the majority's 0.30: some of *where* is in their looks. Edge over random-init: +0.20."),
    ({"break_mode": "no_pos", "majority": 0.92}, "Not the expected effect: a bag of patches reads no more than the majority's 0.92"),
    ({"alignment": 0.3}, "Alignment tells: 0.30"),             # a learner's patchify
    ({"alignment": 0.97}, "alignment is 0.97"),
])
def test_lesson_has_a_second_form(change, told):
    m = BASE | change
    assert told in vit.lesson(m, None)
    for probe, where in ((0.9, "stays in"), (0.5, "fell below"), (0.96, "rose above")):
        beside = vit.lesson(m | {"probe_trained": probe}, BASE)
        assert f"clean 0.90 (0.85 to 0.95): it {where} that interval" in beside
        assert ("silent about the bug" in beside) == (m["break_mode"] == "patch_interleave" and where != "fell below")


def test_grade_and_prediction(smoke):
    assert vit.grade(0.5, 0.75)[0] == "Predicted trained probe 0.50, measured 0.75, difference +0.25."
    assert len({vit.grade(p, 0.75)[1] for p in (0.5, 0.74, 0.9)}) == 3
    text = smoke("--predict", "0.5")[1]
    assert text.splitlines()[0] == "Your prediction of the trained probe: 0.50"        # printed first, graded last
    assert text.splitlines()[-2].startswith("Predicted trained probe 0.50, measured")


@pytest.mark.parametrize("loss, pinned", [(vit.LN4 + 0.04, True), (vit.LN4 - 0.04, True), (vit.LN4 + 0.06, False), (0.9, False)])
def test_a_pinned_run_says_so_and_what_to_do(loss, pinned, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(vit, "train", lambda *args, epochs, **kwargs: (vit.Epoch(loss, 1e-3, [(loss, 1e-3)]) for _ in range(epochs)))
    assert vit.main(["--smoke", "--out", str(tmp_path)]) == 0
    m, text = json.loads((tmp_path / "metrics.json").read_text()), " ".join(capsys.readouterr().out.split())
    assert m["pinned"] == pinned and (m["verdict"] == "pinned") == pinned and m["escape_epoch"] == (1 if loss < 1 else None)
    assert ("pinned at chance (ln 4)" in text) == ("What to do: a longer --warmup, more --epochs, or another --seed." in text) == pinned


# The terminal

@pytest.mark.parametrize("clean, columns", [(None, 3), (BASE, 4)])
def test_the_table_is_markdown_and_80_columns_wide(clean, columns):
    head, rule, *rows = vit.table(BASE, clean)
    assert {line.count("|") for line in (head, rule, *rows)} == {columns + 1} and {len(line) for line in (head, rule, *rows)} == {68 if columns == 3 else 80}
    assert re.fullmatch(r"\|-+\|-+:\|-+\|(-+:\|)?", rule) and len(rows) == sum(key in BASE for key in (
        "probe_trained", "probe_random", "probe_gap", "majority", "chance", "alignment", "rollout_block_hit_trained"))
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    assert cells[0][:3] == ["trained ViT, linear probe", "0.90", "0.85 to 0.95"] and cells[3][1:3] == ["0.30", ""] and cells[0][3:] == ["0.90"] * (columns - 3)


def test_the_report_fits_80_columns_and_a_log_holds_no_control_characters(smoke):
    _, text = smoke("--break", "patch_interleave")
    assert max(len(line) for line in text.splitlines() if not line.startswith("Written: ")) <= 80      # that line names files
    assert "\r" not in text and "\x1b" not in text and "s left" not in text
    assert re.search(r"^epoch +3 of 3  loss \d\.\d{3}$", text, re.M)
    rows = [line for line in text.splitlines() if re.match(r"\|[^|]{16}\|", line)]             # of the heat maps
    assert len(rows) == 8 and all(len(row) == 75 and row.count("|") == 8 for row in rows)


def test_no_unicode_where_the_encoding_has_none(tmp_path):
    done = run_script("--smoke", "--out", tmp_path / "o", env=os.environ | {"PYTHONIOENCODING": "ascii"}, encoding="ascii")
    assert done.returncode == 0 and done.stderr == ""
    assert "trained - random-init" in done.stdout and "x uniform: blank under 0.5, . to 2" in done.stdout
    rows = [line for line in done.stdout.splitlines() if re.match(r"\|[^|]{16}\|", line)]      # of the heat maps
    assert len(rows) == 8 and all(len(row) == 75 for row in rows) and "#" in "".join(rows)


def test_heat_maps_share_one_scale_and_mark_the_block():
    touch = np.zeros((1, 64), bool)
    touch[0, 9] = True
    maps = {key: np.zeros((1, 64)) for key in ("rollout_trained", "rollout_random", "occlusion_trained")}
    maps["rollout_trained"][0, [9, 0, 1, 2, 3]] = 9, 0.4, 0.5, 2, 4
    lines = list(vit.heat_maps(maps, touch, 0))
    assert lines[1].split("|")[3] == "  ░░▒▒▓▓        " and lines[2].split("|")[3].startswith("  [█")
    assert lines[2].split("|")[1].startswith("  [█") and lines[2].split("|")[5].startswith("  [ ")


@pytest.mark.slow
def test_a_terminal_gets_a_live_line(tmp_path):
    parent, child = pty.openpty()
    process = subprocess.Popen([sys.executable, str(ROOT / "vit.py"), "--smoke", "--epochs", "20", "--out", str(tmp_path / "o")], stdout=child, stderr=child)
    os.close(child)
    seen = b""
    while True:
        try:
            chunk = os.read(parent, 4096)
        except OSError:                                        # the other end is closed
            break
        if not chunk:
            break
        seen += chunk
    assert process.wait() == 0
    assert re.search(rb"\r\x1b\[Kepoch +1 of 20  loss \d\.\d+  \d+ s left", seen)
    assert re.search(rb"\r\x1b\[Kepoch +20 of 20  loss \d\.\d+\r\n", seen)


# Bad input: one line, status 2, nothing written

BAD = [("--dim 7", "--dim"), ("--dim 97 --heads 3", "--dim"), ("--dim 0", "--dim"), ("--heads 0", "--heads"), ("--depth 0", "--depth"),
       ("--epochs 0", "--epochs"), ("--epochs -3", "--epochs"), ("--epochs 1e9", "--epochs"), ("--epochs 999999999", "--epochs"),
       ("--batch-size 0", "--batch-size"), ("--batch_size=-1", "--batch-size"), ("--lr 0", "--lr"), ("--lr -1", "--lr"),
       ("--lr nan", "--lr"), ("--lr inf", "--lr"), ("--lr x", "--lr"), ("--warmup 0", "--warmup"), ("--seed -1", "--seed"),
       ("--seed 99999999999999999999", "--seed"), ("--seed 1.5", "--seed"), ("--episodes 1", "--episodes"), ("--episodes 0", "--episodes"),
       ("--frame-stride 0", "--frame-stride"), ("--frame-stride 301", "--frame-stride"), ("--break nothing", "--break"),
       ("--predict 1.01", "--predict"), ("--predict -0.1", "--predict"), ("--predict nan", "--predict"),
       ("--frames missing.npz", "--frames"), ("--patchify missing.py", "--patchify"), ("--nonsense", "--nonsense"),
       ("--break no_pos --patchify x.py", "--patchify")]
if not torch.cuda.is_available():
    BAD.append(("--device cuda", "--device"))


@pytest.mark.parametrize("flags, names", BAD)
def test_bad_input(flags, names, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        vit.main(["--smoke", *flags.split()])
    out, err = capsys.readouterr()
    assert stop.value.code == 2 and err.count("\n") == 1 and names in err and out == ""
    assert list(tmp_path.iterdir()) == []


def test_bad_input_from_the_shell_says_what_is_allowed():
    done = run_script("--epochs", "0")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "vit.py: argument --epochs: 0 is not allowed; allowed is int from 1 to 10000\n")
    done = run_script("--break", "patch")
    assert done.returncode == 2 and all(mode in done.stderr for mode in vit.BREAKS)


def test_the_smallest_run_that_works(smoke):
    _, text = smoke("--episodes", "2", "--frame-stride", str(vit.MAX_STEPS), "--epochs", "1")
    assert "1 frames to train on, 1 of other episodes held out" in text


def test_out_that_cannot_be(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below", "/proc/nowhere"):
        with pytest.raises(SystemExit) as stop:
            vit.main(["--smoke", "--out", str(out)])
        err = capsys.readouterr().err
        assert stop.value.code == 2 and err.count("\n") == 1 and "--out" in err and "not a folder that can be written to" in err
    assert (tmp_path / "file").read_text() == "mine"


def test_a_full_disk_still_gives_the_numbers(tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(vit.os, "replace", full)
    assert vit.main(["--smoke", "--out", str(tmp_path / "o")]) == 1
    out, err = capsys.readouterr()
    assert "trained ViT, linear probe" in out and "This run" in out and "Written" not in out
    assert err.count("\n") == 1 and "No space left" in err and "--out" in err
    assert list((tmp_path / "o").iterdir()) == []


def test_an_old_result_survives_a_failed_write(tmp_path, monkeypatch):
    old = tmp_path / "metrics.json"
    old.write_text("old")
    monkeypatch.setattr(vit.os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError):
        vit.write_whole(old, b"new")
    assert old.read_text() == "old"


@pytest.mark.slow
@pytest.mark.parametrize("extra", [[], ["--rerun"]] if RERUN else [[]])
def test_ctrl_c(tmp_path, extra):
    out = tmp_path / "o"
    process = subprocess.Popen([sys.executable, "-u", str(ROOT / "vit.py"), "--smoke", "--epochs", "5000", "--out", str(out), *extra],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))    # a job in the background ignores it
    try:
        assert process.stdout.readline().startswith("o: ")     # frames are there, training begins
        select.select([process.stdout], [], [], 10)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130 and err == "vit.py: interrupted; no file is half-written\n"
    assert list(out.iterdir()) == []


# Frames from elsewhere, and a learner's patchify

def foreign(path, hw=64, n=24, **change):
    rng = np.random.default_rng(0)
    data = {"frames": rng.integers(0, 256, (n, hw, hw, 3), dtype=np.uint8), "labels": np.arange(n) % 4, "episode": np.arange(n) // 4}
    data |= change
    np.savez(path, **{key: value for key, value in data.items() if value is not None})
    return path


@pytest.mark.parametrize("hw, masks", [(64, True), (96, True), (32, False)])
def test_foreign_frames_run(tmp_path, capsys, hw, masks):
    mask = np.zeros((24, hw, hw), bool)
    mask[:, 10:20, 10:20] = True
    file = foreign(tmp_path / "f.npz", hw, masks_block=mask if masks else None)
    assert vit.main(["--smoke", "--frames", str(file), "--break", "patch_interleave", "--out", str(tmp_path / "o")]) == 0
    text = capsys.readouterr().out
    m = json.loads((tmp_path / "o" / "metrics.json").read_text())
    assert m["img_hw"] == hw and m["num_frames"] == 24 and (m["alignment"] is None) == (not masks)
    assert f"{64 / hw:.2g} row of the picture" in " ".join(text.split())
    if not masks:
        assert "Without masks" in text and m["verdict"] in (None, "pinned")


@pytest.mark.parametrize("change, told", [
    ({"frames": None}, "needed are frames"), ({"episode": None}, "needed are frames"), ({"labels": None}, "either tee_xy or labels"),
    ({"tee_xy": np.zeros((24, 2))}, "either tee_xy or labels"), ({"frames": np.zeros((24, 64, 64, 3))}, "uint8"),
    ({"frames": np.zeros((24, 64, 48, 3), np.uint8)}, "allowed is uint8"), ({"frames": np.zeros((24, 60, 60, 3), np.uint8)}, "multiples of 8"),
    ({"frames": np.zeros((24, 136, 136, 3), np.uint8)}, "32 to 128"), ({"labels": np.arange(24) % 5}, "0 to 3"),
    ({"labels": np.zeros(24, int)}, "single label"), ({"labels": np.arange(23) % 4}, "(24,)"), ({"labels": np.arange(24) % 4 + 0.5}, "int64"),
    ({"episode": np.zeros(24, int)}, "two episodes"), ({"labels": None, "tee_xy": np.full((24, 2), np.nan)}, "NaN"),
    ({"masks_block": np.zeros((24, 64, 64))}, "bool"), ({"labels": np.array([None] * 24)}, "without pickles")])
def test_foreign_frames_that_do_not_fit(tmp_path, capsys, change, told):
    file = foreign(tmp_path / "f.npz", **change)
    with pytest.raises(SystemExit) as stop:
        vit.main(["--smoke", "--frames", str(file), "--out", str(tmp_path / "o")])
    err = capsys.readouterr().err
    assert stop.value.code == 2 and err.count("\n") == 1 and "--frames" in err and told in err and not (tmp_path / "o").exists()


@pytest.mark.parametrize("code, told", [
    ("def patchify(images, patch): return images", "allowed is torch.float32 (2, 64, 192)"), ("x = 1", "KeyError"), ("def patchify(", "SyntaxError"),
    ("def patchify(images, patch): return images.reshape(2, 64, 192).double()", "torch.float64"),
    ("def patchify(images, patch): return images.reshape(2, 64, 192) * 255", "from -1 to 1"),
    ("def patchify(images, patch): return images.reshape(2, 64, 192) / 0", "from -1 to 1"), ("def patchify(images, patch): exit()", "SystemExit")])
def test_a_patchify_that_does_not_fit(tmp_path, capsys, code, told):
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(SystemExit) as stop:
        vit.main(["--smoke", "--patchify", str(tmp_path / "mine.py"), "--out", str(tmp_path / "o")])
    err = capsys.readouterr().err
    assert stop.value.code == 2 and err.count("\n") == 1 and "--patchify" in err and told in err


def test_a_learners_patchify_is_used(smoke, tmp_path):
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text("import vit\ndef patchify(images, patch):\n    return vit.patchify(images, patch)\n")
    wrong.write_text("def patchify(images, patch):\n    return images.reshape(len(images), 64, 192)\n")
    numbers = lambda out: {k: v for k, v in json.loads((out / "metrics.json").read_text()).items() if k not in ("patchify", "break_mode")}
    assert numbers(smoke("--patchify", str(right))[0]) == numbers(smoke()[0])
    assert numbers(smoke("--patchify", str(wrong))[0]) == numbers(smoke("--break", "patch_interleave")[0])


# What the documents promise

def commands(text):
    """The `python vit.py ...` lines of a markdown file's code blocks, without their comments."""
    blocks = re.findall(r"```[a-z]*\n(.*?)```", text, re.S)
    lines = [re.sub(r"\s+#.*", "", line).strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if re.match(r"(\S*/)?python3? vit\.py", line)]


USERS = ["python vit.py --seed 3", "python vit.py --break patch_interleave", "python vit.py --break shuffle_pos", "python vit.py --warmup 1 --rerun"]


def documented():
    found = [c for name in ("README.md", "docs/lesson.md") if (ROOT / name).exists() for c in commands((ROOT / name).read_text("utf-8"))]
    return sorted({re.sub(r"^\S*python3?", "python", c) for c in USERS + found})


@pytest.mark.parametrize("command", documented())
def test_every_documented_command_runs(command, tmp_path, monkeypatch, capsys):
    if "--rerun" in command and not RERUN:
        pytest.skip("rerun-sdk is not installed")
    monkeypatch.chdir(tmp_path)
    foreign(tmp_path / "FILE.npz")
    (tmp_path / "FILE.py").write_text("import vit\n\ndef patchify(images, patch):\n    return vit.patchify(images, patch)\n")
    flags = [part.replace("$SLURM_ARRAY_TASK_ID", "5") for part in command.split()[2:]]
    if not torch.cuda.is_available():
        flags = ["cpu" if flag == "cuda" else flag for flag in flags]
    assert vit.main([*flags, "--smoke"]) == 0
    assert list(tmp_path.rglob("metrics.json")) and list(tmp_path.rglob("viewer.html"))
    assert bool(list(tmp_path.rglob("vit.rrd"))) == ("--rerun" in command)
