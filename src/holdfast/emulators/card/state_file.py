"""The file that stores the emulator's state, so that it survives a kill of the process.

The file is replaced as a whole and never half written. It is not fsynced: it has to survive the death of the
process, not of the machine. Concurrent changes share one write.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec
import structlog
import trio

from holdfast.emulators.card.state import State, Store

FILE_NAME: Final = "card-emulator.json"

_log = structlog.get_logger(__name__)


def load_state(folder: Path) -> State:
    """Load the state of the previous run; blocking. An unreadable file is renamed and the state starts empty."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        return State()
    except (msgspec.MsgspecError, UnicodeDecodeError) as fault:
        _log.warning("the card emulator's state is unreadable", fault=type(fault).__name__)
        path.replace(path.with_suffix(".unreadable"))
        return State()


class StateFile:
    """Writes the state. ``write`` returns once every change made before the call is in the file."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._path = folder / FILE_NAME
        self._writing = trio.Lock()
        self._thread = trio.CapacityLimiter(1)
        self._wanted = 0
        self._written = 0

    async def write(self) -> None:
        """Write all changes so far. No change is answered or sent before. Raises ``OSError``."""
        self._wanted += 1
        mine = self._wanted
        async with self._writing:
            if self._written >= mine:
                return
            covered = self._wanted
            self._store.prune()
            content = msgspec.json.encode(self._store.state)
            # Not abandoned when cancelled: a leftover writer would race the next one for the draft.
            await trio.to_thread.run_sync(_replace, self._path, content, limiter=self._thread)
            self._written = covered


def _replace(path: Path, content: bytes) -> None:
    draft = path.with_suffix(".draft")
    # The state contains client secrets.
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    draft.replace(path)
