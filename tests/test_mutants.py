"""Each bug of tests/mutants.py, put into a copy of vit.py, makes the fast tests fail; and the table of them is what was measured."""

import json

import pytest

import mutants
from running import ROOT

FAST = ["-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", "tests/test_patches.py", "tests/test_probe.py", "tests/test_towers.py"]


@pytest.mark.slow
def test_the_tests_pass_on_a_copy_without_a_bug(tmp_path):
    mutants.mutate([], tmp_path)
    done = mutants.python(tmp_path, *FAST)
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", mutants.MUTANTS)
def test_the_fast_tests_catch(name, tmp_path):
    mutants.mutate(mutants.MUTANTS[name], tmp_path)
    done = mutants.python(tmp_path, *FAST)
    assert done.returncode == 1 and " failed" in done.stdout, done.stdout[-2000:]  # 1: tests failed; not a collection error


def test_a_change_that_finds_nothing_to_change_is_refused(tmp_path):
    with pytest.raises(ValueError, match="stands 0 times"):
        mutants.mutate([("no such line", "")], tmp_path)


def test_the_table_is_what_was_measured():
    clean = json.loads((ROOT / "tests" / "evidence.json").read_text())["runs"]["clean"]
    found = json.loads(mutants.STORE.read_text())
    assert list(found) == list(mutants.MUTANTS) and all(len(runs) >= 2 for runs in found.values())
    assert "\n".join(mutants.table(found, clean)) in (ROOT / "tests" / "found_in_the_wild.md").read_text("utf-8")
