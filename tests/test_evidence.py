"""The README's table is what evidence.json says, evidence.json was made by this code, and the claims hold in it."""

import json
import math
import os
import re
import subprocess
import sys

import pytest

import evidence
import vit
from running import ROOT, run_script

README = (ROOT / "README.md").read_text("utf-8")
DATA = json.loads(evidence.STORE.read_text())


def test_the_readme_shows_exactly_this_evidence():
    shown = re.search(r"<!-- evidence -->\n(.*?)\n<!-- /evidence -->", README, re.S)[1]
    assert shown.strip() == "\n".join(evidence.tables(DATA)).strip()


def test_the_readme_shows_exactly_what_was_measured_on_gym_pusht():
    stores = {size: json.loads((ROOT / "tests" / f"evidence-gym-pusht-{size}.json").read_text()) for size in (64, 96)}
    for size, data in stores.items():
        assert f"seed{{seed}}-{size}.npz" in " ".join(data["extra"]) and all(data["made_by"][key] == json.loads(json.dumps(evidence.made_by()))[key] for key in ("defaults", "code"))
        assert all(len(data["runs"][mode]) >= 8 for mode in ("clean", "shuffle_pos", "patch_interleave"))
    shown = re.search(r"<!-- gym-pusht -->\n(.*?)\n<!-- /gym-pusht -->", README, re.S)[1]
    assert shown.strip() == "\n".join(evidence.foreign_table(stores)).strip()


def test_the_evidence_was_made_by_these_defaults_and_this_scene():
    assert DATA["made_by"] == json.loads(json.dumps(evidence.made_by())) and DATA["extra"] == []


def test_every_mode_ran_on_twenty_seeds():
    for mode in evidence.MODES:
        assert sorted(map(int, DATA["runs"][mode])) == list(range(20)), mode


def test_no_default_run_is_pinned_and_the_order_and_the_gap_are_there_on_every_seed():
    clean = DATA["runs"]["clean"]
    assert not any(m["pinned"] for m in clean.values())
    assert all(m["probe_trained"] > m["probe_random"] > m["majority"] > 0.25 and m["probe_gap_ci"][0] > 0 for m in clean.values())
    assert mean("clean", "probe_gap") >= 0.15


def mean(mode, key):
    return sum(m[key] for m in DATA["runs"][mode].values()) / len(DATA["runs"][mode])


def test_the_breaks_do_what_the_readme_says():
    """Claims that stand in the README in words, beside its tables."""
    clean, shuffled, interleaved, bag = (DATA["runs"][mode] for mode in ("clean", "shuffle_pos", "patch_interleave", "no_pos"))
    assert mean("shuffle_pos", "probe_gap") < 0.4 * mean("clean", "probe_gap")                 # most of the gap goes, in the mean
    assert sum(m["probe_gap_ci"][0] <= 0 for m in shuffled.values()) > 10                      # not told apart from none on most seeds
    assert abs(mean("shuffle_pos", "probe_random") - mean("clean", "probe_random")) < 0.02     # the random model loses nothing, in the mean
    assert abs(mean("shuffle_pos", "rollout_block_hit_trained") - mean("clean", "rollout_block_hit_trained")) < 0.03
    assert 0 <= mean("patch_interleave", "probe_trained") - mean("clean", "probe_trained") < 0.08
    assert abs(mean("patch_interleave", "alignment") - mean("patch_interleave", "column_blind")) < 0.05
    assert mean("patch_interleave", "row_hit") > 0.95 and abs(mean("patch_interleave", "column_hit") - mean("patch_interleave", "column_blind")) < 0.05
    assert mean("no_pos", "probe_trained") < mean("clean", "probe_trained") and all(m["probe_trained"] > m["majority"] + 0.1 for m in bag.values())


def test_without_a_warm_up_some_seeds_are_pinned_and_all_take_longer():
    clean, late = DATA["runs"]["clean"], DATA["runs"]["warmup 1"]
    assert sum(m["pinned"] for m in late.values()) >= 2
    epoch = lambda m: m["escape_epoch"] or math.inf
    assert all(epoch(m) > epoch(clean[seed]) for seed, m in late.items())
    assert all(m["probe_trained"] > m["majority"] + 0.2 for m in late.values() if m["pinned"])


def test_the_threshold_of_the_verdict_divides_clean_from_interleaved():
    lowest = min(m["alignment"] for m in DATA["runs"]["clean"].values())
    highest = max(m["alignment"] for m in DATA["runs"]["patch_interleave"].values())
    assert highest < vit.ALIGNED <= lowest


def test_rows_and_columns_counts_what_it_says():
    import numpy as np

    block = np.zeros((2, 64, 64), bool)
    block[0, 8:16, 16:24] = block[1, 0:8, 0:8] = True          # one patch each: (1, 2) and (0, 0)
    maps = {"sample": np.array([0, 1]), "occlusion_trained": np.zeros((2, 64))}
    maps["occlusion_trained"][0, 8 + 5] = maps["occlusion_trained"][1, 0] = 1  # right row, wrong column; both right
    found = evidence.rows_and_columns(maps, block)
    assert found == {"row_hit": 1.0, "column_hit": 0.5, "row_blind": 0.125, "column_blind": 0.125}


@pytest.mark.slow
def test_a_worker_that_trains_once_for_two_modes_gives_what_two_runs_give(tmp_path):
    env = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, evidence.__file__, "--worker", "0", "--smoke", "--modes", "clean", "shuffle_pos"],
                          cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert [mode for mode, _, _ in results] == ["clean", "shuffle_pos"]
    for mode, _, m in results:
        alone = run_script("--smoke", *evidence.MODES[mode], "--out", tmp_path / mode, env=env)
        assert alone.returncode == 0, alone.stderr
        expected = json.loads((tmp_path / mode / "metrics.json").read_text())
        assert {key: m[key] for key in evidence.KEPT} == {key: expected[key] for key in evidence.KEPT}
