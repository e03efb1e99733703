"""Who is restarted, who falls with whom, and in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock

from holdfast.supervision.faults import GaveUp, NotRunning
from holdfast.supervision.spec import Backoff, ChildSpec, Restart, Strategy

if TYPE_CHECKING:
    from tests.supervision.conftest import ScriptedTree


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("one_for_one", ["-b", "+b"]),
        ("rest_for_one", ["-b", "?c", "-c", "+b", "+c"]),
        ("one_for_all", ["-b", "?c", "-c", "?a", "-a", "+a", "+b", "+c"]),
    ],
)
async def test_a_group_restart_stops_in_reverse_and_starts_in_order(
    scripted: ScriptedTree, autojump_clock: MockClock, strategy: Strategy, expected: list[str]
) -> None:
    supervisor = scripted.supervisor(*(scripted.spec(name) for name in "abc"), strategy=strategy)
    async with scripted.running(supervisor):
        scripted.crash("b")
        await scripted.settle()
        assert scripted.take_log() == expected
    assert scripted.take_log() == ["?c", "-c", "?b", "-b", "?a", "-a"]


@pytest.mark.parametrize("strategy", ["one_for_one", "rest_for_one", "one_for_all"])
@pytest.mark.parametrize(
    ("restart", "states"),
    [
        ("permanent", {"crash": "running", "finish": "running"}),
        ("transient", {"crash": "running", "finish": "finished"}),
        ("temporary", {"crash": "failed", "finish": "finished"}),
    ],
)
async def test_the_restart_type_applies_to_crash_and_return(
    scripted: ScriptedTree,
    autojump_clock: MockClock,
    strategy: Strategy,
    restart: Restart,
    states: dict[str, str],
) -> None:
    for end, state in states.items():
        supervisor = scripted.supervisor(
            scripted.spec("a"), scripted.spec("b", restart), scripted.spec("c"), strategy=strategy
        )
        async with scripted.running(supervisor):
            getattr(scripted, end)("b")
            await scripted.settle()
            assert supervisor.state_of("b") == state
            neighbours_fell = strategy != "one_for_one" and state == "running"
            assert ("-c" in scripted.log) == neighbours_fell
            assert ("-a" in scripted.log) == (neighbours_fell and strategy == "one_for_all")
            assert supervisor.state_of("a") == supervisor.state_of("c") == "running"


async def test_a_group_restart_omits_temporary_runs_finished_transients(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    supervisor = scripted.supervisor(
        scripted.spec("a"),
        scripted.spec("temp", "temporary"),
        scripted.spec("job", "transient"),
        strategy="one_for_all",
    )
    async with scripted.running(supervisor):
        scripted.finish("job")
        await scripted.settle()
        assert supervisor.state_of("job") == "finished"
        scripted.crash("a")
        await scripted.settle()
        assert [child.state for child in supervisor.children()] == ["running", "stopped", "running"]


async def test_each_child_starts_once_the_one_before_is_up(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    scripted.start_takes_s = {"a": 3.0, "b": 2.0}
    supervisor = scripted.supervisor(*(scripted.spec(name) for name in "abc"))
    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(2.5)
            assert [child.state for child in supervisor.children()] == ["starting", "pending", "pending"]
            await trio.sleep(1.0)
            assert [child.state for child in supervisor.children()] == ["running", "starting", "pending"]
            assert not supervisor.is_ready
            await supervisor.wait_ready()
            assert trio.current_time() == pytest.approx(5.0)
            assert scripted.take_log() == ["+a", "+b", "+c"]
            await supervisor.stop()


async def test_a_supervisor_is_ready_without_a_child_that_is_not_required(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    slow = Backoff(9.0, 9.0, jitter=0.0)
    supervisor = scripted.supervisor(
        scripted.spec("a", backoff=slow), scripted.spec("b", backoff=slow, required=False)
    )
    async with scripted.running(supervisor):
        scripted.crash("b")
        await scripted.settle()
        assert supervisor.state_of("b") == "restarting"
        assert supervisor.is_ready
        scripted.crash("a")
        await scripted.settle()
        assert not supervisor.is_ready


async def test_a_start_waits_for_a_child_that_is_not_required(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    scripted.start_takes_s = {"a": 2.0}
    supervisor = scripted.supervisor(scripted.spec("a", required=False))
    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(1.0)
            assert not supervisor.is_ready
            await supervisor.wait_ready()
            await supervisor.stop()


async def test_waiting_for_readiness_ends_with_the_supervisor(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    scripted.failing_starts["a"] = 99
    supervisor = scripted.supervisor(scripted.spec("a", backoff=Backoff(1.0, 1.0, jitter=0.0)), restarts=2)
    with trio.fail_after(100), pytest.RaisesGroup(NotRunning, GaveUp):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_keep, supervisor.wait_ready)
            await supervisor.run()


async def _keep(wait: object) -> None:
    """Await despite the neighbour's failure, which would cancel it first."""
    with trio.CancelScope(shield=True):
        await wait()  # type: ignore[operator] # a bound async method, handed on as an object


