"""Run all benchmarks, each in its own process: ``python -m benchmarks``."""

from __future__ import annotations

import subprocess
import sys

PARTS = (
    ("durable holds a second", "benchmarks.holds"),
    ("creating tasks over HTTP", "benchmarks.create"),
    ("memory of an awake account", "benchmarks.memory"),
)


def main() -> int:
    """Run every part; returns the exit code of the first that failed, or 0."""
    for title, module in PARTS:
        print(f"== {title}", flush=True)
        done = subprocess.run([sys.executable, "-m", module], check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
