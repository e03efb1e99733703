"""The limit of open files: raised as far as the system lets us, and what it leaves for connections."""

from __future__ import annotations

import resource
from typing import Final

KEPT_FOR_OTHERS_FILES: Final = 256
"""Open files that connections leave to the database, to stored results and to outgoing calls."""


def raise_open_files_limit() -> int:
    """Raise the soft limit of open files to the hard one; the limit that now holds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):
            pass  # some systems have a hard limit that cannot be reached; the soft one then stays
    return 2**31 - 1 if soft == resource.RLIM_INFINITY else soft


def connections_within(open_files: int, connections_max: int) -> int:
    """How many connections fit under a limit of open files, at most ``connections_max``."""
    room = max(open_files - KEPT_FOR_OTHERS_FILES, open_files // 2)
    return max(1, min(connections_max, room))
