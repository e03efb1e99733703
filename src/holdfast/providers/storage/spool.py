"""Bytes on their way into the store: hashed as they come, in memory while they are few, then in a file.

The file has no name, so that nothing remains of it when its process ends, however that happens.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TypeAlias

MEMORY_BYTES_MAX = 1024 * 1024
"""The most that is usually held in memory."""
_BUFFER_BYTES = 8 * 1024
"""The buffer of a file. By itself it would have 128 KiB from Python 3.14 on."""

Content: TypeAlias = bytes | IO[bytes]
"""All bytes of a file: in memory, or in a file that can be read from its start."""


@contextmanager
def faults_in(folder: Path) -> Iterator[None]:
    """Name the folder in the text of an ``OSError``, which operators read."""
    try:
        yield
    except OSError as fault:
        raise OSError(fault.errno, f"{fault.strerror} in {folder}") from fault


class Spool:
    """Takes one file in blocks. Its methods block, and raise ``OSError`` if the disk does not take them."""

    def __init__(self, directory: Path, *, memory_bytes_max: int = MEMORY_BYTES_MAX) -> None:
        self._directory = directory
        self._memory_bytes_max = memory_bytes_max
        self._blocks: list[bytes] = []
        self._file: IO[bytes] | None = None
        self._digest = hashlib.sha256()
        self.bytes_count = 0

    def write(self, block: bytes) -> None:
        """Add a block."""
        self._digest.update(block)
        self.bytes_count += len(block)
        if self._file is None:
            self._blocks.append(block)
            if self.bytes_count <= self._memory_bytes_max:
                return
            with faults_in(self._directory):
                self._directory.mkdir(parents=True, exist_ok=True)
                self._file = tempfile.TemporaryFile(  # noqa: SIM115 - closed by ``close``
                    buffering=_BUFFER_BYTES, dir=self._directory
                )
            block = b"".join(self._blocks)
            self._blocks.clear()
        with faults_in(self._directory):
            self._file.write(block)

    def finish(self) -> Content:
        """Return the whole content, which lasts until ``close``."""
        if self._file is None:
            return b"".join(self._blocks)
        with faults_in(self._directory):
            self._file.flush()
        self._file.seek(0)
        return self._file

    @property
    def sha256(self) -> str:
        """The hash of what was written, in hex."""
        return self._digest.hexdigest()

    def close(self) -> None:
        """Discard the content."""
        self._blocks.clear()
        if self._file is not None:
            # A full disk does not take what the file's buffer still has.
            with suppress(OSError):
                self._file.close()
