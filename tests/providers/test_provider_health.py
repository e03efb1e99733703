"""A provider's state: what changes it, and one line in the log for each change."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import structlog.testing
import trio
from trio.testing import MockClock

from holdfast.actors.workers.provider_watch import PROBE_S, ProviderWatch
from holdfast.providers.media.cog import CogProvider
from holdfast.providers.media.health import FAILURES_MAX, SILENT_AFTER_S, ProviderHealth
from holdfast.providers.media.replicate import ReplicateProvider
from holdfast.providers.outbound.faults import ConnectError


async def test_three_unanswered_calls_in_a_row_are_down_and_one_answer_is_up() -> None:
    health = ProviderHealth("box")
    states: list[str] = [health.state]
    with structlog.testing.capture_logs() as lines:
        for status in (404, *[502] * (FAILURES_MAX - 1), 503, *[502] * FAILURES_MAX, 504, 200, 200):
            health.call_answered(status)
            states.append(health.state)
    assert states == ["unknown", "up", "up", "up", "up", "up", "up", "down", "down", "up", "up"]
    assert [(line["event"], line["provider"]) for line in lines] == [
        ("provider is down", "box"),
        ("provider is up", "box"),
    ]
    assert (lines[0]["failures"], lines[0]["reason"]) == (FAILURES_MAX, "status 502")


async def test_a_silence_is_one_line_at_its_beginning_and_one_at_its_end(mock_clock: MockClock) -> None:
    health = ProviderHealth("box")
    with structlog.testing.capture_logs() as lines:
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
    seen: list[Any] = [(line["event"], line["provider"]) for line in lines]
    assert seen == [("provider is silent", "box"), ("provider is up", "box")]
    assert (lines[0]["of"], lines[0]["for_s"], lines[1]["was"]) == ("submissions", 20, "silent")


async def test_a_silent_provider_that_was_down_is_silent_until_it_answers(
    mock_clock: MockClock,
) -> None:
    health = ProviderHealth("box")
    with structlog.testing.capture_logs() as lines:
        for _ in range(2 * FAILURES_MAX):
            health.succeeded("calls")
            health.failed("updates", "no answer")
            mock_clock.jump(SILENT_AFTER_S / FAILURES_MAX)
        for _ in range(FAILURES_MAX):
            health.failed("calls", "ConnectError")
        # Tasks that wait must not be kept waiting because the provider went from silent to down.
        assert [silence.of for silence in health.silences()] == ["updates"]
        health.succeeded("calls")
        health.succeeded("updates")
    events = [line["event"].removeprefix("provider is ") for line in lines]
    assert (events, health.state) == (["silent", "down", "silent", "up"], "up")


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


class Answer(NamedTuple):
    """A response without headers and body."""

    status: int

    def header(self, name: str) -> None:
        """Return None, for any header."""

    async def read(self, limit_bytes: int) -> bytes:
        return b""


def serve(provider: CogProvider | ReplicateProvider, answer: Callable[[str], Awaitable[int | None]]) -> None:
    """Let ``answer`` return the status for a path, in place of a server; None for no connection."""

    @asynccontextmanager
    async def exchange(_endpoint: object, request: bytes, *, is_repeatable: bool) -> AsyncIterator[Answer]:
        assert is_repeatable
        status = await answer(request.split()[1].decode())
        if status is None:
            raise ConnectError("refused")
        yield Answer(status)

    pool: Any = SimpleNamespace(exchange=exchange)
    provider._client._pool = pool


@pytest.mark.parametrize("kind", ["cog", "replicate"])
async def test_the_watch_probes_providers_that_are_not_called(mock_clock: MockClock, kind: str) -> None:
    asked: list[str] = []
    provider: CogProvider | ReplicateProvider
    if kind == "cog":
        provider = CogProvider("box", "http://box.example")
    else:
        provider = ReplicateProvider("box", "http://box.example", token="t", address=lambda *_: "")
        # Its probes cost, so only a provider that is down gets any.
        for _ in range(FAILURES_MAX):
            provider.health.failed("calls", "ConnectError")
    answers = [None, None, None, 404]

    async def answer(path: str) -> int | None:
        asked.append(path)
        return answers.pop(0) if answers else 200

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


async def test_a_slow_probe_delays_the_next_by_no_more_than_its_own_time(autojump_clock: MockClock) -> None:
    provider = CogProvider("box", "http://box.example")
    asked_at: list[float] = []

    async def answer(_path: str) -> None:
        asked_at.append(trio.current_time())
        await trio.sleep(0.2)

    serve(provider, answer)
    watch = ProviderWatch(providers={"box": provider})
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda *, task_status: watch.run(task_status=task_status))
        await trio.sleep(FAILURES_MAX * (PROBE_S + 2))
        nursery.cancel_scope.cancel()
    assert len(asked_at) == FAILURES_MAX + 1
    assert provider.health.state == "down"
