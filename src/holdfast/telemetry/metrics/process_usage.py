"""What a process has used of the machine, as Linux reports it."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from holdfast import __version__
from holdfast.telemetry import metrics


class ProcessUsage(NamedTuple):
    """CPU seconds since the start of the process, user and system; resident memory in bytes."""

    cpu_s: float
    memory_bytes: int


def usage_of(pid: int | None = None) -> ProcessUsage | None:
    """Return what a process has used, this one without a ``pid``; None if it has ended, or not on Linux."""
    with suppress(OSError, ValueError, IndexError):
        stat = Path(f"/proc/{pid or 'self'}/stat").read_text("utf-8", errors="replace")
        # The name, in parentheses, may contain anything. After it: utime and stime are fields 14 and 15, rss 24.
        fields = stat.rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return ProcessUsage(ticks / os.sysconf("SC_CLK_TCK"), int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))
    return None


class ProcessMeter:
    """Sets the metrics of this process, which is worker number ``worker``, or None; worker 0 adds its parent's."""

    def __init__(self, worker: int | None) -> None:
        self._pids: dict[str, int | None] = {"single" if worker is None else str(worker): None}
        if worker == 0:
            self._pids["parent"] = os.getppid()
        self._cpu_s: dict[str, float] = {}
        metrics.BUILD_INFO.labels(__version__, platform.python_version()).set(1)

    def measure(self) -> None:
        """Add what was used since the last call. A parent that has ended counts no longer."""
        for name, pid in self._pids.items():
            usage = usage_of(pid) if pid is None or pid == os.getppid() else None
            metrics.PROCESS_MEMORY_BYTES.labels(name).set(0 if usage is None else usage.memory_bytes)
            if usage is not None:
                before = self._cpu_s.get(name, 0.0 if pid is None else usage.cpu_s)
                metrics.PROCESS_CPU_S.labels(name).inc(usage.cpu_s - before)
                self._cpu_s[name] = usage.cpu_s
