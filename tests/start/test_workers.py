"""The supervision of worker processes: restarts, limits, rolls, and who accepts for whom."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from functools import partial

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from holdfast.persistence.server.embedded import EmbeddedPostgres
from holdfast.persistence.server.postmaster import EmbeddedFault
from holdfast.start.parent.parent import RESTARTS_PER_WORKER, DatabaseServer
from holdfast.start.parent.process_slot import START_MAX_S, START_S, ProcessSlot, StartTime
from holdfast.supervision.faults import GaveUp
from holdfast.supervision.spec import ChildSpec, Intensity
from holdfast.supervision.supervisor import Supervisor
from holdfast.telemetry.reports.conditions import Conditions
from holdfast.telemetry.reports.report import Report
from holdfast.telemetry.reports.reporter import Reporter

from .fake_parent import RETIRE_S, SHUTDOWN_S, Parent, running
from .fake_processes import FakeProcess, FakeStarter


async def test_workers_start_side_by_side_and_are_ready_together(autojump_clock: MockClock) -> None:
    parent = Parent(3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parent.tree.run)
        await wait_all_tasks_blocked()
        assert [process.slot for process in parent.starter.started] == [0, 1, 2]
        parent.starter.of(0).be_ready()
        parent.starter.of(1).be_ready()
        await wait_all_tasks_blocked()
        seen = [parent.tree.is_ready]
        parent.starter.of(2).be_ready()
        await wait_all_tasks_blocked()
        assert [*seen, parent.tree.is_ready] == [False, True]
        await parent.tree.stop()


async def test_a_killed_worker_is_replaced_at_once(autojump_clock: MockClock) -> None:
    parent = Parent(2)
    async with running(parent):
        began = trio.current_time()
        parent.starter.of(0).end(-signal.SIGKILL)
        await trio.sleep(0.2)
        assert [process.slot for process in parent.starter.started] == [0, 1, 0]
        assert trio.current_time() - began < 0.3
        [crash] = parent.reports("crash")
        assert (crash.path, crash.decision) == ("processes/worker-0", "backoff")
        assert crash.reason == "process 1000 was killed by SIGKILL"
        assert parent.starter.of(1).signals == []


class FullDisk(EmbeddedPostgres):
    """A server that has ended and starts only at the fourth try; then it runs until ``ended``."""

    def __init__(self) -> None:
        self.tries = 0
        self.ended = threading.Event()

    def wait(self, timeout_s: float | None = None) -> bool:
        return self.tries == 0 or self.ended.wait(timeout_s)

    def start(self) -> str:
        self.tries += 1
        if self.tries <= 3:
            raise EmbeddedFault(f"could not write xlogtemp.{self.tries}: No space left on device")
        return ""


async def test_all_workers_learn_why_the_embedded_database_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.start.parent.parent.DATABASE_RETRY_FIRST_S", 0.0)
    parent, database, is_over = Parent(2), FullDisk(), trio.Event()
    parent.reporter.listen(lambda report: is_over.set() if report.kind == "recovery" else None)
    async with running(parent), trio.open_nursery() as nursery:
        server = DatabaseServer(database, parent.reporter, parent.workers.tell_all)
        await nursery.start(server.run)
        await is_over.wait()
        await server.stop()
        database.ended.set()
    sent = [f"database could not write xlogtemp.{number}: No space left on device" for number in (1, 2, 3)]
    for slot in (0, 1):
        assert [line for line in parent.starter.of(slot).lines if line.startswith("database")] == sent
    assert [report.reason for report in parent.reports("outage")] == [
        "the embedded database has stopped",
        "could not write xlogtemp.1: No space left on device",
    ]


async def test_a_worker_that_keeps_failing_waits_longer_each_time(autojump_clock: MockClock) -> None:
    parent = Parent(1, restarts=5)
    async with running(parent):
        for _ in range(4):
            parent.starter.of(0).end(1)
            await trio.sleep(4)
        delays = [report.delay_s or 0.0 for report in parent.reports("crash")]
        assert delays == sorted(delays)
        assert delays[0] == pytest.approx(0.1, rel=0.2)
        assert delays[3] == pytest.approx(2.7, rel=0.2)


@pytest.mark.parametrize("for_s", [20, pytest.param(1200, marks=pytest.mark.slow)])
async def test_one_worker_that_always_fails_leaves_the_others_running(
    autojump_clock: MockClock, for_s: float
) -> None:
    parent = Parent(2, restarts=RESTARTS_PER_WORKER * 2)
    async with running(parent), trio.open_nursery() as nursery:

        async def fail() -> None:
            while True:
                await trio.sleep(0.1)
                parent.starter.of(0).end(1)

        nursery.start_soon(fail)
        await trio.sleep(for_s)
        nursery.cancel_scope.cancel()
        assert parent.reports("escalation") == []
        assert [process.signals for process in parent.starter.started if process.slot == 1] == [[]]


async def test_the_parent_gives_up_when_workers_keep_failing(autojump_clock: MockClock) -> None:
    parent = Parent(2, restarts=4)

    async def fail() -> None:
        while True:
            await trio.sleep(0.05)
            for process in parent.starter.started:
                if process.code is None:
                    process.end(1)

    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            with pytest.raises(GaveUp, match="over 4 restarts"):
                await parent.tree.run()
            nursery.cancel_scope.cancel()
    assert len(parent.starter.started) == 2 + 4
    assert [report.kind for report in parent.reports("escalation")] == ["escalation"]


async def test_a_worker_that_is_not_ready_in_time_is_killed_and_replaced(autojump_clock: MockClock) -> None:
    parent = Parent(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parent.tree.run)
        await trio.sleep(START_S + 1)
        first, second = parent.starter.started
        assert first.signals == [signal.SIGKILL]
        assert "was not ready within 60 s" in str(parent.reports("crash")[0].reason)
        second.be_ready()
        await wait_all_tasks_blocked()
        assert parent.tree.is_ready
        await parent.tree.stop()


async def test_each_try_to_start_has_more_time_so_that_a_slow_machine_gets_there(autojump_clock: MockClock) -> None:
    """Every worker takes a quarter of an hour to start. No number of tries ends the parent."""
    parent = Parent(2, restarts=RESTARTS_PER_WORKER * 2)
    takes_s = 900.0

    async def start_slowly() -> None:
        seen = 0
        async with trio.open_nursery() as starts:
            while True:
                for process in parent.starter.started[seen:]:
                    starts.start_soon(be_ready_later, process)
                seen = len(parent.starter.started)
                await trio.sleep(1)

    async def be_ready_later(process: FakeProcess) -> None:
        await trio.sleep(takes_s)
        if process.code is None:
            process.be_ready()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(parent.tree.run)
        nursery.start_soon(start_slowly)
        with trio.fail_after(3600):
            await parent.tree.wait_ready()
        limits = [str(report.reason).rpartition("within ")[2] for report in parent.reports("crash")]
        assert sorted(limits) == sorted(["60 s", "120 s", "240 s", "480 s"] * 2)
        assert START_MAX_S == 960
        # It is kept for the slot alone, and until one is ready.
        takes_s = 100.0
        parent.starter.of(0).end(1)
        await trio.sleep(400)
        assert [report.reason for report in parent.reports("crash")][-1] == (
            f"process {parent.starter.started[-2].pid} was not ready within 60 s"
        )
        assert parent.tree.is_ready
        assert parent.reports("escalation") == []
        await parent.tree.stop()
        nursery.cancel_scope.cancel()


async def test_a_roll_that_was_too_slow_has_more_time_when_it_is_repeated(autojump_clock: MockClock) -> None:
    parent = Parent(1)
    async with running(parent), trio.open_nursery() as nursery:
        assert not await parent.workers.roll()
        began = trio.current_time()
        nursery.start_soon(parent.workers.roll)
        await trio.sleep(START_S + 30)
        parent.starter.of(0).be_ready()
        await wait_all_tasks_blocked()
        assert trio.current_time() - began == START_S + 30
        assert [report.level for report in parent.reports("roll")] == ["error"]
        parent.starter.started[0].end(0)
        await wait_all_tasks_blocked()
        assert parent.reports("roll")[-1].level == "info"


async def test_only_a_first_start_with_exit_code_2_is_a_faulty_configuration(autojump_clock: MockClock) -> None:
    parent = Parent(1)
    async with running(parent):
        parent.starter.of(0).end(1)
        await trio.sleep(1)
        parent.starter.of(0).end(2)
        await trio.sleep(1)
        assert parent.misconfigured == 0
    other = Parent(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other.tree.run)
        await wait_all_tasks_blocked()
        other.starter.of(0).end(2)
        await trio.sleep(1)
        assert other.misconfigured == 1
        await other.tree.stop()


async def test_a_roll_has_each_new_worker_ready_before_the_old_one_retires(autojump_clock: MockClock) -> None:
    parent = Parent(2)
    async with running(parent), trio.open_nursery() as nursery:
        olds = list(parent.starter.started)
        nursery.start_soon(parent.roll)
        for slot, old in enumerate(olds):
            await wait_all_tasks_blocked()
            new = parent.starter.of(slot)
            assert new is not old
            assert "retire" not in old.lines, "the new one is not ready yet"
            new.be_ready()
            await wait_all_tasks_blocked()
            assert old.lines[-1] == "retire"
            assert len(parent.starter.started) == 3 + slot, "one at a time"
            old.end(0)
        await wait_all_tasks_blocked()
        assert parent.rolled == [True]
        assert parent.tree.is_ready
        assert parent.reports("crash") == []
        assert [(each.path, each.reason) for each in parent.reports("roll")] == [
            ("processes/worker-0", "process 1000 by 1002"),
            ("processes/worker-1", "process 1001 by 1003"),
        ]
        assert all(old.signals == [] for old in olds)


async def test_an_old_worker_that_does_not_end_is_killed(autojump_clock: MockClock) -> None:
    parent = Parent(1)
    async with running(parent), trio.open_nursery() as nursery:
        [old] = parent.starter.started
        nursery.start_soon(parent.workers.roll)
        await wait_all_tasks_blocked()
        parent.starter.of(0).be_ready()
        await trio.sleep(RETIRE_S - 1)
        assert old.code is None
        await trio.sleep(2)
        assert old.signals == [signal.SIGKILL]
        assert parent.reports("crash") == []


@pytest.mark.parametrize("how", ["ends", "hangs"])
async def test_a_roll_whose_new_worker_fails_leaves_the_old_ones(autojump_clock: MockClock, how: str) -> None:
    parent = Parent(2)
    async with running(parent), trio.open_nursery() as nursery:
        olds = list(parent.starter.started)
        nursery.start_soon(parent.roll)
        await wait_all_tasks_blocked()
        if how == "ends":
            parent.starter.of(0).end(2)
        await trio.sleep(START_S + 1)
        assert parent.rolled == [False]
        assert len(parent.starter.started) == 3
        assert [old.code for old in olds] == [None, None]
        assert parent.tree.is_ready
        assert parent.reports("crash") == []
        assert [(each.path, each.level) for each in parent.reports("roll")] == [("processes/worker-0", "error")]
        assert parent.misconfigured == 0


async def test_a_worker_that_dies_while_its_successor_starts_is_replaced(autojump_clock: MockClock) -> None:
    parent = Parent(1)
    async with running(parent), trio.open_nursery() as nursery:
        [old] = parent.starter.started
        nursery.start_soon(parent.roll)
        await wait_all_tasks_blocked()
        old.end(-signal.SIGKILL)
        await trio.sleep(1)
        _, successor, third = parent.starter.started
        assert successor.signals == [signal.SIGKILL]
        assert parent.rolled == [False]
        third.be_ready()
        await wait_all_tasks_blocked()
        assert parent.tree.is_ready


async def test_ready_workers_accept_for_those_that_are_not(autojump_clock: MockClock) -> None:
    parent = Parent(3)
    async with running(parent):
        assert [parent.starter.of(slot).lines[-1] for slot in range(3)] == ["cover"] * 3
        parent.starter.of(1).end(-signal.SIGKILL)
        await trio.sleep(1)
        assert [parent.starter.of(slot).lines[-1] for slot in (0, 2)] == ["cover 1"] * 2
        parent.starter.of(1).be_ready()
        await wait_all_tasks_blocked()
        assert [parent.starter.of(slot).lines[-1] for slot in range(3)] == ["cover"] * 3


async def test_a_stop_ends_all_workers_together(autojump_clock: MockClock) -> None:
    parent = Parent(3)
    async with running(parent):
        for process in parent.starter.started:
            process.ignores_term = True
        await parent.workers.stop_all()
        await wait_all_tasks_blocked()
        assert [process.signals for process in parent.starter.started] == [[signal.SIGTERM]] * 3
        for process in parent.starter.started:
            process.end(0)


async def test_a_worker_that_does_not_stop_is_killed(autojump_clock: MockClock) -> None:
    parent = Parent(2)
    async with running(parent):
        parent.starter.of(0).ignores_term = True
        began = trio.current_time()
    assert parent.starter.of(0).signals == [signal.SIGTERM, signal.SIGKILL]
    assert trio.current_time() - began == pytest.approx(SHUTDOWN_S, abs=2)


async def test_a_process_with_nothing_to_do_is_finished(autojump_clock: MockClock) -> None:
    starter = FakeStarter()

    start = partial(starter.start, 0)
    spec = ChildSpec("emulators", lambda: ProcessSlot(start, StartTime(), may_finish=True), restart="transient")
    reporter = Reporter()
    tree = Supervisor(
        "processes",
        [spec],
        strategy="one_for_one",
        intensity=Intensity(1, 60.0),
        reporter=reporter,
        conditions=Conditions(reporter),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tree.run)
        await wait_all_tasks_blocked()
        starter.of(0).end(0)
        await trio.sleep(1)
        assert tree.state_of("emulators") == "finished"
        assert len(starter.started) == 1
        await tree.stop()


class HeldStarter(FakeStarter):
    """A starter whose next starts take until the test releases them, or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.fault: OSError | None = None
        self.released = trio.Event()
        self.released.set()

    async def start(self, slot: int) -> FakeProcess:
        if self.fault is not None:
            raise self.fault
        with trio.CancelScope(shield=True):  # as a thread that forks
            await self.released.wait()
        return await super().start(slot)


