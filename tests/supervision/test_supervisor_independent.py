"""A child that keeps running while siblings before it start again, and the end without patience."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock

from holdfast.supervision.spec import ChildSpec

if TYPE_CHECKING:
    from tests.supervision.conftest import Troupe


@pytest.mark.parametrize("strategy", ["rest_for_one", "one_for_all"])
async def test_an_independent_child_is_not_restarted_with_siblings(
    troupe: Troupe, strategy: str, autojump_clock: MockClock
) -> None:
    specs = (troupe.spec("a"), troupe.spec("b"), troupe.spec("c", independent=True))
    supervisor = troupe.supervisor(*specs, strategy=strategy)  # type: ignore[arg-type]
    async with troupe.playing(supervisor):
        troupe.crash("a")
        await troupe.settle()
        assert troupe.take_log() == ["-a", "?b", "-b", "+a", "+b"]
        assert supervisor.is_ready
        troupe.crash("c")
        await troupe.settle()
        assert troupe.take_log()[:1] == ["-c"]
        assert troupe.ups["c"] == 2
        troupe.log.clear()
    assert troupe.take_log() == ["?c", "-c", "?b", "-b", "?a", "-a"]


async def test_a_stop_at_once_kills_at_every_level(troupe: Troupe, autojump_clock: MockClock) -> None:
    troupe.deaf = {"a", "b", "c"}
    inner = ChildSpec(
        "inner", lambda: troupe.supervisor(*(troupe.spec(n, shutdown_s=100.0) for n in "bc")), shutdown_s=300.0
    )
    supervisor = troupe.supervisor(troupe.spec("a", shutdown_s=100.0), inner, drain_timeout_s=1000.0)
    async with troupe.playing(supervisor):
        await supervisor.stop()
        assert supervisor.is_stopping
        await trio.sleep(5)
        assert troupe.take_log() == ["?c"]
        supervisor.stop_at_once()
    assert sorted(troupe.take_log()) == ["-a", "-b", "-c"]
    assert trio.current_time() < 8.0


async def test_a_stop_at_once_needs_no_earlier_stop(troupe: Troupe, autojump_clock: MockClock) -> None:
    troupe.deaf = {"a", "b"}
    supervisor = troupe.supervisor(*(troupe.spec(name, shutdown_s=100.0) for name in "ab"))
    async with troupe.playing(supervisor):
        supervisor.stop_at_once()
    assert {"-a", "-b"} <= set(troupe.take_log())
    assert trio.current_time() < 3.0
