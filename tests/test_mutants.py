"""Each bug of tests/mutants.py, put into a copy of vit.py, makes the fast tests fail; and the table of them is what was measured."""

import json

import pytest

import evidence
import mutants
from running import ROOT

def fast_tests(folder, *files):
    return mutants.python(folder, "-m", "pytest", "-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", *(f"tests/{name}.py" for name in files))


@pytest.mark.slow
def test_the_tests_pass_on_a_copy_without_a_bug(tmp_path):
    mutants.mutate([], tmp_path)
    done = fast_tests(tmp_path, *{file for file, _ in mutants.MUTANTS.values()})
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("name", mutants.MUTANTS)
def test_the_fast_tests_catch(name, tmp_path):
    file, changes = mutants.MUTANTS[name]
    mutants.mutate(changes, tmp_path)
    done = fast_tests(tmp_path, file)
    assert done.returncode == 1 and "1 failed" in done.stdout, done.stdout[-2000:]     # 1: a test failed; no collection error


def test_a_change_that_finds_nothing_to_change_is_refused(tmp_path):
    with pytest.raises(ValueError, match="stands 0 times"):
        mutants.mutate([("no such line", "")], tmp_path)


def test_the_table_is_what_was_measured():
    clean = json.loads((ROOT / "tests" / "evidence.json").read_text())["runs"]["clean"]
    data = json.loads(mutants.STORE.read_text())
    assert data["made_by"] == json.loads(json.dumps(evidence.made_by()))
    found = data["runs"]
    assert list(found) == list(mutants.MUTANTS) and all(runs for runs in found.values())
    assert "\n".join(mutants.table(found, clean)) in (ROOT / "tests" / "found_in_the_wild.md").read_text("utf-8")
