"""The way down: in reverse, each in its time, and never for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock

from holdfast.supervision.spec import ChildSpec

if TYPE_CHECKING:
    from tests.supervision.conftest import ScriptedTree

IN_REVERSE = ["?c", "-c", "?b", "-b", "?a", "-a"]


async def test_a_stop_drains_in_reverse_order(scripted: ScriptedTree, autojump_clock: MockClock) -> None:
    scripted.stop_takes_s = {"a": 1.0, "b": 2.0, "c": 3.0}
    supervisor = scripted.supervisor(*(scripted.spec(name) for name in "abc"))
    async with scripted.running(supervisor):
        pass
    assert scripted.take_log() == IN_REVERSE
    assert trio.current_time() == pytest.approx(6.0)
    (report,) = scripted.reports("drain")
    assert (report.context, report.reason) == ("shutdown", "every child in time")
    assert {child.state for child in supervisor.children()} == {"stopped"}


async def test_an_outer_cancel_gives_the_same_ordered_drain(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    scripted.stop_takes_s = {"a": 1.0, "b": 2.0, "c": 3.0}
    supervisor = scripted.supervisor(*(scripted.spec(name) for name in "abc"))
    with trio.fail_after(100), trio.move_on_after(10) as scope:
        await supervisor.run()
    assert scope.cancelled_caught
    assert scripted.take_log() == ["+a", "+b", "+c", *IN_REVERSE]
    assert trio.current_time() == pytest.approx(16.0)


async def test_an_outer_cancel_drains_nested_supervisors_in_order(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    inner = ChildSpec("inner", lambda: scripted.supervisor(scripted.spec("b"), scripted.spec("c")), shutdown_s=20.0)
    supervisor = scripted.supervisor(scripted.spec("a"), inner)
    with trio.fail_after(100), trio.move_on_after(10):
        await supervisor.run()
    assert scripted.take_log() == ["+a", "+b", "+c", *IN_REVERSE]


async def test_a_child_that_does_not_stop_in_time_is_killed_and_named(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    scripted.deaf = {"b"}
    supervisor = scripted.supervisor(*(scripted.spec(name, shutdown_s=7.0) for name in "abc"))
    async with scripted.running(supervisor):
        pass
    assert scripted.take_log() == IN_REVERSE
    assert trio.current_time() == pytest.approx(7.0)
    killed, summary = scripted.reports("drain", "killed")
    assert (killed.path, killed.reason) == ("top/b", "killed after 7 s")
    assert summary.reason == "killed: b"


async def test_a_shutdown_time_of_zero_kills_at_once(scripted: ScriptedTree, autojump_clock: MockClock) -> None:
    async with scripted.running(scripted.supervisor(scripted.spec("a", shutdown_s=0.0))):
        pass
    assert scripted.take_log() == ["-a"]


async def test_a_stop_that_raises_kills_at_once(scripted: ScriptedTree, autojump_clock: MockClock) -> None:
    scripted.rude = {"b"}
    async with scripted.running(scripted.supervisor(*(scripted.spec(name) for name in "abc"))):
        pass
    assert scripted.take_log() == IN_REVERSE
    assert trio.current_time() == 0.0
    assert scripted.reports("drain", "shutdown_error")[0].reason_type == "OSError"


async def test_a_starting_child_is_cancelled_rather_than_stopped(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    scripted.start_takes_s["b"] = 20.0
    supervisor = scripted.supervisor(*(scripted.spec(name) for name in "abc"))
    with trio.fail_after(100), trio.move_on_after(10):
        await supervisor.run()
    assert scripted.take_log() == ["+a", "-b", "?a", "-a"]
    assert trio.current_time() == pytest.approx(10.0)


async def test_a_drain_ends_a_backoff_without_a_restart(scripted: ScriptedTree, autojump_clock: MockClock) -> None:
    supervisor = scripted.supervisor(scripted.spec("a"), scripted.spec("b"), strategy="one_for_all")
    async with scripted.running(supervisor):
        scripted.stop_takes_s["a"] = 3.0
        scripted.crash("b")
        await trio.sleep(1)
        assert supervisor.state_of("a") == "stopping"
    assert scripted.take_log() == ["-b", "?a", "-a"]
    assert trio.current_time() == pytest.approx(3.0)


async def test_the_drain_timeout_kills_what_is_left(scripted: ScriptedTree, autojump_clock: MockClock) -> None:
    scripted.deaf = {"a", "b", "c"}
    supervisor = scripted.supervisor(
        *(scripted.spec(name, shutdown_s=60.0) for name in "abc"), drain_timeout_s=15.0
    )
    async with scripted.running(supervisor):
        pass
    assert trio.current_time() == pytest.approx(15.0)
    assert scripted.take_log()[0] == "?c"
    assert not +scripted.live
    assert scripted.reports("drain", "killed")[-1].reason == "killed: c, b, a"


async def test_a_child_that_swallows_its_kill_is_reported_as_stuck(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    class Stubborn:
        async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
            task_status.started()
            with trio.CancelScope(shield=True):
                await trio.sleep(1000)

        async def stop(self) -> None:
            await trio.sleep_forever()

    supervisor = scripted.supervisor(scripted.spec("a"), ChildSpec("stubborn", Stubborn, shutdown_s=5.0))
    ended_at: list[float] = []
    scripted.reporter.listen(lambda report: ended_at.append(trio.current_time()) if report.path == "top" else None)
    async with scripted.running(supervisor):
        ended_at.clear()
    assert ended_at == [pytest.approx(6.0)]
    assert scripted.reports("drain", "stuck")[0].path == "top/stubborn"
    assert scripted.take_log() == ["?a", "-a"]


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), SystemExit(3)])
async def test_an_interrupt_in_a_child_drains_and_is_raised_unwrapped(
    scripted: ScriptedTree, autojump_clock: MockClock, fault: BaseException
) -> None:
    supervisor = scripted.supervisor(*(scripted.spec(name) for name in "abc"))

    async def interrupt() -> None:
        await supervisor.wait_ready()
        scripted.crash("b", BaseExceptionGroup("wrapped", [fault]))

    caught: BaseException | None = None
    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(interrupt)
            try:
                await supervisor.run()
            except (KeyboardInterrupt, SystemExit) as exc:
                caught = exc
    assert caught is fault
    assert scripted.take_log() == ["+a", "+b", "+c", "-b", "?c", "-c", "?a", "-a"]


async def test_a_stop_before_the_start_starts_no_child(scripted: ScriptedTree, autojump_clock: MockClock) -> None:
    supervisor = scripted.supervisor(scripted.spec("a"))
    await supervisor.stop()
    with trio.fail_after(5):
        await supervisor.run()
    assert scripted.take_log() == []
    with pytest.raises(RuntimeError, match="runs once"):
        await supervisor.run()


async def test_a_child_that_starts_while_stopping_is_not_running(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    class Late:
        async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
            with trio.CancelScope(shield=True):
                await trio.sleep(2)
                task_status.started()
                await trio.sleep(1)
            await trio.sleep_forever()

        async def stop(self) -> None:
            raise AssertionError("it was not up when it was to stop")

    supervisor = scripted.supervisor(ChildSpec("late", Late))
    with trio.fail_after(100), trio.move_on_after(1):
        await supervisor.run()
    assert trio.current_time() == pytest.approx(3.0)
    assert not scripted.reports("progress")
    assert not scripted.reports("drain", "killed")
