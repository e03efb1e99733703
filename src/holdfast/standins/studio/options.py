"""The options that the service sends to the process of the studio."""

from __future__ import annotations

import msgspec


class Options(msgspec.Struct, frozen=True):
    """The options of the studio. ``listening_fd`` is its listening socket."""

    secret: str
    token: str
    files_dir: str
    listening_fd: int
    log_format: str
