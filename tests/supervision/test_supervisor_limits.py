"""Budgets, back-off, starts that fail, and how far trouble spreads."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock

from holdfast.supervision.faults import GaveUp, StartFailed
from holdfast.supervision.spec import Backoff, ChildSpec, RestartWindow
from holdfast.supervision.supervisor import Supervisor
from holdfast.telemetry.reports.causes import CannotServe

if TYPE_CHECKING:
    from tests.supervision.conftest import ScriptedChild, ScriptedTree


def test_a_window_forgets_what_is_older_than_its_period() -> None:
    window = RestartWindow(2, 10.0)
    assert [window.record(now) for now in (0.0, 1.0, 2.0)] == [True, True, False]
    assert window.count(10.5) == 2
    assert window.count(13.0) == 0
    assert window.record(13.0)
    window.clear()
    assert window.count(13.0) == 0


def test_a_backoff_doubles_up_to_its_cap_with_jitter() -> None:
    rng = random.Random(7)
    plain = Backoff(1.0, 30.0, jitter=0.0)
    assert [plain.delay(n, rng) for n in range(1, 8)] == [1, 2, 4, 8, 16, 30, 30]
    assert plain.delay(100_000, rng) == 30
    spread = [Backoff(10.0, 10.0, jitter=0.2).delay(1, rng) for _ in range(500)]
    assert 8.0 <= min(spread) < 8.2
    assert 11.8 < max(spread) <= 12.0
    with pytest.raises(ValueError, match="a backoff needs"):
        Backoff(2.0, 1.0)
    with pytest.raises(ValueError, match="window"):
        RestartWindow(1, 0.0)


async def test_a_backoff_waits_exactly_its_delay(scripted: ScriptedTree, autojump_clock: MockClock) -> None:
    backoff = Backoff(1.0, 30.0, jitter=0.0)
    supervisor = scripted.supervisor(scripted.spec("a", backoff=backoff), restarts=7, period_s=1000.0)
    async with scripted.running(supervisor):
        for _ in range(7):
            scripted.crash("a")
            await scripted.settle()
            assert supervisor.state_of("a") == "restarting"
            await supervisor.wait_ready()
        assert trio.current_time() == pytest.approx(1 + 2 + 4 + 8 + 16 + 30 + 30, abs=0.01)
    assert [report.delay_s for report in scripted.reports("crash")] == [1, 2, 4, 8, 16, 30, 30]
    assert [report.level for report in scripted.reports("crash")] == ["warning"] * 2 + ["error"] * 5
    assert [report.incarnation for report in scripted.reports("restart")] == [2, 3, 4, 5, 6, 7, 8]


async def test_the_backoff_of_a_child_that_stayed_up_starts_over(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    supervisor = scripted.supervisor(scripted.spec("a", backoff=Backoff(1.0, 8.0, jitter=0.0)), restarts=9)
    async with scripted.running(supervisor):
        for up_s in (0.0, 7.9, 8.1):
            await trio.sleep(up_s)
            scripted.crash("a")
            await scripted.settle()
            await supervisor.wait_ready()
    assert [report.delay_s for report in scripted.reports("crash")] == [1, 2, 1]


async def test_the_status_shows_when_a_child_is_retried(scripted: ScriptedTree, autojump_clock: MockClock) -> None:
    supervisor = scripted.supervisor(scripted.spec("a", backoff=Backoff(10.0, 10.0, jitter=0.0)))
    async with scripted.running(supervisor):
        scripted.crash("a")
        await trio.sleep(4)
        (status,) = supervisor.children()
        assert status.state == "restarting"
        assert status.retry_in_s == pytest.approx(6.0)
        assert status.last_fault == "ValueError: a broke"
        assert status.restarts_in_window == 1


async def test_the_crash_of_a_child_is_described_once(
    scripted: ScriptedTree, autojump_clock: MockClock, described: list[str]
) -> None:
    supervisor = scripted.supervisor(scripted.spec("a"))
    async with scripted.running(supervisor):
        scripted.crash("a")
        await scripted.settle()
        [report], [status] = scripted.reports("crash"), supervisor.children()
        assert status.last_fault == f"{report.reason_type}: {report.reason}"
        assert described == ["a broke"]


async def test_a_spent_budget_stops_in_order_and_names_the_cause(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    supervisor = scripted.supervisor(*(scripted.spec(name) for name in "abc"), restarts=2)

    async def crash_over_and_over() -> None:
        async with scripted.running(supervisor):
            for _ in range(3):
                scripted.take_log()
                scripted.crash("b", ExceptionGroup("many", [ExceptionGroup("more", [LookupError("the one")])]))
                await scripted.settle()

    with pytest.raises(ExceptionGroup) as caught:
        await crash_over_and_over()
    gave_up = caught.value.exceptions[0]
    assert isinstance(gave_up, GaveUp)
    assert isinstance(gave_up.leaf, LookupError)
    assert gave_up.child_id == "b"
    assert scripted.take_log() == ["-b", "?c", "-c", "?a", "-a"]
    assert [report.decision for report in scripted.reports("crash")] == ["restart", "restart", "escalate"]
    assert [report.reason_type for report in scripted.reports("crash")] == ["LookupError"] * 3
    assert len(scripted.reports("escalation")) == 1


async def test_restarts_spread_over_more_than_the_period_never_escalate(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    supervisor = scripted.supervisor(scripted.spec("a"), restarts=1, period_s=5.0)
    async with scripted.running(supervisor):
        for _ in range(20):
            scripted.crash("a")
            await trio.sleep(5.1)
        assert supervisor.children()[0].incarnation == 21


async def test_budgets_multiply_over_levels_and_the_cause_is_raised(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    def inner() -> Supervisor:
        return scripted.supervisor(scripted.spec("x"), restarts=1)

    outer = scripted.supervisor(scripted.spec("a"), ChildSpec("inner", inner, backoff=Backoff(0, 0)), restarts=2)
    crashes = 0

    async def crash_over_and_over() -> None:
        nonlocal crashes
        async with scripted.running(outer):
            while True:
                scripted.crash("x", KeyError("deep"))
                crashes += 1
                await trio.sleep(0.1)

    with pytest.raises(ExceptionGroup) as caught:
        await crash_over_and_over()
    assert crashes == (1 + 1) * (2 + 1)
    gave_up = caught.value.exceptions[0]
    assert isinstance(gave_up, GaveUp)
    assert (gave_up.path, gave_up.child_id) == ("top", "inner")
    assert isinstance(gave_up.leaf, KeyError)
    assert isinstance(gave_up.__cause__, KeyError)
    assert [report.path for report in scripted.reports("escalation")] == ["top/inner/x"] * 3 + ["top/inner"]
    # The last is located at its cause, which was raised in the child.
    locations = {report.location for report in scripted.reports("crash") + scripted.reports("escalation")}
    assert len(locations) == 1
    assert not +scripted.live


async def test_a_failed_start_is_retried_after_a_backoff(scripted: ScriptedTree, autojump_clock: MockClock) -> None:
    scripted.failing_starts["b"] = 2
    supervisor = scripted.supervisor(
        scripted.spec("a"), scripted.spec("b", backoff=Backoff(1.0, 9.0, jitter=0.0)), scripted.spec("c")
    )
    async with scripted.running(supervisor):
        assert trio.current_time() == pytest.approx(3.0)
        assert supervisor.is_ready
        scripted.failing_starts["b"] = 1
        scripted.crash("b")
        await scripted.settle()
        await supervisor.wait_ready()
    assert len(scripted.reports("crash", "start_error")) == 3
    assert scripted.ups["c"] == 1


async def test_starts_that_keep_failing_spend_the_budget(scripted: ScriptedTree, autojump_clock: MockClock) -> None:
    scripted.failing_starts["a"] = 99
    supervisor = scripted.supervisor(scripted.spec("a"), restarts=3)
    with trio.fail_after(100), pytest.raises(GaveUp, match="a cannot start"):
        await supervisor.run()
    assert scripted.failing_starts["a"] == 95


async def test_a_start_that_times_out_counts_as_a_restart(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    scripted.start_takes_s["a"] = 60.0
    supervisor = scripted.supervisor(scripted.spec("a"), restarts=1, period_s=100.0, start_timeout_s=10.0)
    with trio.fail_after(100), pytest.raises(GaveUp) as caught:
        await supervisor.run()
    assert isinstance(caught.value.leaf, StartFailed)
    assert trio.current_time() == pytest.approx(20.0)


async def test_a_child_that_returns_before_it_is_up_failed_to_start(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    class Shy:
        async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
            await trio.lowlevel.checkpoint()

        async def stop(self) -> None:
            raise AssertionError("never up, never asked to stop")

    supervisor = scripted.supervisor(ChildSpec("shy", Shy, "temporary"), scripted.spec("b"))
    async with scripted.running(supervisor):
        assert supervisor.state_of("shy") == "failed"
        assert supervisor.state_of("b") == "running"
    assert scripted.reports("crash", "start_error")[0].reason_type == "StartFailed"


async def test_a_factory_that_raises_is_a_failed_start(scripted: ScriptedTree, autojump_clock: MockClock) -> None:
    def broken() -> ScriptedChild:
        raise ImportError("no such part")

    with trio.fail_after(100), pytest.raises(GaveUp) as caught:
        await scripted.supervisor(ChildSpec("a", broken), restarts=0).run()
    assert isinstance(caught.value.leaf, ImportError)


async def test_a_child_that_cannot_serve_is_not_restarted_and_ends_all_levels(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    class Outdated:
        async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
            task_status.started()
            await trio.sleep(5)
            raise CannotServe("The world has moved on.")

        async def stop(self) -> None:
            raise AssertionError("it ends by itself")

    below = scripted.supervisor(ChildSpec("outdated", Outdated), name="below", restarts=9)
    above = scripted.supervisor(scripted.spec("a"), ChildSpec("below", lambda: below), restarts=9)
    with trio.fail_after(100), pytest.raises(GaveUp, match=r"^The world has moved on\.$"):
        await above.run()
    assert trio.current_time() == pytest.approx(5.0)
    assert [report.reason for report in scripted.reports("escalation")] == ["The world has moved on."] * 2
    assert scripted.reports("restart") == []


async def test_one_childs_crash_loop_never_delays_anothers_restart(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    slow = Backoff(50.0, 50.0, jitter=0.0)
    supervisor = scripted.supervisor(
        scripted.spec("loop", backoff=slow),
        scripted.spec("hung"),
        scripted.spec("b"),
        restarts=9,
        start_timeout_s=99.0,
    )
    async with scripted.running(supervisor):
        scripted.crash("loop")
        scripted.start_takes_s["hung"] = 40.0
        scripted.crash("hung")
        await trio.sleep(1)
        assert [child.state for child in supervisor.children()] == ["restarting", "starting", "running"]
        scripted.crash("b")
        await scripted.settle()
        assert trio.current_time() == pytest.approx(1.0)
        assert supervisor.state_of("b") == "running"
        assert scripted.ups["b"] == 2
        await supervisor.wait_ready()
        assert trio.current_time() == pytest.approx(50.0, abs=0.2)


async def test_a_slow_stop_of_one_child_never_delays_anothers_restart(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    scripted.stop_takes_s["slow"] = 4.0
    supervisor = scripted.supervisor(scripted.spec("slow"), scripted.spec("b"))
    async with scripted.running(supervisor), trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.restart_child, "slow")
        await trio.sleep(1)
        scripted.crash("b")
        await scripted.settle()
        assert (supervisor.state_of("slow"), supervisor.state_of("b")) == ("stopping", "running")


async def test_an_exit_during_anothers_backoff_joins_the_group_restart(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    supervisor = scripted.supervisor(
        scripted.spec("a", backoff=Backoff(3.0, 3.0, jitter=0.0)),
        scripted.spec("b", backoff=Backoff(10.0, 10.0, jitter=0.0)),
        scripted.spec("c"),
        strategy="rest_for_one",
    )
    async with scripted.running(supervisor):
        scripted.crash("b")
        await trio.sleep(5)
        assert [child.state for child in supervisor.children()] == ["running", "restarting", "restarting"]
        scripted.crash("a")
        await trio.sleep(4)
        assert [child.state for child in supervisor.children()] == ["running", "restarting", "restarting"]
        await trio.sleep(2)
        assert supervisor.is_ready
        assert scripted.take_log() == ["-b", "?c", "-c", "-a", "+a", "+b", "+c"]
