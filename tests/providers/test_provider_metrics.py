"""Metrics of providers: latencies and errors of calls by reason, and the state that each process sees."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
from prometheus_client import Counter, Gauge
from trio.testing import MockClock, wait_all_tasks_blocked

from holdfast.actors.workers.provider_watch import CHECK_S, ProviderWatch
from holdfast.providers.media.base import Job, JobCallFault
from holdfast.providers.media.cog import CogProvider
from holdfast.providers.media.health import FAILURES_MAX
from holdfast.providers.outbound.connection_pool import BodyTooLarge, ConnectError, PoolTimeout, ReadTimeout
from holdfast.telemetry import metrics

from .answered_calls import serve

JOB = Job("task_1", 1, "m", {}, "http://callback.example")


def box(name: str, *, answer: int | Exception, after_s: float = 0.0) -> CogProvider:
    """A provider that gives every call the same answer."""

    async def answer_any(_path: str) -> int:
        await trio.sleep(after_s)
        if isinstance(answer, Exception):
            raise answer
        return answer

    provider = CogProvider(name, "http://box.example")
    serve(provider, answer_any)
    return provider


def value(metric: Counter | Gauge, *labels: str) -> float:
    return float(metric.labels(*labels)._value.get())


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ConnectError("refused"), "connect_error"),
        (ReadTimeout("nothing"), "read_timeout"),
        (PoolTimeout("all in use"), "pool_timeout"),
        (BodyTooLarge(17 * 1024 * 1024), "body_too_large"),
        (429, "status_429"),
        (503, "status_503"),
    ],
)
async def test_a_failed_call_is_counted_by_its_reason(
    autojump_clock: MockClock, answer: int | Exception, reason: str
) -> None:
    provider = box(f"fails_{reason}", answer=answer)
    await provider.submit(JOB)
    with suppress(JobCallFault):
        await provider.cancel("task_1", 1, None)
    await provider.probe()
    counted = [
        value(metrics.PROVIDER_ERRORS, provider.name, call, reason) for call in ("submit", "cancel", "probe")
    ]
    assert counted == [1, 1, 1]


async def test_a_call_that_takes_too_long_is_measured_and_a_timeout(autojump_clock: MockClock) -> None:
    provider = box("hangs", answer=200, after_s=3600)
    begun = trio.current_time()
    await provider.submit(JOB)
    took_s = trio.current_time() - begun
    assert value(metrics.PROVIDER_ERRORS, "hangs", "submit", "timeout") == 1
    measured = metrics.PROVIDER_CALL_S.labels("hangs", "submit").distribution
    assert measured.count == 1
    assert measured.total == pytest.approx(took_s)


@pytest.mark.parametrize("status", [200, 404, 405, 422])
async def test_an_answer_about_the_job_is_measured_and_no_error(autojump_clock: MockClock, status: int) -> None:
    name = f"answers_{status}"
    provider = box(name, answer=status, after_s=0.3)
    await provider.probe()
    measured = metrics.PROVIDER_CALL_S.labels(name, "probe").distribution
    assert measured.count == 1
    assert measured.total == pytest.approx(0.3)
    assert [labels for labels in metrics.PROVIDER_ERRORS._metrics if labels[0] == name] == []


async def test_the_gauge_has_the_state_that_a_process_sees(mock_clock: MockClock, nursery: trio.Nursery) -> None:
    provider = box("watched", answer=200)
    providers = {"watched": provider}

    def states() -> dict[str, float]:
        return {
            state: value(metrics.PROVIDER_STATE, "watched", state) for state in ("unknown", "up", "silent", "down")
        }

    async def pass_a_second() -> None:
        mock_clock.jump(CHECK_S)
        await wait_all_tasks_blocked()

    await nursery.start(ProviderWatch(providers=providers).run)
    provider.health.called_at_s = trio.current_time()
    await wait_all_tasks_blocked()
    await pass_a_second()
    assert states() == {"unknown": 0, "up": 1, "silent": 0, "down": 0}
    for _ in range(FAILURES_MAX):
        provider.health.failed("calls", "ConnectError")
    await pass_a_second()
    assert states() == {"unknown": 0, "up": 0, "silent": 0, "down": 1}
    del providers["watched"]
    await pass_a_second()
    assert states() == {"unknown": 0, "up": 0, "silent": 0, "down": 0}