async def test_a_roll_whose_new_worker_cannot_be_started_leaves_the_old_ones(autojump_clock: MockClock) -> None:
    starter = HeldStarter()
    parent = Parent(2, starter=starter)
    async with running(parent):
        starter.fault = FileNotFoundError("python")
        assert not await parent.workers.roll()
        assert [each.reason for each in parent.reports("roll")] == ["python"]
        assert [process.code for process in starter.started] == [None, None]
        assert parent.tree.is_ready


@pytest.mark.parametrize("meanwhile", ["dies", "stops"])
async def test_a_slot_that_ends_while_a_successor_is_started_leaves_no_process(
    autojump_clock: MockClock, meanwhile: str
) -> None:
    starter = HeldStarter()
    slot = ProcessSlot(partial(starter.start, 0), StartTime())
    done: list[bool] = []

    async def run() -> None:
        with suppress(ExceptionGroup):
            await slot.run()

    async def replace() -> None:
        done.append(await slot.replace(retire_s=RETIRE_S))

    with trio.fail_after(3600):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await wait_all_tasks_blocked()
            [old] = starter.started
            old.be_ready()
            starter.released = trio.Event()
            nursery.start_soon(replace)
            await wait_all_tasks_blocked()
            if meanwhile == "dies":
                old.end(-signal.SIGKILL)
            else:
                await slot.stop()
            await wait_all_tasks_blocked()
            starter.released.set()
    assert done == [False]
    assert len(starter.started) == 2
    assert all(process.is_closed and process.code is not None for process in starter.started)


