"""A worker's pass that takes too long is reported once and at its end; the waits between its passes are not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import structlog
import trio
from trio.testing import MockClock

from holdfast.actors.runtime.refs import WorkerRef
from holdfast.actors.workers.passes import Passes, repeat
from holdfast.actors.workers.worker import Worker
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.supervision.spec import Child
from holdfast.supervision.tree import RunningChild
from holdfast.supervision.turn_watch import TurnWatch
from holdfast.telemetry import metrics
from holdfast.telemetry.reports.report import Report
from holdfast.telemetry.reports.reporter import Reporter

from .keyed_actors import Rest

LIMIT_S = 30.0


class Watched:
    """A watch of workers, each started as the tree would."""

    def __init__(self) -> None:
        self.reporter = Reporter(logger=structlog.wrap_logger(structlog.ReturnLogger()))
        self.is_open = True
        self.passes = Passes()
        self._watch = TurnWatch(
            [],
            self.passes,
            limit_s=LIMIT_S,
            reporter=self.reporter,
            is_database_open=lambda: self.is_open,
            mask=lambda _group, key: key,
        )

    @asynccontextmanager
    async def running(self, start: Callable[[], Child]) -> AsyncIterator[None]:
        async def run_child(*, task_status: trio.TaskStatus[None]) -> None:
            await self.passes.of_worker("sweeper", start)().run(task_status=task_status)

        async with trio.open_nursery() as nursery:
            await nursery.start(lambda *, task_status: self._watch.run(task_status=task_status))
            await nursery.start(run_child)
            yield
            nursery.cancel_scope.cancel()

    def reports(self, kind: str) -> list[Report]:
        return [report for report in reversed(self.reporter.recent()) if report.kind == kind]


def loop_of(work: Callable[[], Awaitable[object]], *, bound_s: float = 0.0) -> Callable[[], Child]:
    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await repeat(work, every_s=600.0, name="sweep of rows", bound_s=bound_s)

    return lambda: RunningChild(run)


async def test_a_long_pass_is_reported_once_and_at_its_end(autojump_clock: MockClock) -> None:
    watched = Watched()
    async with watched.running(loop_of(partial(trio.sleep, 100))):
        await trio.sleep(29)
        assert watched.reports("stuck") == []
        await trio.sleep(61)
        [report] = watched.reports("stuck")
        assert (report.path, report.key) == ("holdfast/workers/sweeper", None)
        assert LIMIT_S <= (report.duration_s or 0) <= 36
        assert (report.reason or "").startswith("sweep of rows waits in holdfast.actors.workers.passes.repeat:")
        assert (report.location or "none") in (report.reason or "")
        await trio.sleep(20)
        [ended] = watched.reports("recovery")
        assert (ended.path, ended.reason) == ("holdfast/workers/sweeper", "sweep of rows has ended")
        assert 100 <= (ended.duration_s or 0) <= 106
        # The next pass is another one.
        await trio.sleep(590)
        assert len(watched.reports("recovery")) == 1
        await trio.sleep(50)
        assert len(watched.reports("stuck")) == 2


async def test_a_wait_between_passes_is_not_stuck(autojump_clock: MockClock) -> None:
    watched, calls = Watched(), 0

    async def work() -> bool:
        nonlocal calls
        calls += 1
        await trio.sleep(20)
        if calls == 7:
            raise DatabaseAway("gone", retry_after_s=1.0)
        return calls % 4 != 0

    async with watched.running(loop_of(work)):
        await trio.sleep(3000)
    assert calls > 10
    assert watched.reports("stuck") == watched.reports("recovery") == []
    assert watched.passes.open == {}


async def test_a_pass_may_have_a_longer_bound(autojump_clock: MockClock) -> None:
    watched = Watched()
    async with watched.running(loop_of(partial(trio.sleep, 400), bound_s=300.0)):
        await trio.sleep(299)
        assert watched.reports("stuck") == []
        await trio.sleep(10)
        assert len(watched.reports("stuck")) == 1


async def test_no_pass_is_stuck_while_the_database_is_away(autojump_clock: MockClock) -> None:
    watched = Watched()
    watched.is_open = False
    async with watched.running(loop_of(partial(trio.sleep, 100))):
        await trio.sleep(200)
    assert watched.reports("stuck") == []


async def test_a_long_turn_of_a_worker_with_a_mailbox_is_stuck(autojump_clock: MockClock) -> None:
    class Slow(Worker):
        async def on_receive(self, message: object) -> None:
            assert isinstance(message, Rest)
            await trio.sleep(message.s)

    watched, ref = Watched(), WorkerRef("sweeper")
    async with watched.running(lambda: Slow(ref)):
        await trio.sleep(1000)
        assert watched.reports("stuck") == []
        ref.tell(Rest(60))
        await trio.sleep(50)
        [report] = watched.reports("stuck")
        assert (report.reason or "").startswith("Rest waits in ")
        await trio.sleep(20)
        assert len(watched.reports("recovery")) == 1


async def test_passes_are_measured_by_worker(autojump_clock: MockClock) -> None:
    watched, passes = Watched(), metrics.WORKER_PASS_S.labels("sweeper")
    before = passes.distribution
    async with watched.running(loop_of(partial(trio.sleep, 2))):
        await trio.sleep(1250)
    measured = passes.distribution.since(before)
    assert (measured.count, measured.total) == (3, 6.0)
