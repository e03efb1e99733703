"""The sampler on a mock clock: rates, latencies and queues of each interval, and the event loop's lag."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from holdfast.actors.runtime.mailbox import Envelope, Mailbox
from holdfast.actors.workers.sampler import LAG_S, Sampler
from holdfast.telemetry import metrics
from holdfast.telemetry.metrics.samples import SAMPLE_S, SAMPLES_MAX, ProcessMeter, SampleRing, usage_of

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


class Sampled:
    """A sampler that runs, and what it measures."""

    def __init__(self, nursery: trio.Nursery, clock: MockClock, folder: Path) -> None:
        self._nursery = nursery
        self._clock = clock
        self.ring = SampleRing(folder / "samples.json")
        self.mailboxes = [Mailbox(100), Mailbox(100)]
        self.journal_units = 0
        self.quarantined = {"accounts": 0}

    async def start(self) -> None:
        sampler = Sampler(
            self.ring,
            journal_units=lambda: self.journal_units,
            mailboxes=lambda: self.mailboxes,
            quarantined=lambda: self.quarantined,
            processes=ProcessMeter(None),
            are_others=False,
            now=lambda: NOON + timedelta(seconds=trio.current_time()),
        )
        await self._nursery.start(sampler.run)
        await wait_all_tasks_blocked()

    async def elapse(self, seconds: float) -> None:
        """Let time pass in steps of the lag's measurement, so that nothing is late."""
        for _ in range(round(seconds / LAG_S)):
            self._clock.jump(LAG_S)
            await wait_all_tasks_blocked()


async def started(nursery: trio.Nursery, clock: MockClock, folder: Path) -> Sampled:
    sampled = Sampled(nursery, clock, folder)
    await sampled.start()
    return sampled


async def test_a_sample_has_the_rates_of_its_interval(
    nursery: trio.Nursery, mock_clock: MockClock, tmp_path: Path
) -> None:
    sampled = await started(nursery, mock_clock, tmp_path)
    for status, count in (("200", 20), ("201", 5), ("404", 10), ("503", 15)):
        for _ in range(count):
            metrics.HTTP_REQUEST_S.labels("read_account", status).observe(0.003)
    metrics.TASKS_CREATED.labels("studio").inc(30)
    metrics.TASK_S.labels("studio", "succeeded").observe(1.5)
    metrics.TASK_S.labels("studio", "failed").observe(1.5)
    for _ in range(2):
        metrics.JOURNAL_COMMIT_S.observe(0.0015)
    await sampled.elapse(SAMPLE_S)

    [sample] = sampled.ring.since()
    assert sample.at == NOON + timedelta(seconds=SAMPLE_S)
    assert sample.interval_s == SAMPLE_S
    assert (sample.responses_2xx_per_s, sample.responses_3xx_per_s) == (5.0, 0.0)
    assert (sample.responses_4xx_per_s, sample.responses_5xx_per_s) == (2.0, 3.0)
    assert (sample.creates_per_s, sample.settled_per_s) == (6.0, 0.4)
    assert sample.commits_per_s == 0.4
    assert sample.commit_p50_s == pytest.approx(0.0015)


async def test_an_idle_interval_has_no_latencies(
    nursery: trio.Nursery, mock_clock: MockClock, tmp_path: Path
) -> None:
    sampled = await started(nursery, mock_clock, tmp_path)
    metrics.JOURNAL_COMMIT_S.observe(0.0015)
    await sampled.elapse(2 * SAMPLE_S)
    first, second = sampled.ring.since()
    assert first.commit_p99_s is not None
    assert (second.commits_per_s, second.commit_p50_s) == (0.0, None)
    assert (second.mailbox_wait_p50_s, second.mailbox_wait_p99_s) == (None, None)


