"""Checks your answers to the exercises in this folder: `pytest tests/exercises`."""
from pathlib import Path

import pytest

from checkers import attention, diagnose, patchify, predict, rollout, verdict

EXERCISES = {  # file: check, and what is said when it is right
    "ex1_patchify": (patchify.check, "now run it: python vit.py --patchify tests/exercises/ex1_patchify.py"),
    "ex3_attention": (attention.check, "the same numbers as the Block of vit.py"),
    "ex4_rollout": (rollout.check, "the same map as cls_rollout of vit.py"),
    "ex5_predict": (predict.check, "written down; now measure: python tests/exercises/ex5_predict.py"),
    "ex6_diagnose": (diagnose.check, "all three are right"),
}


@pytest.mark.parametrize("exercise", EXERCISES)
def test_answer(exercise, record_property):
    check, word = EXERCISES[exercise]
    result = verdict(check, Path(__file__).with_name(f"{exercise}.py"), word)
    record_property("word", result.name if result.state == "wrong" else result.message)
    if result.state == "wrong":
        pytest.fail(result.message, pytrace=False)
    if result.state != "solved":
        pytest.skip(result.message)
