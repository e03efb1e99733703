"""What commits have changed, for requests and streams that wait for it instead of reading again and again.

A process notes what its own journal has committed, and receives the notices of the other members. A notice names a
row: who gets it reads the row, and so sees what any other reader would. A notice of this process may also have what
was committed, which saves the read, unless it could be older than what was seen before: rows were read after that
commit began, or another member has named the row. A notice may come without a change, and twice. One may be missed
only while a member is not connected (``is_complete`` is False then), and afterwards all who wait are woken once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import trio
from msgspec.structs import replace

from holdfast.ledger.orders.order import Order
from holdfast.ledger.tasks.task import Task
from holdfast.persistence.journal.units import Unit
from holdfast.persistence.records.rows import AccountHead, NewTaskRow, TaskChangedRow

REREAD_S: Final = 1.0
"""How often a row is read again while notices may be missed."""
NAMED_MAX: Final = 500
"""Of how many changed rows of an account a watch keeps the names; beyond that it has only ``missed`` some."""
VALUES_MAX: Final = 32
"""Of how many changed rows of an account a watch keeps what was committed; the others are read."""
PARTS_MAX: Final = 16
"""A task with more outputs, reports of progress and texts of metadata than this in all is read."""

Value: TypeAlias = AccountHead | Order | Task
"""What was committed of a row; a task without its input."""


class KeptRow(msgspec.Struct, gc=False):
    """What the watches of an account keep of a row, all of them the same."""

    value: Value
    event: bytes | None = None
    """The event that streams send of it, once one of them or the response to a create has made it."""


class Extent(IntEnum):
    """What of a row was changed: anything, a task's status, or that to the last one it has."""

    ANYTHING = 1
    STATUS = 2
    END = 3


class Change(NamedTuple):
    """A row that was changed or added: a task, an order, or (by the account's own id) the account's totals."""

    account_id: str
    row_id: str
    extent: Extent = Extent.ANYTHING


_Written: TypeAlias = tuple[str, str, Extent, Value]
"""The fields of a change, and what was committed."""


def _of_changed_task(row: TaskChangedRow) -> _Written:
    task = row.task
    extent = Extent.END if task.is_terminal else Extent.STATUS if row.has_new_usage else Extent.ANYTHING
    return task.account_id, task.request_id, extent, task


_OF_ROW: Final[dict[type, Callable[[Any], _Written]]] = {
    AccountHead: lambda row: (row.id, row.id, Extent.ANYTHING, row),
    Order: lambda row: (row.account_id, row.order_id, Extent.ANYTHING, row),
    NewTaskRow: lambda row: (row.task.account_id, row.task.request_id, Extent.ANYTHING, row.task),
    TaskChangedRow: _of_changed_task,
}


def _kept(value: Value) -> KeptRow | None:
    """Return what watches keep of a row: not the input of a task, and nothing of a large one."""
    if not isinstance(value, Task):
        return KeptRow(value)
    request, state = value.request, value.state
    wanted, lost = state.hosting.wanted, state.hosting.lost
    if len(request.metadata) + len(state.progress) + len(state.output) + len(wanted) + len(lost) > PARTS_MAX:
        return None
    return KeptRow(replace(value, request=request.without_input))


