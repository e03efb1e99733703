"""Run every fuzz test of the suite, each for a given time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
SEARCH_S = "FUZZ_S"
"""The environment variable with the seconds each fuzz test searches."""


def fuzz_modules() -> list[Path]:
    """Return the test modules that read the variable."""
    return sorted(path for path in TESTS.rglob("test_*.py") if SEARCH_S in path.read_text("utf-8"))


def fuzz(seconds: int) -> int:
    """Run them in sequence; returns pytest's exit code."""
    modules = [str(path) for path in fuzz_modules() if path.name != "test_torture.py"]
    print(f"fuzz: {seconds} s for each test of", *(Path(each).name for each in modules), flush=True)
    words = [sys.executable, "-m", "pytest", "-n0", "-q", "-s", *modules]
    return subprocess.run(words, env={**os.environ, SEARCH_S: str(seconds)}, check=False).returncode
