"""What a store of finished media is: content under its own hash, so that storing twice is storing once.

A key is ``assets/{first two digits}/{sha256}.{extension}``. It says nothing of who owns the content: rows do, and
the links that open it are signed (:mod:`holdfast.ledger.links`).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator
from errno import EIO
from pathlib import Path
from types import TracebackType
from typing import Protocol

BLOCK_BYTES = 256 * 1024
"""What a reader hands out at a time, at the most."""

_KEY = re.compile(r"assets/([0-9a-f]{2})/\1[0-9a-f]{62}\.[a-z0-9]{1,8}\Z")


class AssetMissing(Exception):
    """No such content is stored."""


class AssetCorrupt(Exception):
    """What was given to be stored does not have the hash it was announced with."""


class StoreFault(OSError):
    """The storage itself failed. ``strerror`` is a short sentence that holds no secret and no address."""

    def __init__(self, text: str) -> None:
        super().__init__(EIO, text)


class AssetReader(Protocol):
    """Part of an asset as blocks of bytes; an asynchronous context manager that must be left."""

    size_bytes: int
    """The whole asset's size, whatever part is read."""

    def __aiter__(self) -> AsyncIterator[bytes]: ...

    async def __anext__(self) -> bytes: ...

    async def __aenter__(self) -> AssetReader: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class AssetStore(Protocol):
    """Content by key. Faults of the storage itself come as ``OSError``; trying again later may help."""

    async def prepare(self) -> None:
        """Make ready, and find out whether content can be kept here. Raises ``OSError`` where it cannot."""

    async def put(self, source: Path | AsyncIterable[bytes], sha256: str, extension: str) -> str:
        """Store the content and return its key, durably. Raises :class:`AssetCorrupt`."""

    async def open(self, key: str, start: int = 0, end: int | None = None) -> AssetReader:
        """Read bytes ``start`` to before ``end``. Raises :class:`AssetMissing`."""

    async def delete(self, key: str) -> None:
        """Remove the content; removing what is not there is no fault."""


def asset_key(sha256: str, extension: str) -> str:
    """The key of a content. Raises ``ValueError`` for what is not a hash or an extension."""
    key = f"assets/{sha256[:2]}/{sha256}.{extension}"
    if not _KEY.match(key):
        raise ValueError("a key is made of a lower-case SHA-256 and a short extension")
    return key


def checked_key(key: str) -> str:
    """The key, if it is one. Raises ``ValueError``."""
    if not _KEY.match(key):
        raise ValueError("this is not an asset's key")
    return key
