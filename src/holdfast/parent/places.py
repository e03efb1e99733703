"""What the parent gives a child process: one JSON argument, and lines on a socket pair.

A parent and its children may be of different releases. So unknown fields and lines are ignored, and new fields have
defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

READY: Final = "ready"
"""From a child, once it serves."""
RETIRE: Final = "retire"
"""To a worker whose successor is ready: finish what is open, then end."""
COVER: Final = "cover"
"""To a worker, followed by slots: accept on the sockets of these workers too, and of no others."""


class WorkerPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one worker.

    ``slot`` counts from 0; a worker and its successor have the same. ``metrics_dir`` is the folder of all workers'
    metrics. ``control_fd`` is the worker's end of the
    socket pair: its end of file means that the parent is gone. The others are listening sockets; ``sibling_fds``
    has those of the other workers by slot, the public one first.
    """

    slot: int
    metrics_dir: str
    control_fd: int
    public_fd: int
    operators_fd: int | None = None
    sibling_fds: Mapping[int, tuple[int, ...]] = {}


class EmulatorsPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The place of the emulators. ``local_url`` is where the workers listen."""

    control_fd: int
    local_url: str
