"""Passes: what a worker does between two waits, a round of its loop or a turn with a message.

A worker that waits between two passes is idle; one whose pass does not end is stuck. :func:`repeat` is the usual
loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, NoReturn, TypeVar

import msgspec
import structlog
import trio

from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.telemetry import metrics
from holdfast.telemetry.metrics.batched_histogram import BatchedHistogram

log = structlog.get_logger(__name__)

T = TypeVar("T")

LOOK_S: Final = 1.0
"""How often the rows are looked at for all workers (:mod:`holdfast.actors.workers.due_work`)."""


class Pass(msgspec.Struct, frozen=True, eq=False):
    """One pass. It may take ``bound_s`` seconds, or the limit of all passes if that is longer."""

    worker: str
    what: str
    bound_s: float
    began_at: float
    task: trio.lowlevel.Task


class Passes:
    """The passes under way in one process, in the order in which they began."""

    def __init__(self) -> None:
        self.open: dict[Pass, None] = {}

    def of_worker(self, worker: str, start: Callable[[], T]) -> Callable[[], T]:
        """Return ``start`` such that the passes of the worker that it starts, in the same task, are known here."""
        pass_s = metrics.WORKER_PASS_S.labels(worker)

        def start_known() -> T:
            _recorded.set((self, worker, pass_s))
            return start()

        return start_known


_recorded: ContextVar[tuple[Passes, str, BatchedHistogram] | None] = ContextVar("recorded worker", default=None)


class one_pass:  # noqa: N801 - used as a function; a generator would cost each pass several calls more
    """A context that times one pass of the present worker, whose work is named by ``what``."""

    __slots__ = ("_bound_s", "_pass", "_recorded", "_what")

    def __init__(self, what: str, *, bound_s: float = 0.0) -> None:
        self._what = what
        self._bound_s = bound_s
        self._recorded = _recorded.get()

    def __enter__(self) -> None:
        if self._recorded is not None:
            passes, worker, _pass_s = self._recorded
            began_at, task = trio.current_time(), trio.lowlevel.current_task()
            self._pass = Pass(worker, self._what, self._bound_s, began_at, task)
            passes.open[self._pass] = None

    def __exit__(self, *_: object) -> None:
        if self._recorded is not None:
            passes, _worker, pass_s = self._recorded
            del passes.open[self._pass]
            pass_s.observe(trio.current_time() - self._pass.began_at)


def next_tick(period_s: float) -> float:
    """Return the next multiple of a period on trio's clock.

    What is looked at regularly is looked at then, so that an idle process wakes once for all of it.
    """
    return (trio.current_time() // period_s + 1) * period_s


def always() -> bool:
    """Return True: the work is this process's own."""
    return True


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a worker does its passes: none while ``is_ours`` returns False, because another process does the work.

    With ``wait_due``, which returns within :data:`LOOK_S` once there may be something to do, the last part of each
    pause is a wait for that: so the pause has its length at most after something has become due, and is longer only
    while nothing is.
    """

    is_ours: Callable[[], bool] = always
    wait_due: Callable[[], Awaitable[None]] | None = None


ALWAYS: Final = Schedule()


async def do_each(do: Callable[[T], Awaitable[object]], all_of: Iterable[T], *, concurrent_max: int) -> None:
    """Call ``do`` with each of them, so many at a time."""
    limiter = trio.CapacityLimiter(concurrent_max)

    async def in_turn(one: T) -> None:
        async with limiter:
            await do(one)

    async with trio.open_nursery() as nursery:
        for one in all_of:
            nursery.start_soon(in_turn, one)


async def repeat(
    work: Callable[[], Awaitable[object]],
    *,
    every_s: float,
    name: str,
    bound_s: float = 0.0,
    schedule: Schedule = ALWAYS,
) -> NoReturn:
    """Call ``work`` forever, with a pause of ``every_s`` unless it returns True: then more is due.

    Each call is a pass, which may take ``bound_s``. While the database is away the work is postponed; a later call
    finds it in the rows.
    """
    wait_due = schedule.wait_due
    pause_s = every_s if wait_due is None else max(0.0, every_s - LOOK_S)
    while True:
        try:
            if schedule.is_ours():
                with one_pass(name, bound_s=bound_s):
                    is_more_due = await work()
                if is_more_due is True:
                    continue
        except DatabaseAway as away:
            log.debug(f"{name} postponed", reason=str(away))
        await trio.sleep(pause_s)
        if wait_due is not None:
            await wait_due()
