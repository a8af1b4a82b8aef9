"""Where the repository is, and how the tests run vit.py as its users do."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_script(*flags, cwd=ROOT, **kwargs):
    """`python vit.py FLAGS` as a process of its own; output as text."""
    kwargs.setdefault("encoding", "utf-8")
    return subprocess.run([sys.executable, str(ROOT / "vit.py"), *map(str, flags)], cwd=cwd, capture_output=True, timeout=600, **kwargs)