async def test_a_worker_that_starts_while_the_slot_stops_is_stopped_in_order(autojump_clock: MockClock) -> None:
    starter = HeldStarter()
    slot = ProcessSlot(partial(starter.start, 0), StartTime())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slot.run)
        await wait_all_tasks_blocked()
        [old] = starter.started
        old.be_ready()
        old.ignores_term = True
        starter.released = trio.Event()
        nursery.start_soon(partial(slot.replace, retire_s=RETIRE_S))
        await wait_all_tasks_blocked()
        await slot.stop()
        await wait_all_tasks_blocked()
        starter.released.set()
        await wait_all_tasks_blocked()
        assert starter.started[1].signals == [signal.SIGTERM]
        old.end(0)


async def test_a_reload_does_not_reach_a_worker_before_it_is_ready(autojump_clock: MockClock) -> None:
    parent = Parent(2)
    async with running(parent):
        parent.starter.of(0).end(-signal.SIGKILL)
        await trio.sleep(1)
        parent.workers.send_signal(signal.SIGHUP)
        starting, ready = parent.starter.of(0), parent.starter.of(1)
        assert [starting.signals, ready.signals] == [[], [signal.SIGHUP]]
        starting.be_ready()
        await wait_all_tasks_blocked()
        assert starting.signals == [signal.SIGHUP]


