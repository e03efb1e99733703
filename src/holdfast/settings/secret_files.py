"""Secrets that a development service generates once, each in a file of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def read_or_create_secret(path: Path) -> str:
    """Read a secret's file, or create it atomically, so that processes started together agree on one value.

    Raises OSError, and ValueError for a file that is not one word of ASCII.
    """
    with contextlib.suppress(FileNotFoundError):
        return _read(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        draft.touch(mode=0o600, exist_ok=False)
        with draft.open("w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(36) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return _read(path)


def _read(path: Path) -> str:
    [secret] = path.read_text("ascii").split()
    return secret
