"""The queue of what a writer is to store: nothing waits for the writer, also while the database is away."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from itertools import islice
from typing import Final, Generic, TypeVar

import trio

from holdfast.persistence.server.database import Database

RETRY_S: Final = 1.0

T = TypeVar("T")


class NewestQueue(Generic[T]):
    """The newest ones that are not stored yet, ``most`` of them, in order. It outlives its writer."""

    def __init__(self, most: int) -> None:
        self._waiting: deque[T] = deque(maxlen=most)
        self._has_some = trio.Event()
        self.lost_count = 0
        """How many were dropped and not stored, since :meth:`take_lost`."""

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, one: T) -> None:
        """Add one; the oldest is dropped if there is no room."""
        self.lost_count += len(self._waiting) == self._waiting.maxlen
        self._waiting.append(one)
        self._has_some.set()

    async def wait(self) -> None:
        """Wait until there is one."""
        await self._has_some.wait()

    def first(self, most: int) -> list[T]:
        """Return the oldest ones, which stay."""
        return list(islice(self._waiting, most))

    def remove(self, done: Collection[T]) -> None:
        """Remove what :meth:`first` has returned. Those that were dropped since are not lost."""
        ids = {id(one) for one in done}
        while self._waiting and id(self._waiting[0]) in ids:
            ids.remove(id(self._waiting.popleft()))
        self.lost_count -= len(ids)
        if not self._waiting:
            self._has_some = trio.Event()

    def take_lost(self) -> int:
        """Return the number of lost ones, and count from zero again."""
        lost, self.lost_count = self.lost_count, 0
        return lost


async def wait_to_retry(database: Database) -> None:
    """Wait, after the database was away, until a writer should try again."""
    if database.gate.is_open:
        await trio.sleep(RETRY_S)
    await database.gate.wait_open()