class Watch:
    """The notices of one task or one account that have come and were not taken yet."""

    def __init__(self, changes: Changes, values_max: int) -> None:
        self._changes = changes
        self._values_max = values_max
        self._woken = trio.Event()
        self._rows: dict[str, KeptRow | None] = {}
        self._read_at = -math.inf
        self._missed = False
        self._noted = 0
        """The greatest extent of what was noted, 0 if nothing was."""
        self._awaited = Extent.ANYTHING
        self._is_ended = False

    @property
    def is_ending(self) -> bool:
        """Whether nothing should be waited for any more."""
        return self._is_ended or self._changes.is_ending

    def end(self) -> None:
        """Wake who waits, who is not to wait any more."""
        self._is_ended = True
        self.note(None)

    def note(
        self,
        row_id: str | None,
        extent: Extent = Extent.END,
        kept: KeptRow | None = None,
        begun_at: float = -math.inf,
    ) -> None:
        """Note that a row was changed, and what a commit that began then has written; None: any may have been."""
        rows = self._rows
        if row_id is None:
            self._missed = True
        elif row_id in rows:
            # One that was named without its value must be read: the two may have come out of order.
            rows[row_id] = kept if begun_at > self._read_at and rows[row_id] is not None else None
        elif len(rows) >= NAMED_MAX:
            self._missed = True
        else:
            # What was committed may be older than what was read while it was.
            rows[row_id] = kept if begun_at > self._read_at and len(rows) < self._values_max else None
        if extent > self._noted:
            self._noted = extent
            if extent >= self._awaited:
                self._woken.set()

    def kept(self, row_id: str) -> KeptRow | None:
        """Return what was committed of a row and not taken yet, None if that is not kept."""
        return self._rows.get(row_id)

    @property
    def must_read(self) -> bool:
        """Whether something has to be read: a row that was changed, or without any change what may have been."""
        return self._missed or not self._rows or any(kept is None for kept in self._rows.values())

    def note_read(self) -> None:
        """Note that rows were read: what commits that have begun by now have written may be older."""
        self._read_at = trio.current_time()
        self._rows = dict.fromkeys(self._rows)

    async def wait(self, until: float, extent: Extent = Extent.ANYTHING) -> None:
        """Return when a change of this extent is noted, when the watch is ending, and at a time (trio's).

        Also once a second while notices may be missed: what is waited for has to be read again each time.
        """
        if self.is_ending or self._noted >= extent:
            return
        self._awaited, self._woken = extent, trio.Event()
        reads_again = not self._changes.is_complete()
        if reads_again:
            until = min(until, trio.current_time() + REREAD_S)
        with trio.move_on_at(until) as waiting:
            await self._woken.wait()
        if waiting.cancelled_caught and reads_again:
            self._missed = True

    def take(self) -> tuple[dict[str, KeptRow | None], bool]:
        """Return the rows that were changed, None for one that must be read; and whether others may have been."""
        taken = self._rows, self._missed
        self._rows = {}
        self._missed = False
        self._noted = 0
        return taken


class Changes:
    """The notices of this process, and who waits for them.

    ``send`` sends to the other members, ``is_complete`` returns whether all of them send to this one.
    """

    def __init__(self) -> None:
        self.send: Callable[[Sequence[Change]], None] | None = None
        self.is_complete: Callable[[], bool] = lambda: True
        self.is_ending = False
        """Whether the process is about to stop, so that nothing should wait any more."""
        self._watches: dict[str, dict[Watch, None]] = {}

    @contextmanager
    def watch(self, watched_id: str, *, values_max: int = 0) -> Iterator[Watch]:
        """Watch a task by its id, or all of an account by the account's. What is read from now on is not missed.

        The watch keeps what was committed of ``values_max`` rows at most.
        """
        watch = Watch(self, values_max)
        self._watches.setdefault(watched_id, {})[watch] = None
        try:
            yield watch
        finally:
            watches = self._watches[watched_id]
            del watches[watch]
            if not watches:
                del self._watches[watched_id]

    def commit(self, units: Iterable[Unit], begun_at: float = -math.inf) -> None:
        """Note what the units of a commit have changed, and send that to the other members.

        ``begun_at`` is when the commit began (trio's time); it is not given if it may not have happened.
        """
        watches, send = self._watches, self.send
        if send is None and not watches:
            return
        written: dict[str, _Written] = {}
        for unit in units:
            for row in unit.rows:
                of_row = _OF_ROW.get(type(row))
                if of_row is None:
                    continue
                account_id, row_id, extent, value = of_row(row)
                if send is not None or account_id in watches or row_id in watches:
                    if row_id in written:
                        extent = max(extent, written[row_id][2])
                    written[row_id] = account_id, row_id, extent, value
        for account_id, row_id, extent, value in written.values():
            self._note(account_id, row_id, extent, value, begun_at)
        if written and send is not None:
            send([Change(account_id, row_id, extent) for account_id, row_id, extent, _ in written.values()])

    def note(self, changes: Iterable[Change]) -> None:
        """Wake those who wait for any of these."""
        for change in changes:
            self._note(*change)

    def _note(
        self, account_id: str, row_id: str, extent: Extent, value: Value | None = None, begun_at: float = -math.inf
    ) -> None:
        watches = self._watches.get(account_id)
        if watches is not None:
            kept = None if value is None else _kept(value)
            for watch in watches:
                watch.note(row_id, extent, kept, begun_at)
        # What waits for a task keeps nothing of it.
        if row_id != account_id and (watches := self._watches.get(row_id)) is not None:
            for watch in watches:
                watch.note(row_id, extent)

    def kept(self, account_id: str, row_id: str) -> KeptRow | None:
        """Return what a watch of the account keeps of a row, None if none does."""
        for watch in self._watches.get(account_id, ()):
            if (kept := watch.kept(row_id)) is not None:
                return kept
        return None

    def note_missed(self) -> None:
        """Wake all who wait: a notice for any of them may have been missed."""
        for watches in self._watches.values():
            for watch in watches:
                watch.note(None)

    def end(self) -> None:
        """Wake all who wait, since the process is about to stop."""
        self.is_ending = True
        self.note_missed()
