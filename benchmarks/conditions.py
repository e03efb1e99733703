"""The conditions of a measurement: cores, the disk's flush, versions. Printed with every result, and recorded."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from holdfast.persistence.server.embedded import EmbeddedPostgres
from holdfast.persistence.server.migrate import migrate

CONDITIONS = "conditions: "
FIGURES = "figures: "
"""What the lines begin with that :mod:`benchmarks.results` records; JSON follows."""


def fdatasync_us(folder: Path, rounds: int = 200) -> float:
    """Measure the median time of one 8 KiB append and fdatasync in ``folder``, in microseconds."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        times = []
        for _ in range(rounds):
            file.write(b"\0" * 8192)
            file.flush()
            begun = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1e6


@contextmanager
def fresh_database(within: Path | None = None) -> Iterator[tuple[str, Path]]:
    """Start a fully durable embedded database in its own folder; returns its URL and the folder."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=within) as name:
        folder = Path(name)
        server = EmbeddedPostgres(folder)
        server.acquire()
        try:
            url = server.start()
            migrate(url)
            yield url, folder
        finally:
            server.stop()
            server.release()


def describe(folder: Path, options: argparse.Namespace) -> str:
    """Return one line of conditions."""
    found = {
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "fdatasync_us": round(fdatasync_us(folder)),
        "python": platform.python_version(),
        "database": "embedded PostgreSQL, fsync on, synchronous_commit on",
        "options": vars(options),
    }
    return CONDITIONS + json.dumps(found)


def print_figures(figures: Mapping[str, float]) -> None:
    """Print what ``--record`` stores of this run."""
    print(FIGURES + json.dumps({name: float(f"{value:.4g}") for name, value in figures.items()}), flush=True)
