"""The way down: in reverse, each in its time, and never for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock

from holdfast.supervision.spec import ChildSpec

if TYPE_CHECKING:
    from tests.supervision.conftest import Troupe

IN_REVERSE = ["?c", "-c", "?b", "-b", "?a", "-a"]


async def test_a_stop_drains_in_reverse_order(troupe: Troupe, autojump_clock: MockClock) -> None:
    troupe.stop_takes_s = {"a": 1.0, "b": 2.0, "c": 3.0}
    supervisor = troupe.supervisor(*(troupe.spec(name) for name in "abc"))
    async with troupe.playing(supervisor):
        pass
    assert troupe.take_log() == IN_REVERSE
    assert trio.current_time() == pytest.approx(6.0)
    (report,) = troupe.reports("drain")
    assert (report.context, report.reason) == ("shutdown", "every child stopped in time")
    assert {child.state for child in supervisor.children()} == {"stopped"}


async def test_an_outer_cancel_gives_the_same_ordered_drain(troupe: Troupe, autojump_clock: MockClock) -> None:
    troupe.stop_takes_s = {"a": 1.0, "b": 2.0, "c": 3.0}
    supervisor = troupe.supervisor(*(troupe.spec(name) for name in "abc"))
    with trio.fail_after(100), trio.move_on_after(10) as scope:
        await supervisor.run()
    assert scope.cancelled_caught
    assert troupe.take_log() == ["+a", "+b", "+c", *IN_REVERSE]
    assert trio.current_time() == pytest.approx(16.0)


async def test_an_outer_cancel_drains_nested_supervisors_in_order(
    troupe: Troupe, autojump_clock: MockClock
) -> None:
    inner = ChildSpec("inner", lambda: troupe.supervisor(troupe.spec("b"), troupe.spec("c")), shutdown_s=20.0)
    supervisor = troupe.supervisor(troupe.spec("a"), inner)
    with trio.fail_after(100), trio.move_on_after(10):
        await supervisor.run()
    assert troupe.take_log() == ["+a", "+b", "+c", *IN_REVERSE]


async def test_a_child_that_does_not_stop_in_time_is_killed_and_named(
    troupe: Troupe, autojump_clock: MockClock
) -> None:
    troupe.deaf = {"b"}
    supervisor = troupe.supervisor(*(troupe.spec(name, shutdown_s=7.0) for name in "abc"))
    async with troupe.playing(supervisor):
        pass
    assert troupe.take_log() == IN_REVERSE
    assert trio.current_time() == pytest.approx(7.0)
    killed, summary = troupe.reports("drain", "killed")
    assert (killed.path, killed.reason) == ("top/b", "did not stop within 7 s")
    assert summary.reason == "cut: b"


async def test_a_shutdown_time_of_zero_kills_at_once(troupe: Troupe, autojump_clock: MockClock) -> None:
    async with troupe.playing(troupe.supervisor(troupe.spec("a", shutdown_s=0.0))):
        pass
    assert troupe.take_log() == ["-a"]


async def test_a_stop_that_raises_kills_at_once(troupe: Troupe, autojump_clock: MockClock) -> None:
    troupe.rude = {"b"}
    async with troupe.playing(troupe.supervisor(*(troupe.spec(name) for name in "abc"))):
        pass
    assert troupe.take_log() == IN_REVERSE
    assert trio.current_time() == 0.0
    assert troupe.reports("drain", "shutdown_error")[0].reason_type == "OSError"


async def test_a_starting_child_is_cancelled_rather_than_stopped(troupe: Troupe, autojump_clock: MockClock) -> None:
    troupe.start_takes_s["b"] = 20.0
    supervisor = troupe.supervisor(*(troupe.spec(name) for name in "abc"))
    with trio.fail_after(100), trio.move_on_after(10):
        await supervisor.run()
    assert troupe.take_log() == ["+a", "-b", "?a", "-a"]
    assert trio.current_time() == pytest.approx(10.0)


async def test_a_drain_ends_a_backoff_without_a_restart(troupe: Troupe, autojump_clock: MockClock) -> None:
    supervisor = troupe.supervisor(troupe.spec("a"), troupe.spec("b"), strategy="one_for_all")
    async with troupe.playing(supervisor):
        troupe.stop_takes_s["a"] = 3.0
        troupe.crash("b")
        await trio.sleep(1)
        assert supervisor.state_of("a") == "stopping"
    assert troupe.take_log() == ["-b", "?a", "-a"]
    assert trio.current_time() == pytest.approx(3.0)


async def test_the_drain_timeout_kills_what_is_left(troupe: Troupe, autojump_clock: MockClock) -> None:
    troupe.deaf = {"a", "b", "c"}
    supervisor = troupe.supervisor(*(troupe.spec(name, shutdown_s=60.0) for name in "abc"), drain_timeout_s=15.0)
    async with troupe.playing(supervisor):
        pass
    assert trio.current_time() == pytest.approx(15.0)
    assert troupe.take_log()[0] == "?c"
    assert not +troupe.live
    assert troupe.reports("drain", "killed")[-1].reason == "cut: c, b, a"


async def test_a_child_that_swallows_its_kill_is_reported_as_stuck(
    troupe: Troupe, autojump_clock: MockClock
) -> None:
    class Stubborn:
        async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
            task_status.started()
            with trio.CancelScope(shield=True):
                await trio.sleep(1000)

        async def stop(self) -> None:
            await trio.sleep_forever()

    supervisor = troupe.supervisor(troupe.spec("a"), ChildSpec("stubborn", Stubborn, shutdown_s=5.0))
    ended_at: list[float] = []
    troupe.reporter.listen(lambda report: ended_at.append(trio.current_time()) if report.path == "top" else None)
    async with troupe.playing(supervisor):
        pass
    assert ended_at == [pytest.approx(6.0)]
    assert troupe.reports("drain", "stuck")[0].path == "top/stubborn"
    assert troupe.take_log() == ["?a", "-a"]


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), SystemExit(3)])
async def test_an_interrupt_in_a_child_drains_and_is_raised_unwrapped(
    troupe: Troupe, autojump_clock: MockClock, fault: BaseException
) -> None:
    supervisor = troupe.supervisor(*(troupe.spec(name) for name in "abc"))

    async def interrupt() -> None:
        await supervisor.wait_ready()
        troupe.crash("b", BaseExceptionGroup("wrapped", [fault]))

    caught: BaseException | None = None
    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(interrupt)
            try:
                await supervisor.run()
            except (KeyboardInterrupt, SystemExit) as exc:
                caught = exc
    assert caught is fault
    assert troupe.take_log() == ["+a", "+b", "+c", "-b", "?c", "-c", "?a", "-a"]


async def test_a_stop_before_the_start_starts_no_child(troupe: Troupe, autojump_clock: MockClock) -> None:
    supervisor = troupe.supervisor(troupe.spec("a"))
    await supervisor.stop()
    with trio.fail_after(5):
        await supervisor.run()
    assert troupe.take_log() == []
    with pytest.raises(RuntimeError, match="runs once"):
        await supervisor.run()


async def test_a_child_that_starts_while_stopping_is_not_running(troupe: Troupe, autojump_clock: MockClock) -> None:
    class Late:
        async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
            with trio.CancelScope(shield=True):
                await trio.sleep(2)
                task_status.started()
                await trio.sleep(1)
            await trio.sleep_forever()

        async def stop(self) -> None:
            raise AssertionError("it was not up when it was to stop")

    supervisor = troupe.supervisor(ChildSpec("late", Late))
    with trio.fail_after(100), trio.move_on_after(1):
        await supervisor.run()
    assert trio.current_time() == pytest.approx(3.0)
    assert not troupe.reports("progress")
    assert not troupe.reports("drain", "killed")
