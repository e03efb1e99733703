"""Lookups of rows by their keys, in groups: what is asked for while one group is read is the next group.

Clients repeat a few reads all the time. Each needs a connection and the execution of a query; a group
shares them, as commits share the journal. The caller that finds no group being read reads for those that wait,
itself included, and then lets the first of those that are left or came meanwhile read the next group. So a caller
that comes alone waits for no other. If the first that waits has done so for :data:`HANGS_S`, it begins another
group, so that a query that hangs delays only its own group, unless as many as :data:`GROUPS_MAX` hang.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import trio
from sqlalchemy import Connection

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

SLOW_S: Final = 0.02
"""A group that takes longer does not keep one that comes then waiting, if fewer than :data:`GROUPS_MAX` do."""
HANGS_S: Final = 0.25
"""A group that takes longer does not keep those waiting that came before either: on a busy machine many take
:data:`SLOW_S`, and the fewer groups there are, the less each lookup costs."""
GROUPS_MAX: Final = 2
CALLERS_MAX: Final = 32
"""Of one group: a row may have megabytes, and all of a group's are in memory until the last of them is read."""

Find: TypeAlias = Callable[[Connection, Sequence[K]], Mapping[K, V]]
"""Returns what it finds of some keys, in one query."""


class ReadRows(Protocol):
    """Runs a query on a connection, as :meth:`~holdfast.persistence.server.database.Database.read` does."""

    async def __call__(self, query: Callable[[Connection], T], /) -> T:
        """Run it. Raises :class:`~holdfast.persistence.server.database_faults.DatabaseAway`."""
        ...


class Lookup(Generic[K, V]):
    """A key to be found by ``find``. The key must have the form of its column: one that has not fails its group."""

    __slots__ = ("find", "found", "key")

    def __init__(self, find: Find[K, V], key: K) -> None:
        self.find = find
        self.key = key
        self.found: V | None = None
        """What was found of the key, None if nothing was."""


class _Asker:
    """A caller and its lookups. It is woken when they are done, or when it is to read the next group."""

    __slots__ = ("fault", "is_done", "lookups", "woken")

    def __init__(self, lookups: Sequence[Lookup[Any, Any]]) -> None:
        self.lookups = lookups
        self.woken = trio.Event()
        self.is_done = False
        self.fault: Exception | None = None


class GroupedLookups:
    """Reads lookups in groups of ``callers_max`` callers by ``read``, :data:`GROUPS_MAX` groups at a time."""

    def __init__(self, read: ReadRows, *, callers_max: int = CALLERS_MAX) -> None:
        self._read = read
        self._callers_max = callers_max
        self._waiting: list[_Asker] = []
        self._groups = 0
        self._begun_at = 0.0

    async def run(self, *lookups: Lookup[Any, Any]) -> None:
        """Look the keys up, all of them in one group.

        Raises as ``read`` does. A caller that reads for others is cancelled only after that.
        """
        asker = _Asker(lookups)
        if self._groups == 0 or (self._groups < GROUPS_MAX and trio.current_time() - self._begun_at > SLOW_S):
            self._groups += 1
        else:
            self._waiting.append(asker)
            try:
                await self._wait(asker)
            except trio.Cancelled:
                if asker in self._waiting:
                    self._waiting.remove(asker)
                elif asker.woken.is_set() and not asker.is_done:
                    # It was to read the next group, and was woken for that when it was cancelled already.
                    self._end_group()
                # Else it is in a group that is being read, which then is read in vain.
                raise
        if not asker.is_done:
            await self._read_group(asker)
        if asker.fault is not None:
            raise asker.fault

    async def _wait(self, asker: _Asker) -> None:
        """Wait until it is done or is to read the next group: the first, after :data:`HANGS_S`, beside another."""
        if self._waiting[0] is asker:
            with trio.move_on_after(HANGS_S):
                await asker.woken.wait()
            if self._groups < GROUPS_MAX and asker in self._waiting:
                self._waiting.remove(asker)
                self._groups += 1
                return
        await asker.woken.wait()

    async def _read_group(self, first: _Asker) -> None:
        """Read for a caller and those that wait."""
        others = self._callers_max - 1
        askers, self._waiting = [first, *self._waiting[:others]], self._waiting[others:]
        self._begun_at = trio.current_time()
        fault: Exception | None = None
        try:
            with trio.CancelScope(shield=True):
                await self._read(lambda rows: _look_up(rows, askers))
        except Exception as exc:  # each caller of the group raises it
            fault = exc
        for asker in askers:
            asker.is_done, asker.fault = True, fault
            asker.woken.set()
        self._end_group()

    def _end_group(self) -> None:
        """Leave the next group to the first that waits for it."""
        if self._waiting:
            self._waiting.pop(0).woken.set()
        else:
            self._groups -= 1


def _look_up(rows: Connection, askers: Iterable[_Asker]) -> None:
    lookups: dict[Find[Any, Any], list[Lookup[Any, Any]]] = {}
    for asker in askers:
        for lookup in asker.lookups:
            lookups.setdefault(lookup.find, []).append(lookup)
    for find, wanted in lookups.items():
        found = find(rows, list({lookup.key: None for lookup in wanted}))
        for lookup in wanted:
            lookup.found = found.get(lookup.key)
