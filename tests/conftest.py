"""Shared by the tests: the repository on the path, one thread, and finished tiny runs."""

import contextlib
import io
import sys
from pathlib import Path

import pytest
import torch

for folder in (Path(__file__).resolve().parent, Path(__file__).resolve().parent.parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

import vit  # noqa: E402

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def smoke(tmp_path_factory):
    """A function: the folder and the output of a tiny run with these flags, in this process, made once a session."""
    runs = {}

    def run(*flags):
        if flags not in runs:
            out, text = tmp_path_factory.mktemp("run") / "out", io.StringIO()
            with contextlib.redirect_stdout(text):
                assert vit.main(["--smoke", "--out", str(out), *flags]) == 0
            runs[flags] = (out, text.getvalue())
        return runs[flags]

    return run
