"""The watch of turns: what takes too long is reported once, with where it waits, and again when it has ended.

That is the turn of an actor, its start, or the pass of a worker. While the database is away nothing is reported:
turns wait for it, and the outage is reported as such.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal, NamedTuple, TypedDict, Unpack

import trio

from holdfast.actors.workers.passes import Pass, Passes
from holdfast.supervision.directory import KeyedDirectory
from holdfast.supervision.keyed_child import KeyedChild
from holdfast.telemetry.reports.report import Report
from holdfast.telemetry.reports.reporter import Reporter

FRAMES_MAX: Final = 6
STACK_MAX: Final = 40


class _Turn(NamedTuple):
    """A turn that takes too long. ``what`` is the type of its message, or the name of a pass."""

    path: str
    key: str | None
    incarnation: int | None
    what: str
    began_at: float


class _Where(TypedDict, total=False):
    """What else is known of a turn that has not ended."""

    location: str | None
    mailbox_depth: int | None
    trace_id: str | None


class TurnWatch:
    """Checks the actors of ``directories`` and the workers for turns that take longer than ``limit_s``."""

    def __init__(
        self,
        directories: Iterable[KeyedDirectory],
        passes: Passes,
        *,
        limit_s: float,
        reporter: Reporter,
        is_database_open: Callable[[], bool],
        mask: Callable[[str, str], str],
    ) -> None:
        self._directories = tuple(directories)
        self._passes = passes
        self._limit_s = limit_s
        self._reporter = reporter
        self._is_database_open = is_database_open
        self._mask = mask
        self._reported: set[_Turn] = set()

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
        found: dict[_Turn, KeyedChild | Pass] = {**dict(self._long_turns(now)), **dict(self._long_passes(now))}
        for turn in self._reported - found.keys():
            self._report(turn, now, "recovery", f"{turn.what} has ended")
        for turn, each in found.items():
            if turn not in self._reported:
                self._report_stuck(turn, each, now)
        self._reported = set(found)

    def _long_turns(self, now: float) -> Iterator[tuple[_Turn, KeyedChild]]:
        for directory in self._directories:
            for child in directory.by_key.values():
                if (began_at := _began_at(child)) < now - self._limit_s:
                    turn = child.actor.turn if child.actor is not None else None
                    what = "its start" if turn is None else type(turn.message).__name__
                    key = self._mask(directory.name, child.key)
                    yield _Turn(directory.name, key, child.incarnation, what, began_at), child

    def _long_passes(self, now: float) -> Iterator[tuple[_Turn, Pass]]:
        for each in self._passes.open:
            if each.began_at < now - max(self._limit_s, each.bound_s):
                yield _Turn(f"holdfast/workers/{each.worker}", None, None, each.what, each.began_at), each

    def _report_stuck(self, turn: _Turn, found: KeyedChild | Pass, now: float) -> None:
        frames = await_stack(found.task) if found.task is not None else []
        stack = [frame for frame in frames if not frame.startswith("trio.")]
        child = found if isinstance(found, KeyedChild) else None
        message = child.actor.turn if child is not None and child.actor is not None else None
        self._report(
            turn,
            now,
            "stuck",
            f"{turn.what} waits in " + " < ".join(reversed(stack[-FRAMES_MAX:])),
            location=stack[-1] if stack else None,
            mailbox_depth=len(child.mailbox) if child is not None else None,
            trace_id=message.trace_id if message is not None else None,
        )

    def _report(
        self, turn: _Turn, now: float, kind: Literal["stuck", "recovery"], reason: str, **more: Unpack[_Where]
    ) -> None:
        self._reporter.report(
            Report(
                kind=kind,
                path=turn.path,
                key=turn.key,
                incarnation=turn.incarnation,
                reason=reason,
                last_message_type=turn.what if turn.key is not None else None,
                duration_s=round(now - turn.began_at, 1),
                **more,
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


def await_stack(task: trio.lowlevel.Task) -> list[str]:
    """Return where a task waits, as ``module.function:line``, the outermost first; of many, the innermost."""
    frames = [
        f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}:{line}"
        for frame, line in task.iter_await_frames()
    ]
    return frames[-STACK_MAX:]
