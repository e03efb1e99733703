"""A provider's state: what changes it, and what its watch takes."""

from __future__ import annotations

from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock

from holdfast.actors.workers.provider_watch import CHECK_S, PROBE_S, ProviderWatch
from holdfast.providers.media.client import PROBE_TIMEOUT_S
from holdfast.providers.media.cog import CogProvider
from holdfast.providers.media.health import FAILURES_MAX, SILENT_AFTER_S, ProviderHealth
from holdfast.providers.media.replicate import ReplicateProvider
from holdfast.providers.outbound.connection_pool import ConnectError

from .answered_calls import serve


async def test_three_unanswered_calls_in_a_row_are_down_and_one_answer_is_up() -> None:
    health = ProviderHealth("box")
    states: list[str] = [health.state]
    taken: list[str | None] = []
    health.take_outcome = taken.append
    for status in (404, *[502] * (FAILURES_MAX - 1), 503, *[502] * FAILURES_MAX, 504, 200, 200):
        health.call_answered("poll", status)
        states.append(health.state)
    assert states == ["unknown", "up", "up", "up", "up", "up", "up", "down", "down", "up", "up"]
    assert taken == ["down: 3 calls failed, poll: status 502", "down: 4 calls failed, poll: status 504", None]


async def test_a_silence_lasts_until_a_submission_is_answered(mock_clock: MockClock) -> None:
    health = ProviderHealth("box")
    taken: list[str | None] = []
    health.take_outcome = taken.append
    for _ in range(1000):
        health.succeeded("calls")
        health.failed("submissions", "no answer")
        mock_clock.jump(0.1)
    [silence] = health.silences()
    assert (silence.of, round(silence.seconds), health.state) == ("submissions", 100, "silent")
    health.succeeded("updates")
    assert health.silences() == (silence,)
    for _ in range(10):
        health.succeeded("submissions")
    assert (health.silences(), health.state) == ((), "up")
    assert taken[0] == "silent: 201 submissions failed, no answer"
    assert taken.index(None) == len(taken) - 1


async def test_a_silent_provider_that_was_down_is_silent_until_it_answers(
    mock_clock: MockClock,
) -> None:
    health = ProviderHealth("box")
    states: list[str] = []
    for _ in range(2 * FAILURES_MAX):
        health.succeeded("calls")
        health.failed("updates", "no answer")
        mock_clock.jump(SILENT_AFTER_S / FAILURES_MAX)
    states.append(health.state)
    for _ in range(FAILURES_MAX):
        health.failed("calls", "ConnectError")
    states.append(health.state)
    # Tasks that wait must not be kept waiting because the provider went from silent to down.
    assert [silence.of for silence in health.silences()] == ["updates"]
    for what in ("calls", "updates"):
        health.succeeded(what)
        states.append(health.state)
    assert states == ["silent", "down", "silent", "up"]


async def test_a_call_now_and_then_without_an_answer_is_no_silence(mock_clock: MockClock) -> None:
    health = ProviderHealth("box")
    for _ in range(FAILURES_MAX * 10):
        health.failed("updates", "no answer")
        mock_clock.jump(SILENT_AFTER_S)
        health.succeeded("updates")
    assert health.silences() == ()
    # Many at once are one moment's trouble.
    for _ in range(100):
        health.failed("updates", "no answer")
    mock_clock.jump(SILENT_AFTER_S)
    assert (health.silences(), health.state) == ((), "up")


@pytest.mark.parametrize("kind", ["cog", "replicate"])
async def test_the_watch_probes_providers_that_are_not_called(mock_clock: MockClock, kind: str) -> None:
    asked: list[str] = []
    provider: CogProvider | ReplicateProvider
    if kind == "cog":
        provider = CogProvider("box", "http://box.example")
    else:
        provider = ReplicateProvider("box", "http://box.example", token="t", seal_callback_url=lambda *_: "")
        # Its probes cost, so only a provider that is down gets any.
        for _ in range(FAILURES_MAX):
            provider.health.failed("calls", "ConnectError")

    async def answer(path: str) -> int:
        asked.append(path)
        if len(asked) <= 3:
            raise ConnectError("refused")
        return 404 if len(asked) == 4 else 200

    serve(provider, answer)
    watch = ProviderWatch(providers={"box": provider})
    states = []
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda *, task_status: watch.run(task_status=task_status))
        for _ in range(6):
            await trio.testing.wait_all_tasks_blocked()
            states.append(provider.health.state)
            mock_clock.jump(PROBE_S)
        nursery.cancel_scope.cancel()
    # What went down by its calls is probed only when they are a while ago.
    expected = ["unknown", "unknown", "down", "up"] if kind == "cog" else ["down"] * 4 + ["up"]
    assert states[: len(expected)] == expected
    assert set(asked) == {"/health-check" if kind == "cog" else "/v1/account"}


async def test_an_outage_names_the_call_and_how_long_it_waited(autojump_clock: MockClock) -> None:
    provider = CogProvider("box", "http://box.example")
    taken: list[str | None] = []
    provider.health.take_outcome = taken.append

    async def answer(_path: str) -> int:
        await trio.sleep_forever()

    serve(provider, answer)
    for _ in range(FAILURES_MAX):
        await provider.probe()
    assert taken == [f"down: 3 calls failed, probe: no response within {PROBE_TIMEOUT_S:g} s"]


async def test_a_slow_probe_delays_the_next_by_no_more_than_its_own_time(autojump_clock: MockClock) -> None:
    provider = CogProvider("box", "http://box.example")
    asked_at: list[float] = []

    async def answer(_path: str) -> int:
        asked_at.append(trio.current_time())
        await trio.sleep(0.2)
        raise ConnectError("refused")

    serve(provider, answer)
    watch = ProviderWatch(providers={"box": provider})
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda *, task_status: watch.run(task_status=task_status))
        await trio.sleep(FAILURES_MAX * (PROBE_S + 2))
        nursery.cancel_scope.cancel()
    pauses = [round(later - earlier, 1) for earlier, later in pairwise(asked_at)]
    assert pauses[:5] == [2.0, 2.0, 3.0, 3.0, 3.0]
    assert provider.health.state == "down"


async def test_a_provider_that_stops_while_idle_is_down_within_seconds(autojump_clock: MockClock) -> None:
    provider = CogProvider("box", "http://box.example")
    is_there = [True]

    async def answer(_path: str) -> int:
        if not is_there[-1]:
            raise ConnectError("refused")
        return 200

    serve(provider, answer)
    watch = ProviderWatch(providers={"box": provider})
    states: list[str] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda *, task_status: watch.run(task_status=task_status))
        for there in (True, False, True):
            is_there.append(there)
            await trio.sleep(PROBE_S + FAILURES_MAX * CHECK_S)
            states.append(provider.health.state)
        nursery.cancel_scope.cancel()
    assert states == ["up", "down", "up"]
