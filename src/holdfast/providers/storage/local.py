"""Store content as files in a local or shared folder."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import trio

from holdfast.ledger.values import new_id
from holdfast.providers.storage.base import (
    BLOCK_BYTES,
    PRIVATE,
    AssetCorrupt,
    AssetMissing,
    AssetReader,
    asset_key,
    checked_key,
    clear_leftovers,
)
from holdfast.providers.storage.spool import Content, faults_in

THREADS_MAX_COUNT = 8


class LocalStore:
    """Assets as files below ``directory``, written in threads of its own limiter.

    A file appears under its name only once all of it is on the disk: written to a temporary file, synced, renamed,
    and the folder synced.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._aside = directory / "assets" / "incoming"
        self._synced: set[Path] = set()
        """Folders that are durable themselves."""
        self._threads = trio.CapacityLimiter(THREADS_MAX_COUNT)

    async def prepare(self) -> None:
        """Create the folders, and remove partial files."""
        await self.remove_leftovers()

    async def remove_leftovers(self) -> None:
        """Remove the partial files of puts that ended with their process."""
        await trio.to_thread.run_sync(clear_leftovers, self._aside, limiter=self._threads)

    def put(self, content: Content, sha256: str, extension: str) -> str:
        """Store the content and return its key, durably; blocks. Raises :class:`AssetCorrupt`."""
        with faults_in(self._aside.parent):
            return self._put(content, sha256, extension)

    def _put(self, content: Content, sha256: str, extension: str) -> str:
        key = asset_key(sha256, extension)
        target = self._path(key)
        aside = self._aside / new_id("asset")
        try:
            with _created(aside) as file:
                if _write(content, file) != sha256:
                    raise AssetCorrupt("the content does not have the announced hash")
                os.fsync(file)
                # While it is locked: otherwise it could be taken for a leftover.
                try:
                    aside.replace(target)
                except FileNotFoundError:
                    target.parent.mkdir(mode=PRIVATE, exist_ok=True)
                    aside.replace(target)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        _sync_directory(target.parent)
        if target.parent not in self._synced:
            # Not only by the thread that created it: another may store in it before that thread has synced.
            _sync_directory(target.parent.parent)
            self._synced.add(target.parent)
        return key

    async def open(self, key: str, start: int = 0, end: int | None = None) -> AssetReader:
        """Read bytes ``start`` to before ``end``. Raises :class:`AssetMissing`."""
        path = self._path(key)
        try:
            with faults_in(self._aside.parent):
                file, size = await trio.to_thread.run_sync(_open, path, start, limiter=self._threads)
        except FileNotFoundError as fault:
            raise AssetMissing(key) from fault
        left = max(0, (size if end is None else min(end, size)) - start)

        async def read() -> bytes:
            nonlocal left
            want = min(BLOCK_BYTES, left)
            block = await trio.to_thread.run_sync(file.read, want, limiter=self._threads) if want else b""
            left -= len(block)
            return block

        return AssetReader(read, file.close)

    async def delete(self, key: str) -> None:
        """Remove the content; missing content is no fault."""
        path = self._path(key)
        await trio.to_thread.run_sync(lambda: path.unlink(missing_ok=True), limiter=self._threads)

    def _path(self, key: str) -> Path:
        return self._directory / checked_key(key)


def _open(path: Path, start: int) -> tuple[IO[bytes], int]:
    file = path.open("rb")
    file.seek(start)
    return file, os.fstat(file.fileno()).st_size


@contextmanager
def _created(path: Path) -> Iterator[int]:
    """Create a file, lock it, and give its descriptor, for as long as the context.

    A file object would make three more system calls, each of which hands the interpreter over and back.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        file = os.open(path, flags, 0o640)
    except FileNotFoundError:
        path.parent.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        file = os.open(path, flags, 0o640)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


def _write(content: Content, target: int) -> str:
    """Write a content's bytes and return their hash."""
    if isinstance(content, bytes):
        _write_all(target, content)
        return hashlib.sha256(content).hexdigest()
    digest = hashlib.sha256()
    content.seek(0)
    while block := content.read(BLOCK_BYTES):
        digest.update(block)
        _write_all(target, block)
    return digest.hexdigest()


def _write_all(file: int, block: bytes) -> None:
    """Write a block; a call may write a part only, as one into a nearly full disk does."""
    rest = memoryview(block)
    while rest:
        rest = rest[os.write(file, rest) :]


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
