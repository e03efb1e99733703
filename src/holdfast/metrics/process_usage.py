"""What a process has used of the machine, as Linux reports it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


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
