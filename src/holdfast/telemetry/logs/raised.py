"""Levels raised for a time: the lines at ``debug`` of one module, kind of actor, account or request path.

While none is raised, a call below the level costs what it always does. While one is, such calls make their lines,
and those that no subject takes are dropped. A subject has so many lines in a second at most; others are counted.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from datetime import timedelta
from time import monotonic
from typing import Final

import msgspec
import trio

from holdfast.ledger.clock import format_time, utc_now
from holdfast.ledger.public_types import Time

SUBJECTS_MAX: Final = 20
"""How many levels are raised at a time; one more ends the oldest."""

about: ContextVar[tuple[str, ...]] = ContextVar("about", default=())
"""What the current work is about, while a level is raised: a kind of actor and its ids, or a request's path."""


class RaisedLevel(msgspec.Struct, frozen=True, kw_only=True):
    """A level that is raised for a time in one process."""

    subject: str
    """A module, a kind of actor, an account or the beginning of a path: its lines at `debug` are written."""
    reason: str
    """Why the operator raised it."""
    ends_at: Time
    """When it ends."""
    lines_per_s: int
    """How many lines are written in a second at most."""
    logged: int
    """How many were written."""
    dropped: int
    """How many were dropped, because there were more."""


class Raised:
    """One of them. ``until`` is a time of trio's clock. Safe for threads."""

    def __init__(self, subject: str, reason: str, *, for_s: float, lines_per_s: int) -> None:
        self.subject = subject
        self.until = trio.current_time() + for_s
        self.logged = self.dropped = 0
        self._reason = reason
        self._ends_at = format_time(utc_now() + timedelta(seconds=for_s))
        self._lines_per_s = lines_per_s
        self._second, self._in_second = -1, 0
        self._lock = threading.Lock()

    def is_of(self, names: Iterable[object]) -> bool:
        """Whether one of the names is the subject, or below it."""
        below = (f"{self.subject}.", f"{self.subject}/")
        return any(isinstance(name, str) and (name == self.subject or name.startswith(below)) for name in names)

    def admit(self) -> bool:
        """Whether a line may be written in this second; otherwise it is counted."""
        with self._lock:
            second = int(monotonic())
            if second != self._second:
                self._second, self._in_second = second, 0
            self._in_second += 1
            is_admitted = self._in_second <= self._lines_per_s
            self.logged += is_admitted
            self.dropped += not is_admitted
            return is_admitted

    def shown(self) -> RaisedLevel:
        """Return it as operators see it."""
        return RaisedLevel(
            subject=self.subject,
            reason=self._reason,
            ends_at=self._ends_at,
            lines_per_s=self._lines_per_s,
            logged=self.logged,
            dropped=self.dropped,
        )


class RaisedLevels:
    """Those of this process. ``on_change`` is called when the first is raised and when the last has ended.

    ``on_end`` is called with each that has ended.
    """

    def __init__(self, on_change: Callable[[], None], on_end: Callable[[Raised], None]) -> None:
        self.any = False
        """Whether one is raised."""
        self._on_change, self._on_end = on_change, on_end
        self._raised: dict[str, Raised] = {}
        self._changed = trio.Event()

    def begin(self, raised: Raised) -> None:
        """Raise a level, in place of an earlier one of its subject."""
        self.end(raised.subject)
        if len(self._raised) >= SUBJECTS_MAX:
            self.end(next(iter(self._raised)))
        self._raised = {**self._raised, raised.subject: raised}
        self._change()

    def end(self, subject: str) -> None:
        """End one, if it is raised."""
        raised = self._raised.get(subject)
        if raised is not None:
            self._raised = {name: each for name, each in self._raised.items() if name != subject}
            self._change()
            self._on_end(raised)

    def clear(self) -> None:
        """End all, without a word."""
        self._raised, self.any = {}, False

    def list(self) -> list[RaisedLevel]:
        """Return those that are raised, the oldest first."""
        return [each.shown() for each in self._raised.values()]

    def find(self, *names: object) -> Raised | None:
        """Return the one that takes what these names say, or what the current work is about."""
        names = (*names, *about.get())
        return next((each for each in self._raised.values() if each.is_of(names)), None)

    async def end_in_time(self) -> None:
        """End each when its time is over, until cancelled."""
        while True:
            with trio.move_on_at(min((each.until for each in self._raised.values()), default=math.inf)):
                await self._changed.wait()
            for each in [*self._raised.values()]:
                if each.until <= trio.current_time():
                    self.end(each.subject)

    def _change(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()
        if self.any is not bool(self._raised):
            self.any = bool(self._raised)
            self._on_change()
