"""A child that keeps running while siblings before it restart, and a stop without a drain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock

from holdfast.supervision.spec import ChildSpec

if TYPE_CHECKING:
    from tests.supervision.conftest import ScriptedTree


@pytest.mark.parametrize("strategy", ["rest_for_one", "one_for_all"])
async def test_an_independent_child_is_not_restarted_with_siblings(
    scripted: ScriptedTree, strategy: str, autojump_clock: MockClock
) -> None:
    specs = (scripted.spec("a"), scripted.spec("b"), scripted.spec("c", independent=True))
    supervisor = scripted.supervisor(*specs, strategy=strategy)  # type: ignore[arg-type]
    async with scripted.running(supervisor):
        scripted.crash("a")
        await scripted.settle()
        assert scripted.take_log() == ["-a", "?b", "-b", "+a", "+b"]
        assert supervisor.is_ready
        scripted.crash("c")
        await scripted.settle()
        assert scripted.take_log()[:1] == ["-c"]
        assert scripted.ups["c"] == 2
        scripted.log.clear()
    assert scripted.take_log() == ["?c", "-c", "?b", "-b", "?a", "-a"]


async def test_a_stop_at_once_kills_at_every_level(scripted: ScriptedTree, autojump_clock: MockClock) -> None:
    scripted.deaf = {"a", "b", "c"}
    inner = ChildSpec(
        "inner", lambda: scripted.supervisor(*(scripted.spec(n, shutdown_s=100.0) for n in "bc")), shutdown_s=300.0
    )
    supervisor = scripted.supervisor(scripted.spec("a", shutdown_s=100.0), inner, drain_timeout_s=1000.0)
    async with scripted.running(supervisor):
        await supervisor.stop()
        assert supervisor.is_stopping
        await trio.sleep(5)
        assert scripted.take_log() == ["?c"]
        supervisor.stop_at_once()
    assert sorted(scripted.take_log()) == ["-a", "-b", "-c"]
    assert trio.current_time() < 8.0


async def test_a_stop_at_once_needs_no_earlier_stop(scripted: ScriptedTree, autojump_clock: MockClock) -> None:
    scripted.deaf = {"a", "b"}
    supervisor = scripted.supervisor(*(scripted.spec(name, shutdown_s=100.0) for name in "ab"))
    async with scripted.running(supervisor):
        supervisor.stop_at_once()
    assert {"-a", "-b"} <= set(scripted.take_log())
    assert {report.reason for report in scripted.reports("drain", "killed")} == {"stopped at once", "killed: b, a"}
    assert trio.current_time() < 3.0
