"""vit.rrd read back with Rerun's own command line tool."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

import vit
from pusht_env import outline, png

pytest.importorskip("rerun")


def rrd(*arguments):
    done = subprocess.run([sys.executable, "-m", "rerun", "rrd", *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def recorded(smoke):
    out, text = smoke("--rerun")
    return out / "vit.rrd", json.loads((out / "metrics.json").read_text()), text


def rows(path, entity):
    """[(values of the index columns and data as text)] of every row of an entity."""
    return [line for line in rrd("print", "-vvv", path, "--entity", entity).splitlines() if re.search(r"│ row_\w+ ", line)]


def test_it_verifies_and_the_command_that_opens_it_is_printed(recorded):
    path, _, text = recorded
    rrd("verify", path)
    assert f"rerun {path}" in text and not list(path.parent.glob("*.part"))


def test_every_entity_is_there(recorded):
    found = set(re.findall(r"^(/[\w/]+): \d+$", rrd("stats", recorded[0]), re.M))
    wanted = {"/report", "/train/loss", "/train/lr", "/frame/image", *(f"/frame/outline/{thing}" for thing in ("block", "pusher", "target")),
              *(f"/{kind}/{who}" for kind in ("rollout", "occlusion") for who in ("trained", "random"))}
    assert wanted <= found


def test_a_row_a_step_and_the_last_loss(recorded):
    path, m, _ = recorded
    steps = m["epochs"] * -(-m["num_train"] // m["batch_size"])
    loss = rows(path, "/train/loss")
    at = [(int(n), float(value)) for line in loss for n, value in re.findall(r"┆ +(\d+) +┆ \[([-\d.e]+)\]", line)]
    assert sorted(n for n, _ in at) == list(range(steps)) and len(rows(path, "/train/lr")) == steps
    assert steps == m["epochs"] and max(at)[1] == pytest.approx(m["train_ce"], abs=1e-6)   # one batch an epoch: its loss is the epoch's


def test_a_row_a_frame(recorded):
    path, m, _ = recorded
    for entity in ("/frame/image", "/frame/outline/block", "/rollout/trained", "/occlusion/random"):
        assert len(rows(path, entity)) == min(64, m["num_test"])


def test_the_blueprint_and_the_report_are_in_it(recorded):
    path, m, _ = recorded
    assert "Blueprint" in rrd("print", path)
    views = rrd("print", "-vvv", path)
    for name in ("rollout, trained", "rollout, random", "occlusion, trained", "occlusion, random", "loss", "report"):
        assert name in views, name
    report = rrd("print", "-vvv", path, "--entity", "/report")
    assert vit.sentence(m)[:45] in report and "text/markdown" in report             # the tool cuts long texts short


def test_without_the_package_one_line_says_how_to_get_it(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(vit.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stop:
        vit.main(["--smoke", "--rerun", "--out", str(tmp_path / "o")])
    err = capsys.readouterr().err
    assert stop.value.code == 2 and err.count("\n") == 1 and "pip install rerun-sdk" in err and not (tmp_path / "o").exists()


def test_an_outline_is_the_border_of_the_mask():
    mask = np.zeros((5, 6), bool)
    mask[2:4, 0:2] = True                                      # at the picture's edge: 2 x 2 pixels have 8 sides
    pieces = {tuple(map(tuple, piece)) for piece in outline(mask).tolist()}
    sides = {((0, y), (0, y + 1)) for y in (2, 3)} | {((2, y), (2, y + 1)) for y in (2, 3)}
    sides |= {((x, 2), (x + 1, 2)) for x in (0, 1)} | {((x, 4), (x + 1, 4)) for x in (0, 1)}
    assert pieces == sides and outline(np.zeros((4, 4), bool)).shape == (0, 2, 2)


def test_png_is_a_png(tmp_path):
    Image = pytest.importorskip("PIL.Image")
    picture = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    (tmp_path / "a.png").write_bytes(png(picture))
    assert np.array_equal(np.asarray(Image.open(tmp_path / "a.png")), picture)
