"""Where files are stored, and what uploads use together: threads, quotas, the disk.

They are shared so that no account and no address can block others.

How many uploads are in progress is bounded by the connections alone: one whose client is slow holds less memory
than another body may, and no thread.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import trio

from holdfast.http.kit.fair_shares import WAITING_MAX, FairShares
from holdfast.persistence.claims.contents import ContentClaims
from holdfast.providers.storage.base import AssetStore

T = TypeVar("T")

WRITERS_MAX: Final = 4
STORERS_MAX: Final = 8
DISK_SHARE: Final = 2
"""Uploads in progress take at most one of so many parts of the disk that is free without them."""


class UploadThreads:
    """Threads for bytes that have arrived: an origin has half of them at most, and an account as many.

    So an account waits for few jobs of each other origin, and of each other account at its own.
    """

    def __init__(self, threads_max: int) -> None:
        self._threads = trio.CapacityLimiter(threads_max)
        self._accounts, self._origins = (
            FairShares(at_once_max=threads_max // 2, jobs_max=WAITING_MAX, timeout_s=float("inf")) for _ in range(2)
        )

    async def run(self, account_id: str, origin: str, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread in its turn."""

        async def run() -> T:
            return await trio.to_thread.run_sync(work, limiter=self._threads)

        return await self._accounts.run(account_id, lambda: self._origins.run(origin, run))


@dataclass(slots=True)
class _Account:
    """An account that uploads: its uploads, their bytes, and the bytes of its files when they were last read."""

    uploads: int = 0
    received: int = 0
    stored: int = 0


class UploadedBytes:
    """The bytes of uploads in progress, from their arrival until their temporary files are closed.

    They count towards the account's quota, together with its files. Of the disk, an origin has at most as much as
    it leaves to others. Each process counts its own uploads.
    """

    def __init__(self) -> None:
        self._total = 0
        self._of_origin: Counter[str] = Counter()
        self._accounts: dict[str, _Account] = {}

    @contextmanager
    def counted(self, account_id: str, origin: str) -> Iterator[CountedUpload]:
        """Count an upload within this context."""
        account = self._accounts.setdefault(account_id, _Account())
        upload = CountedUpload(self, account, origin)
        account.uploads += 1
        try:
            yield upload
        finally:
            account.uploads -= 1
            account.received -= upload.unkept
            if not account.uploads:
                del self._accounts[account_id]
            self.add(origin, -upload.received)

    def add(self, origin: str, bytes_count: int) -> None:
        """Count bytes of an origin; less if they are negative."""
        self._total += bytes_count
        self._of_origin[origin] += bytes_count
        if not self._of_origin[origin]:
            del self._of_origin[origin]

    def fits(self, origin: str, directory: Path) -> bool:
        """Whether the disk with ``directory`` has room for what an origin has sent; blocks.

        Raises ``OSError`` if it has none for anybody's.
        """
        left = (shutil.disk_usage(directory).free + self._total) // DISK_SHARE - self._total
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._of_origin[origin] <= left


class CountedUpload:
    """An upload in progress, and how many bytes of it have arrived."""

    __slots__ = ("_account", "_all", "_origin", "received", "unkept")

    def __init__(self, all_bytes: UploadedBytes, account: _Account, origin: str) -> None:
        self._all = all_bytes
        self._account = account
        self._origin = origin
        self.received = 0
        self.unkept = 0
        """Those that are no file yet."""

    def stored(self, bytes_count: int) -> None:
        """Note how much the account's files take."""
        self._account.stored = bytes_count

    @property
    def of_account(self) -> int:
        """What the account's files and its uploads take."""
        return self._account.stored + self._account.received

    def add(self, bytes_count: int) -> None:
        """Count bytes that have arrived."""
        self.received += bytes_count
        self.unkept += bytes_count
        self._account.received += bytes_count
        self._all.add(self._origin, bytes_count)

    def kept(self, bytes_count: int) -> None:
        """Count bytes as those of a file, which the account has from now on."""
        self.unkept -= bytes_count
        self._account.received -= bytes_count
        self._account.stored += bytes_count

    def fits(self, directory: Path) -> bool:
        """Whether the disk has room, as :meth:`UploadedBytes.fits` says."""
        return self._all.fits(self._origin, directory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Where contents are stored, and the shares of uploads.

    ``claims`` are of contents that are stored. ``writers`` are threads for the disk, ``storers`` those that wait
    for the ``store``.
    """

    store: AssetStore
    claims: ContentClaims
    uploaded_bytes: UploadedBytes = field(default_factory=UploadedBytes)
    writers: UploadThreads = field(default_factory=lambda: UploadThreads(WRITERS_MAX))
    storers: UploadThreads = field(default_factory=lambda: UploadThreads(STORERS_MAX))
