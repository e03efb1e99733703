"""The limit of open files: raised to the hard limit, and the number of connections it allows."""

from __future__ import annotations

import resource
from typing import Final

RESERVED_FILES: Final = 256
"""Open files reserved for the database, stored results and outgoing calls."""


def raise_open_files_limit() -> int:
    """Raise the soft limit of open files to the hard one, and return the resulting limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):
            pass  # on some systems the hard limit cannot be reached
    return 2**31 - 1 if soft == resource.RLIM_INFINITY else soft


def connections_within(open_files: int, connections_max: int) -> int:
    """Return how many connections a limit of open files allows, at most ``connections_max``."""
    available = max(open_files - RESERVED_FILES, open_files // 2)
    return max(1, min(connections_max, available))