async def test_two_crashes_in_one_tick_cost_one_group_restart(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    supervisor = scripted.supervisor(*(scripted.spec(name) for name in "abc"), strategy="one_for_all", restarts=1)
    async with scripted.running(supervisor):
        scripted.crash("a")
        scripted.crash("b")
        await scripted.settle()
        assert supervisor.is_ready
        assert scripted.ups == {"a": 2, "b": 2, "c": 2}
    assert len(scripted.reports("crash")) == 1
    assert len(scripted.reports("drain", "shutdown_error")) == 1


async def test_a_late_stop_does_not_affect_the_next_incarnation(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    supervisor = scripted.supervisor(scripted.spec("a"))
    async with scripted.running(supervisor):
        for _ in range(20):
            # The child ends by itself in the very tick in which its stop is ordered, before it or after.
            async with trio.open_nursery() as nursery:
                nursery.start_soon(supervisor.restart_child, "a")
                scripted.crash("a")
            await trio.sleep(100)
            assert supervisor.is_ready
            assert scripted.most_live["a"] == 1
    assert not scripted.reports("drain", "killed")


async def test_an_operator_stops_and_restarts_a_child(scripted: ScriptedTree, autojump_clock: MockClock) -> None:
    supervisor = scripted.supervisor(*(scripted.spec(name) for name in "abc"), strategy="rest_for_one", restarts=0)
    async with scripted.running(supervisor):
        await supervisor.stop_child("b")
        assert supervisor.state_of("b") == "stopped"
        assert not supervisor.is_ready
        assert scripted.take_log() == ["?b", "-b"]
        await supervisor.restart_child("b")
        await scripted.settle()
        assert scripted.take_log() == ["?c", "-c", "+b", "+c"]
        assert {child.state for child in supervisor.children()} == {"running"}
        await supervisor.restart_child("b", "by an operator: ticket 7")
        await scripted.settle()
        said = [
            (each.kind, each.reason) for each in reversed(scripted.reporter.recent()) if each.path.endswith("/b")
        ]
        assert said[-2:] == [("stop", "by an operator: ticket 7"), ("restart", "by an operator: ticket 7")]
        with pytest.raises(KeyError):
            await supervisor.stop_child("absent")
    with pytest.raises(NotRunning):
        await supervisor.restart_child("b")


async def test_a_crash_names_the_last_message_of_its_incarnation(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    supervisor = scripted.supervisor(scripted.spec("a"))
    async with scripted.running(supervisor):
        player: Any = scripted.players["a"]
        player.last_message = Backoff
        for _ in range(2):
            scripted.crash("a")
            await scripted.settle()
    crashes = scripted.reports("crash")
    assert [(each.incarnation, each.last_message_type) for each in crashes] == [(1, "Backoff"), (2, None)]


async def test_a_group_restart_omits_a_child_stopped_by_an_operator(
    scripted: ScriptedTree, autojump_clock: MockClock
) -> None:
    supervisor = scripted.supervisor(*(scripted.spec(name) for name in "abc"), strategy="one_for_all")
    async with scripted.running(supervisor):
        await supervisor.stop_child("b")
        scripted.crash("a")
        await scripted.settle()
        assert [child.state for child in supervisor.children()] == ["running", "stopped", "running"]


async def test_a_supervisor_below_another_uses_its_path(scripted: ScriptedTree, autojump_clock: MockClock) -> None:
    scripted.start_takes_s["x"] = 4.0
    inner = ChildSpec("workers", lambda: scripted.supervisor(scripted.spec("x"), scripted.spec("y")))
    outer = scripted.supervisor(inner, scripted.spec("z"), name="holdfast")
    async with scripted.running(outer):
        assert trio.current_time() == pytest.approx(4.0)
        assert [child.child_id for child in outer.children()[0].children] == ["x", "y"]
        scripted.crash("x")
        await trio.sleep(1)
        assert outer.state_of("workers") == "running"
        assert not outer.is_ready
        await outer.wait_ready()
    assert scripted.reports("crash")[0].path == "holdfast/workers/x"


def test_invalid_specs_are_refused(scripted: ScriptedTree) -> None:
    with pytest.raises(ValueError, match="finite"):
        scripted.spec("a", shutdown_s=float("inf"))
    with pytest.raises(ValueError, match="slash"):
        scripted.spec("a/b")
    with pytest.raises(ValueError, match="share an id"):
        scripted.supervisor(scripted.spec("a"), scripted.spec("a"))
