"""Whether a provider answers: told from calls and probes, with one line when it goes and one when it returns."""

from __future__ import annotations

import httpx
import pytest
import structlog.testing
import trio
from trio.testing import MockClock

from holdfast.actors.workers.provider_watch import PROBE_S, ProviderWatch
from holdfast.actors.workers.worker import WorkerAddress
from holdfast.providers.media.cog import CogProvider
from holdfast.providers.media.reachability import FAILURES_MAX, Reachability
from holdfast.providers.media.replicate import ReplicateProvider


async def test_three_calls_in_a_row_without_an_answer_are_down_and_one_answer_is_up() -> None:
    reachability = Reachability("box")
    states: list[str] = [reachability.state]
    with structlog.testing.capture_logs() as lines:
        for status in (404, *[502] * (FAILURES_MAX - 1), 503, *[502] * FAILURES_MAX, 504, 200, 200):
            reachability.answered(status)
            states.append(reachability.state)
    assert states == ["unknown", "up", "up", "up", "up", "up", "up", "down", "down", "up", "up"]
    assert [(line["event"], line["provider"]) for line in lines] == [
        ("provider cannot be reached", "box"),
        ("provider can be reached again", "box"),
    ]


def serve(provider: CogProvider | ReplicateProvider, answers: list[int | None], asked: list[str]) -> None:
    """Let the provider's server answer with these statuses in turn, None for not at all."""

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        status = answers.pop(0) if answers else 200
        if status is None:
            raise httpx.ConnectError("refused")
        return httpx.Response(status)

    provider._line._http = httpx.AsyncClient(transport=httpx.MockTransport(answer))


@pytest.mark.parametrize("kind", ["cog", "replicate"])
async def test_the_watch_probes_what_nobody_calls(mock_clock: MockClock, kind: str) -> None:
    asked: list[str] = []
    provider: CogProvider | ReplicateProvider
    if kind == "cog":
        provider = CogProvider("box", "http://box.example")
    else:
        provider = ReplicateProvider("box", "http://box.example", token="t", address=lambda *_: "")
        # Its probes cost, so only a provider that is down gets any.
        for _ in range(FAILURES_MAX):
            provider.reachability.failed("ConnectError")
    serve(provider, [None, None, None, 404], asked)
    watch = ProviderWatch(WorkerAddress("provider-watch"), providers={"box": provider})
    states = []
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda *, task_status: watch.run(task_status=task_status))
        for _ in range(6):
            await trio.testing.wait_all_tasks_blocked()
            states.append(provider.reachability.state)
            mock_clock.jump(PROBE_S)
        await watch.stop()
    # What went down by its calls is probed only when they are a while ago.
    expected = ["unknown", "unknown", "down", "up"] if kind == "cog" else ["down"] * 4 + ["up"]
    assert states[: len(expected)] == expected
    assert set(asked) == {"/health-check" if kind == "cog" else "/v1/account"}
