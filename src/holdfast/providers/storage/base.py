"""The interface of a store of finished media: content under its own hash, so that storing it twice stores it once.

A key is ``assets/{sha256[:2]}/{sha256}.{extension}``. It does not show who owns the content: rows do, and
links to it are signed (:mod:`holdfast.ledger.links`).
"""

from __future__ import annotations

import contextlib
import fcntl
import re
import time
from collections.abc import Awaitable, Callable
from errno import EIO
from pathlib import Path
from typing import Protocol

from holdfast.providers.storage.spool import Content

BLOCK_BYTES = 256 * 1024
"""The most that a reader returns at a time."""
LEFTOVER_AFTER_S = 60.0
"""A file younger than this may be about to be locked by its writer."""
PRIVATE = 0o700
"""The mode of folders: what customers made is for this user alone."""

_KEY = re.compile(r"assets/([0-9a-f]{2})/\1[0-9a-f]{62}\.[a-z0-9]{1,8}\Z")


class AssetMissing(Exception):
    """The content is not stored."""


class AssetCorrupt(Exception):
    """The content does not have the announced hash."""


class StoreFault(OSError):
    """The storage itself failed. ``strerror`` is a short text without secrets and addresses."""

    def __init__(self, text: str) -> None:
        super().__init__(EIO, text)


class AssetReader:
    """Part of an asset as blocks of bytes; an asynchronous context manager that must be closed.

    ``read`` returns the next block, which is empty at the end. Not a generator, so that a reader that stops early
    leaves nothing open.
    """

    def __init__(self, read: Callable[[], Awaitable[bytes]], close: Callable[[], object] = lambda: None) -> None:
        self._read = read
        self._close = close

    def __aiter__(self) -> AssetReader:
        return self

    async def __anext__(self) -> bytes:
        block = await self._read()
        if not block:
            raise StopAsyncIteration
        return block

    async def __aenter__(self) -> AssetReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._close()


class AssetStore(Protocol):
    """Content by key. Faults of the storage raise ``OSError``; retrying later may help."""

    async def prepare(self) -> None:
        """Prepare the store and check that content can be stored. Raises ``OSError`` if it cannot."""

    def put(self, content: Content, sha256: str, extension: str) -> str:
        """Store the content and return its key, durably. Raises :class:`AssetCorrupt`.

        Blocks, and may be called in any thread.
        """

    async def open(self, key: str, start: int = 0, end: int | None = None) -> AssetReader:
        """Read bytes ``start`` to before ``end``. Raises :class:`AssetMissing`."""

    async def delete(self, key: str) -> None:
        """Remove the content; missing content is no fault."""

    async def remove_leftovers(self) -> None:
        """Remove what puts have left that ended with their process. Raises ``OSError``."""


def asset_key(sha256: str, extension: str) -> str:
    """Return the key of content. Raises ``ValueError`` for an invalid hash or extension."""
    key = f"assets/{sha256[:2]}/{sha256}.{extension}"
    if not _KEY.match(key):
        raise ValueError("an asset key needs a lower-case SHA-256 and a short extension")
    return key


def checked_key(key: str) -> str:
    """Return the key. Raises ``ValueError`` if it is not valid."""
    if not _KEY.match(key):
        raise ValueError("the text is not an asset key")
    return key


def clear_leftovers(directory: Path) -> None:
    """Create ``directory`` if it is missing, and remove its files whose writers have ended. Blocks.

    A writer, on whichever machine, holds a lock on its file.
    """
    directory.parent.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    directory.mkdir(mode=PRIVATE, exist_ok=True)
    oldest = time.time() - LEFTOVER_AFTER_S
    for path in directory.iterdir():
        with contextlib.suppress(OSError), path.open("r+b") as file:
            if path.stat().st_mtime < oldest:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
