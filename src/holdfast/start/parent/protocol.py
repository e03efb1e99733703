"""What the parent and its child processes exchange: JSON arguments, and lines on a socket pair.

A parent and its children may be of different releases. So unknown fields and lines are ignored, and new fields have
defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

READY: Final = "ready"
"""From a child, once it serves."""
ALIVE: Final = "alive"
"""From a worker that serves, every :data:`ALIVE_S`: its event loop runs."""
ALIVE_S: Final = 1.0
RETIRE: Final = "retire"
"""To a worker whose successor is ready: finish what is open, then end."""
COVER: Final = "cover"
"""To a worker, followed by slots: accept on the sockets of these workers too, and of no others."""
REPORT: Final = "report"
"""To a worker, followed by a report of the parent as JSON: store it."""
LINE_BYTES_MAX: Final = 4096
"""How much is read at a time; a line may be longer."""


class WorkerArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a worker.

    ``slot`` counts from 0; a worker and its successor have the same. ``metrics_dir`` is the folder of all workers'
    metrics. ``control_fd`` is the worker's end of the socket pair: end of file there means that the parent is gone.
    The others are listening sockets; ``sibling_fds`` has those of the other workers by slot, the public one first.
    """

    slot: int
    metrics_dir: str
    control_fd: int
    public_fd: int
    operators_fd: int | None = None
    sibling_fds: Mapping[int, tuple[int, ...]] = {}


class EmulatorsArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of the emulators. ``local_url`` is where the workers listen."""

    control_fd: int
    local_url: str
