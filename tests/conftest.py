"""Shared by the tests: the repository on the path, one thread, and finished tiny runs."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
for folder in (ROOT, ROOT / "tests"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

torch.set_num_threads(1)


def run_script(*flags, cwd=ROOT, **kwargs):
    """`python vit.py FLAGS` as a process of its own; output as text."""
    kwargs.setdefault("encoding", "utf-8")
    return subprocess.run([sys.executable, str(ROOT / "vit.py"), *map(str, flags)], cwd=cwd, capture_output=True, timeout=300, **kwargs)


@pytest.fixture(scope="session")
def smoke(tmp_path_factory):
    """A function: the folder and the output of a tiny run with these flags, made once a session."""
    runs = {}

    def run(*flags):
        if flags not in runs:
            out = tmp_path_factory.mktemp("run") / "out"
            done = run_script("--smoke", "--out", out, *flags)
            assert done.returncode == 0, done.stderr
            runs[flags] = (out, done.stdout)
        return runs[flags]

    return run