async def test_a_roll_replaces_a_worker_that_was_starting(autojump_clock: MockClock) -> None:
    parent = Parent(1)
    async with running(parent), trio.open_nursery() as nursery:
        parent.starter.of(0).end(-signal.SIGKILL)
        await trio.sleep(1)
        starting = parent.starter.of(0)
        nursery.start_soon(parent.roll)
        await wait_all_tasks_blocked()
        starting.be_ready()
        await wait_all_tasks_blocked()
        assert len(parent.starter.started) == 3
        parent.starter.of(0).be_ready()
        await wait_all_tasks_blocked()
        assert starting.lines[-1] == "retire"
        starting.end(0)
        await wait_all_tasks_blocked()
        assert parent.rolled == [True]


async def test_the_parents_reports_go_to_a_worker_that_serves(autojump_clock: MockClock) -> None:
    parent = Parent(2)
    async with running(parent):
        first, second = parent.starter.of(0), parent.starter.of(1)
        begun = [reported(line) for line in first.reports + second.reports]
        assert {(report.kind, report.path) for report in begun} == {
            ("start", "processes/worker-0"),
            ("start", "processes/worker-1"),
            ("start", "processes"),
        }
        first.is_deaf = True
        second.end(-signal.SIGKILL)
        await wait_all_tasks_blocked()
        assert len(first.reports + second.reports) == len(begun), "one does not read, the other is gone"
        await trio.sleep(1)
        parent.starter.of(1).be_ready()
        await wait_all_tasks_blocked()
        later = [reported(line) for line in parent.starter.of(1).reports]
        assert [(report.kind, report.path) for report in later] == [
            ("crash", "processes/worker-1"),
            ("restart", "processes/worker-1"),
        ]
        assert later == list(reversed(parent.reporter.recent(2)))


def reported(line: str) -> Report:
    command, _, report = line.partition(" ")
    assert command == "report"
    return msgspec.json.decode(report, type=Report)
