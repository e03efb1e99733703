"""Keeping the emulator's state in one small file, so that it outlives a kill of the process.

The file is replaced as a whole and never half written. It is not forced to the disk: it has to survive the death of
the process, not of the machine. Changes that come close together share one writing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec
import structlog
import trio

from holdfast.providers.card.emulator.books import Books, State

FILE_NAME: Final = "card-emulator.json"

_log = structlog.get_logger(__name__)


def load_state(folder: Path) -> State:
    """Read what an earlier life kept; blocking. A file that cannot be read is set aside for an empty start."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        return State()
    except (msgspec.MsgspecError, UnicodeDecodeError) as fault:
        _log.warning("card_emulator_state_unreadable", fault=type(fault).__name__)
        path.replace(path.with_suffix(".unreadable"))
        return State()


class Shelf:
    """Writes the books. ``keep`` returns once everything changed before the call is in the file."""

    def __init__(self, books: Books, folder: Path) -> None:
        self._books = books
        self._path = folder / FILE_NAME
        self._writing = trio.Lock()
        self._thread = trio.CapacityLimiter(1)
        self._wanted = 0
        self._written = 0

    async def keep(self) -> None:
        """Have all changes so far written. A change is not told to anybody before. Raises ``OSError``."""
        self._wanted += 1
        mine = self._wanted
        async with self._writing:
            if self._written >= mine:
                return
            covered = self._wanted
            self._books.prune()
            content = msgspec.json.encode(self._books.state)
            # Not abandoned when cancelled: a writer left behind would race the next one for the draft.
            await trio.to_thread.run_sync(_replace, self._path, content, limiter=self._thread)
            self._written = covered


def _replace(path: Path, content: bytes) -> None:
    draft = path.with_suffix(".draft")
    # Client secrets are inside.
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    draft.replace(path)
