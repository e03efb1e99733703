"""Random schedules of crashes and ends, and what holds in all of them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from holdfast.supervision.faults import NotRunning
from holdfast.supervision.spec import Backoff
from holdfast.supervision.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.supervision.conftest import ScriptedTree

    from holdfast.supervision.spec import Restart, Strategy

NAMES = "abcd"
STEPS = st.tuples(
    st.sampled_from(["crash", "crash", "finish", "fail start", "restart", "stop", "nothing"]),
    st.sampled_from(NAMES),
    st.sampled_from([0.0, 0.0, 0.3, 1.0, 7.0]),
)


def check_order(log: list[str], strategy: Strategy) -> None:
    """In groups no child starts, and none is stopped, while one after it is up."""
    up: set[str] = set()
    for entry in log:
        sign, name = entry[0], entry[1:]
        if sign == "+":
            assert name not in up, f"two lives of {name}"
            assert strategy == "one_for_one" or not any(other > name for other in up), f"{entry} too late"
            up.add(name)
        elif sign == "?":
            assert strategy == "one_for_one" or not any(other > name for other in up), f"{entry} too early"
        else:
            up.discard(name)
    assert not up


@settings(max_examples=200, deadline=None)
@given(
    strategy=st.sampled_from(["one_for_one", "rest_for_one", "one_for_all"]),
    restarts=st.lists(st.sampled_from(["permanent", "transient", "temporary"]), min_size=4, max_size=4),
    steps=st.lists(STEPS, max_size=25),
    start_takes_s=st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=4, max_size=4),
    stop_takes_s=st.lists(st.sampled_from([0.0, 1.0]), min_size=4, max_size=4),
    cancel=st.booleans(),
)
def test_any_history_keeps_one_incarnation_order_and_restarts(
    new_scripted_tree: Callable[[], ScriptedTree],
    *,
    strategy: Strategy,
    restarts: list[Restart],
    steps: list[tuple[str, str, float]],
    start_takes_s: list[float],
    stop_takes_s: list[float],
    cancel: bool,
) -> None:
    scripted = new_scripted_tree()
    scripted.start_takes_s = dict(zip(NAMES, start_takes_s, strict=True))
    scripted.stop_takes_s = dict(zip(NAMES, stop_takes_s, strict=True))
    specs = [
        scripted.spec(name, restart, backoff=Backoff(0.2, 4.0, jitter=0.2))
        for name, restart in zip(NAMES, restarts, strict=True)
    ]
    supervisor = scripted.supervisor(*specs, strategy=strategy, restarts=1000)
    stopped_by_operator: set[str] = set()

    async def operate(step: str, name: str) -> None:
        if step == "stop":
            stopped_by_operator.add(name)
        else:
            stopped_by_operator.discard(name)
        command = supervisor.stop_child if step == "stop" else supervisor.restart_child
        with trio.move_on_after(1), suppress(NotRunning):  # stopped while it was to restart
            await command(name)

    async def history() -> None:
        with trio.fail_after(10_000):
            async with trio.open_nursery() as nursery:
                scope = await nursery.start(run, supervisor)
                assert scripted.log == [f"+{name}" for name in NAMES]
                for step, name, pause_s in steps:
                    player = scripted.players.get(name)
                    if step == "crash" and player is not None:
                        scripted.crash(name)
                    elif step == "finish" and player is not None:
                        scripted.finish(name)
                    elif step == "fail start":
                        scripted.failing_starts[name] += 1
                    elif step in ("restart", "stop"):
                        nursery.start_soon(operate, step, name)
                    await trio.sleep(pause_s)
                await trio.sleep(500)  # no start fails for ever: every child that is to restart has restarted
                for status in supervisor.children():
                    if status.restart == "permanent" and status.child_id not in stopped_by_operator:
                        assert status.state == "running", f"lost the restart of {status.child_id}"
                    assert status.state in ("running", "finished", "failed", "stopped")
                    assert (status.state == "running") == (scripted.live[status.child_id] == 1)
                before_drain = len(scripted.log)
                if cancel:
                    scope.cancel()
                else:
                    await supervisor.stop()
        gone = [entry for entry in scripted.log[before_drain:] if entry[0] == "-"]
        assert gone == sorted(gone, reverse=True)

    trio.run(history, clock=MockClock(autojump_threshold=0))
    assert not +scripted.live
    assert max(scripted.most_live.values(), default=0) <= 1
    # An operator may stop one child under those that follow it; that alone may break the order.
    order_is_free = any(step == "stop" for step, _, _ in steps)
    check_order(scripted.log, "one_for_one" if order_is_free else strategy)


async def run(supervisor: Supervisor, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
    """Run under a scope that is returned once all are up."""
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda *, task_status: supervisor.run(task_status=task_status))
            task_status.started(scope)


def test_the_order_check_can_fail() -> None:
    with pytest.raises(AssertionError, match="too early"):
        check_order(["+a", "+b", "?a", "-a", "?b", "-b"], "one_for_all")
    with pytest.raises(AssertionError, match="two lives"):
        check_order(["+a", "+a"], "one_for_one")