async def test_queues_are_those_at_the_end_of_the_interval(
    nursery: trio.Nursery, mock_clock: MockClock, tmp_path: Path
) -> None:
    sampled = await started(nursery, mock_clock, tmp_path)
    sampled.journal_units = 7
    await sampled.elapse(1)
    sampled.mailboxes[0].put(Envelope("old", sent_at=trio.current_time()))
    await sampled.elapse(SAMPLE_S - 2)
    sampled.mailboxes[1].put(Envelope("new", sent_at=trio.current_time()))
    await sampled.elapse(1)
    sample = sampled.ring.since()[-1]
    assert sample is not None
    assert (sample.journal_queue_units, sample.mailbox_messages) == (7, 2)
    assert sample.oldest_message_s == SAMPLE_S - 1


async def test_the_lag_of_a_busy_loop_is_measured(
    nursery: trio.Nursery, mock_clock: MockClock, tmp_path: Path
) -> None:
    sampled = await started(nursery, mock_clock, tmp_path)
    before = metrics.LOOP_LAG_S.distribution
    await sampled.elapse(1)
    mock_clock.jump(3)
    await wait_all_tasks_blocked()
    await sampled.elapse(SAMPLE_S)
    first = sampled.ring.since()[0]
    assert first.loop_lag_max_s == 2.0
    assert metrics.LOOP_LAG_S.distribution.since(before).total == 2.0


async def test_half_an_hour_of_samples_is_kept(
    nursery: trio.Nursery, mock_clock: MockClock, tmp_path: Path
) -> None:
    sampled = await started(nursery, mock_clock, tmp_path)
    await sampled.elapse(SAMPLE_S * 3)
    samples = sampled.ring.since()
    assert sampled.ring.since(samples[0].at) == samples[1:]
    for _ in range(SAMPLES_MAX):
        sampled.ring.add(samples[-1])
    assert sampled.ring.since() == (samples[-1],) * SAMPLES_MAX
    assert SAMPLES_MAX * SAMPLE_S == 1800


async def test_samples_survive_a_roll(nursery: trio.Nursery, mock_clock: MockClock, tmp_path: Path) -> None:
    before = await started(nursery, mock_clock, tmp_path)
    await before.elapse(SAMPLE_S * 2)
    after = await started(nursery, mock_clock, tmp_path)
    await after.elapse(SAMPLE_S)
    of_both = sorted([*before.ring.since(), *after.ring.since()], key=lambda sample: sample.at)
    before.ring.leave()
    after.ring.take_over(NOON)
    assert [*after.ring.since()] == of_both
    after.ring.leave()
    third = await started(nursery, mock_clock, tmp_path)
    assert [*third.ring.since()] == of_both


async def test_samples_that_are_damaged_or_too_old_are_none(
    nursery: trio.Nursery, mock_clock: MockClock, tmp_path: Path
) -> None:
    sampled = await started(nursery, mock_clock, tmp_path)
    await sampled.elapse(SAMPLE_S)
    [sample] = sampled.ring.since()
    left = tmp_path / "samples.json"
    old = msgspec.structs.replace(sample, at=sample.at - timedelta(minutes=31))
    for raw in (b"", b"[{}]", b"\xff" * 9, msgspec.json.encode([old])):
        left.write_bytes(raw)
        sampled.ring.take_over(sample.at)
        assert sampled.ring.since() == (sample,)
        assert not left.exists()


async def test_quarantined_actors_and_the_process_have_gauges(
    nursery: trio.Nursery, mock_clock: MockClock, tmp_path: Path
) -> None:
    sampled = await started(nursery, mock_clock, tmp_path)
    sampled.quarantined = {"accounts": 3}
    before = metrics.PROCESS_CPU_S.labels("single")._value.get()
    await sampled.elapse(2 * SAMPLE_S)
    assert metrics.ACTORS_QUARANTINED.labels("accounts")._value.get() == 3
    usage = usage_of()
    assert usage is not None
    assert metrics.PROCESS_MEMORY_BYTES.labels("single")._value.get() == pytest.approx(usage.memory_bytes, rel=0.2)
    assert 0 < metrics.PROCESS_CPU_S.labels("single")._value.get() <= before + usage.cpu_s
    sample = sampled.ring.since()[-1]
    assert sample is not None
    assert sample.memory_bytes == pytest.approx(usage.memory_bytes, rel=0.2)
    assert sample.cpu_s is not None


def test_the_usage_of_an_ended_process_is_unknown() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert usage_of(ended.pid) is None
