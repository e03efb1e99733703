"""Levels raised for a time: the lines at ``debug`` of one module, kind of actor, account or request path.

While none is raised, a call below the level costs what it always does. While one is, such calls make their lines,
and those that no subject takes are dropped. A subject has so many lines in a second at most; others are counted.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from time import monotonic
from typing import Final

import msgspec
import trio
from msgspec.structs import replace

from holdfast.ledger.public_types import Time
from holdfast.ledger.values import format_time, utc_now

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
    logged: int = 0
    """How many were written."""
    dropped: int = 0
    """How many were dropped, because there were more."""


class RaisedLevels:
    """Those of this process. ``on_change`` is called when the first is raised and when the last has ended,
    ``on_end`` with each that has ended. Levels are raised and ended in trio's thread; lines may come from any.
    """

    def __init__(self, on_change: Callable[[], None], on_end: Callable[[RaisedLevel], None]) -> None:
        self.any = False
        """Whether one is raised."""
        self._on_change, self._on_end = on_change, on_end
        self._levels: dict[str, RaisedLevel] = {}
        self._until: dict[str, float] = {}
        self._changed = trio.Event()
        self._second, self._in_second = 0, Counter[str]()
        self._lock = threading.Lock()

    def begin(self, subject: str, reason: str, *, for_s: float, lines_per_s: int) -> None:
        """Raise a level, in place of an earlier one of its subject."""
        self.end(subject)
        if len(self._levels) >= SUBJECTS_MAX:
            self.end(next(iter(self._levels)))
        ends_at = format_time(utc_now() + timedelta(seconds=for_s))
        level = RaisedLevel(subject=subject, reason=reason, ends_at=ends_at, lines_per_s=lines_per_s)
        with self._lock:
            self._levels[subject] = level
        self._until[subject] = trio.current_time() + for_s
        self._change()

    def end(self, subject: str) -> None:
        """End one, if it is raised."""
        with self._lock:
            level = self._levels.pop(subject, None)
        if level is not None:
            del self._until[subject]
            self._change()
            self._on_end(level)

    def clear(self) -> None:
        """End all, without a word."""
        self._levels, self._until, self.any = {}, {}, False

    def list(self) -> list[RaisedLevel]:
        """Return those that are raised, the oldest first."""
        return [*self._levels.values()]

    def find(self, *names: object) -> RaisedLevel | None:
        """Return the one that takes what these names say, or what the current work is about."""
        texts = [each for each in (*names, *about.get()) if isinstance(each, str)]
        with self._lock:
            for subject, level in self._levels.items():
                below = (f"{subject}.", f"{subject}/")
                if any(text == subject or text.startswith(below) for text in texts):
                    return level
        return None

    def admit(self, *names: object) -> str | None:
        """Return the subject that takes a line; None if none does, or has had its lines of this second."""
        level = self.find(*names)
        if level is None:
            return None
        with self._lock:
            if int(monotonic()) != self._second:
                self._second, self._in_second = int(monotonic()), Counter()
            subject = level.subject
            self._in_second[subject] += 1
            is_in_time = self._in_second[subject] <= level.lines_per_s
            level = self._levels.get(subject, level)
            if subject in self._levels:
                logged, dropped = level.logged + is_in_time, level.dropped + (not is_in_time)
                self._levels[subject] = replace(level, logged=logged, dropped=dropped)
        return subject if is_in_time else None

    async def end_in_time(self) -> None:
        """End each when its time is over, until cancelled."""
        while True:
            with trio.move_on_at(min(self._until.values(), default=math.inf)):
                await self._changed.wait()
            for subject, until in [*self._until.items()]:
                if until <= trio.current_time():
                    self.end(subject)

    def _change(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()
        if self.any is not bool(self._levels):
            self.any = bool(self._levels)
            self._on_change()
