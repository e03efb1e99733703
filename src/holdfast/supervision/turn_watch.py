"""The watch of turns: an actor that handles one message for too long is reported, once, with where it waits.

While the database is away nothing is reported: turns wait for it, and the outage is reported as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import trio

from holdfast.reports.report import Report
from holdfast.reports.reporter import Reporter
from holdfast.supervision.control.await_stack import await_stack
from holdfast.supervision.directory import KeyedDirectory
from holdfast.supervision.keyed_child import KeyedChild

SHOWN_MAX: Final = 10
"""So many stuck turns are reported one by one in one check; the others are counted."""
FRAMES_SHOWN: Final = 6


class _Stuck(NamedTuple):
    """What was reported: the incarnation, when its turn began, and the type of the message."""

    incarnation: int
    began_at: float
    what: str


class TurnWatch:
    """Checks the actors of ``directories`` for turns, and starts, that take longer than ``limit_s``."""

    def __init__(
        self,
        directories: Iterable[KeyedDirectory],
        *,
        limit_s: float,
        reporter: Reporter,
        is_database_open: Callable[[], bool],
        mask: Callable[[str, str], str],
    ) -> None:
        self._directories = tuple(directories)
        self._limit_s = limit_s
        self._reporter = reporter
        self._is_database_open = is_database_open
        self._mask = mask
        self._reported: dict[tuple[str, str], _Stuck] = {}

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Check until cancelled."""
        task_status.started()
        while True:
            await trio.sleep(min(max(self._limit_s / 4, 0.5), 5.0))
            if self._is_database_open():
                self.check()

    def check(self) -> None:
        """Report turns that have become too long, and those of the reported ones that have ended."""
        now = trio.current_time()
        found = [
            (directory, child)
            for directory in self._directories
            for child in directory.lives.children.values()
            if _began_at(child) < now - self._limit_s
        ]
        self._report_ended(now, {(directory.name, child.key): child for directory, child in found})
        new = [pair for pair in found if (pair[0].name, pair[1].key) not in self._reported]
        for directory, child in new:
            self._reported[directory.name, child.key] = _Stuck(child.incarnation, _began_at(child), _what(child))
        for directory, child in new[:SHOWN_MAX]:
            self._report(directory, child, now)
        if len(new) > SHOWN_MAX:
            self._reporter.report(
                Report(
                    kind="stuck",
                    at=self._reporter.now(),
                    path=new[-1][0].name,
                    reason="further actors are in one turn for too long",
                    count=len(new) - SHOWN_MAX,
                    duration_s=self._limit_s,
                )
            )

    def _report_ended(self, now: float, found: dict[tuple[str, str], KeyedChild]) -> None:
        for (name, key), stuck in list(self._reported.items()):
            child = found.get((name, key))
            if child is not None and (child.incarnation, _began_at(child)) == stuck[:2]:
                continue
            del self._reported[name, key]
            self._reporter.report(
                Report(
                    kind="recovery",
                    at=self._reporter.now(),
                    path=name,
                    key=self._mask(name, key),
                    incarnation=stuck.incarnation,
                    reason=f"its turn has ended: {stuck.what}",
                    last_message_type=stuck.what,
                    duration_s=round(now - stuck.began_at, 1),
                )
            )

    def _report(self, directory: KeyedDirectory, child: KeyedChild, now: float) -> None:
        turn = child.actor.turn if child.actor is not None else None
        stack = await_stack(child.task) if child.task is not None else []
        self._reporter.report(
            Report(
                kind="stuck",
                at=self._reporter.now(),
                path=directory.name,
                key=self._mask(directory.name, child.key),
                incarnation=child.incarnation,
                reason="it waits in " + " < ".join(reversed(stack[-FRAMES_SHOWN:])),
                location=stack[-1] if stack else None,
                last_message_type=_what(child),
                mailbox_depth=len(child.mailbox),
                duration_s=round(now - _began_at(child), 1),
                trace_id=turn.trace_id if turn is not None else None,
            )
        )


def _began_at(child: KeyedChild) -> float:
    """Return when the present turn began, or the start of an actor that is not up yet; infinity for neither."""
    actor = child.actor
    if actor is None:
        return float("inf")
    if actor.turn is not None:
        return actor.turn.began_at
    return float("inf") if actor.is_serving else child.began_at


def _what(child: KeyedChild) -> str:
    turn = child.actor.turn if child.actor is not None else None
    return "its start" if turn is None else type(turn.message).__name__
