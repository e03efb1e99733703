"""One run of a keyed directory under its supervisor, and what the directory asks before it lets actors begin."""

from __future__ import annotations

from typing import Protocol

import trio


class Gate(Protocol):
    """Whether decisions can be read for and written now; without that no actor can load or change anything."""

    @property
    def is_open(self) -> bool: ...

    @property
    def reason(self) -> str: ...

    @property
    def retry_after_s(self) -> float: ...

    async def wait_open(self) -> None: ...


class Keyed(Protocol):
    """What a supervisor needs of a directory."""

    def place(self, path: str) -> None: ...

    async def run(self, task_status: trio.TaskStatus[None]) -> None: ...

    async def drain(self) -> None: ...


class KeyedChild:
    """One run of a directory."""

    def __init__(self, directory: Keyed) -> None:
        self._directory = directory

    def place(self, path: str) -> None:
        """Learn where in the tree it lives."""
        self._directory.place(path)

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Run the directory."""
        await self._directory.run(task_status)

    async def stop(self) -> None:
        """Drain the directory."""
        await self._directory.drain()
