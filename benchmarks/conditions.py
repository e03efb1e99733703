"""The conditions of a measurement: cores, the disk's flush, versions. Printed with every result."""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.persistence.server.embedded import EmbeddedPostgres
from holdfast.persistence.server.migrate import migrate


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
def fresh_database() -> Iterator[tuple[str, Path]]:
    """Start a fully durable embedded database in its own folder; returns its URL and the folder."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
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


def describe(folder: Path) -> str:
    """Return one line of conditions."""
    load = os.getloadavg()[0]
    return (
        f"conditions: {os.cpu_count()} cores, load {load:.1f}, fdatasync {fdatasync_us(folder):.0f} us, "
        f"python {platform.python_version()}, embedded PostgreSQL, fsync on, synchronous_commit on"
    )
