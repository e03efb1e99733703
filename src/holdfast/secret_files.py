"""Secrets that a development service generates once, each in a file of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def read_or_create_secret(path: Path) -> str:
    """Read a secret's file, or create it atomically, so that processes started together agree on one value."""
    with contextlib.suppress(FileNotFoundError):
        return path.read_text("ascii").strip()
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
    return path.read_text("ascii").strip()
