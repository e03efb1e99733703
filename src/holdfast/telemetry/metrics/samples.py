"""Samples of one process: what it did in each interval of a few seconds, for plots; what it used of the machine."""

from __future__ import annotations

import os
import platform
from collections import Counter, deque
from contextlib import suppress
from datetime import datetime
from functools import reduce
from math import isnan
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog
from prometheus_client.metrics import MetricWrapperBase

from holdfast import __version__
from holdfast.telemetry import metrics
from holdfast.telemetry.logs import kept_bytes
from holdfast.telemetry.metrics.batched_histogram import BatchedHistogram, Distribution

log = structlog.get_logger(__name__)

SAMPLE_S = 5.0
"""The interval of a sample."""
SAMPLES_MAX = 360
"""How many samples a process keeps: half an hour."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What a process did in an interval, and its queues at the end of it."""

    at: datetime
    """When the interval ended."""
    interval_s: float
    """The length of the interval, in seconds."""
    responses_2xx_per_s: float
    """Responses of this process with status 2xx, a second."""
    responses_3xx_per_s: float
    """Responses of this process with status 3xx, a second."""
    responses_4xx_per_s: float
    """Responses of this process with status 4xx, a second."""
    responses_5xx_per_s: float
    """Responses of this process with status 5xx, a second."""
    creates_per_s: float
    """Tasks created by requests to this process, a second."""
    settled_per_s: float
    """Tasks ended by actors of this process, a second."""
    commits_per_s: float
    """Commits of the journal, a second."""
    commit_p50_s: float | None
    """The time that half of the commits took at most, in seconds; null without any."""
    commit_p99_s: float | None
    """The time that 99 % of the commits took at most, in seconds; null without any."""
    wal_sync_mean_s: float | None = None
    """The mean time of the database's flushes of its log for any process, in seconds; null if it is not known."""
    mailbox_wait_p50_s: float | None
    """The time that half of the messages waited at most, in seconds; null without any."""
    mailbox_wait_p99_s: float | None
    """The time that 99 % of the messages waited at most, in seconds; null without any."""
    loop_lag_max_s: float
    """The longest delay of the event loop, in seconds."""
    journal_queue_units: int
    """Units of work that wait for the journal."""
    mailbox_messages: int
    """Messages in all mailboxes."""
    oldest_message_s: float
    """The age of the oldest message in a mailbox, in seconds."""
    connections_open: int
    """Open connections of clients."""
    actors_active: int
    """Active actors."""
    cpu_s: float | None
    """CPU time used in the interval, in seconds; null where the system does not tell."""
    memory_bytes: int | None
    """Resident memory in bytes; null where the system does not tell."""


class Queues(NamedTuple):
    """What waits in this process: units for the journal, and messages in mailboxes with the age of the oldest."""

    journal_units: int = 0
    mailbox_messages: int = 0
    oldest_message_s: float = 0.0


class Totals(NamedTuple):
    """The counts of this process since its start. ``responses`` are by the first digit of their status."""

    responses: Counter[str]
    creates: float
    settled: int
    commits: Distribution
    waits: Distribution
    cpu_s: float | None
    memory_bytes: int | None


class SampleRing:
    """The newest samples of this process and of the one that it replaced, which left them in the file ``left``."""

    def __init__(self, left: Path) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._left = left

    def add(self, sample: Sample) -> None:
        """Add the newest sample."""
        self._samples.append(sample)

    def leave(self) -> None:
        """Leave the samples to the next process: in a roll it serves already."""
        written = self._left.with_suffix(".new")
        try:
            written.write_bytes(msgspec.json.encode([*self._samples]))
            written.replace(self._left)
        except OSError as fault:
            log.info("samples are not left to the next process", reason=str(fault))

    def take_over(self, now: datetime) -> None:
        """Add what the process before this one has left by now."""
        try:
            raw = self._left.read_bytes()
            self._left.unlink()
            found = msgspec.json.decode(raw, type=list[Sample])
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError) as fault:
            log.info("samples of the process before cannot be read", reason=str(fault))
            return
        kept = [sample for sample in found if (now - sample.at).total_seconds() < SAMPLE_S * SAMPLES_MAX]
        self._samples = deque(sorted([*kept, *self._samples], key=lambda sample: sample.at), SAMPLES_MAX)

    def since(self, at: datetime | None = None) -> tuple[Sample, ...]:
        """Return the samples after ``at``, or all, the oldest first."""
        return tuple(sample for sample in self._samples if at is None or sample.at > at)


def read_totals() -> Totals:
    """Return this process's counts as they are now."""
    responses: Counter[str] = Counter()
    for (_, status), histogram in metrics.HTTP_REQUEST_S.children():
        responses[status[0]] += histogram.distribution.count
    usage = usage_of()
    return Totals(
        responses,
        creates=_value_of(metrics.TASKS_CREATED),
        settled=_all_of(metrics.TASK_S).count,
        commits=metrics.JOURNAL_COMMIT_S.distribution,
        waits=_all_of(metrics.MAILBOX_WAIT_S),
        cpu_s=None if usage is None else usage.cpu_s,
        memory_bytes=None if usage is None else usage.memory_bytes,
    )


def sample_between(
    before: Totals, now: Totals, *, at: datetime, interval_s: float, loop_lag_max_s: float, queues: Queues
) -> Sample:
    """Return the sample of the interval between two readings."""
    commits, waits = now.commits.since(before.commits), now.waits.since(before.waits)
    responses = {digit: (now.responses[digit] - before.responses[digit]) / interval_s for digit in "2345"}
    return Sample(
        at=at,
        interval_s=interval_s,
        responses_2xx_per_s=responses["2"],
        responses_3xx_per_s=responses["3"],
        responses_4xx_per_s=responses["4"],
        responses_5xx_per_s=responses["5"],
        creates_per_s=(now.creates - before.creates) / interval_s,
        settled_per_s=(now.settled - before.settled) / interval_s,
        commits_per_s=commits.count / interval_s,
        commit_p50_s=commits.quantile(0.5),
        commit_p99_s=commits.quantile(0.99),
        wal_sync_mean_s=None if isnan(wal_sync_s := _value_of(metrics.WAL_SYNC_S)) else wal_sync_s,
        mailbox_wait_p50_s=waits.quantile(0.5),
        mailbox_wait_p99_s=waits.quantile(0.99),
        loop_lag_max_s=loop_lag_max_s,
        journal_queue_units=queues.journal_units,
        mailbox_messages=queues.mailbox_messages,
        oldest_message_s=queues.oldest_message_s,
        connections_open=round(_value_of(metrics.HTTP_CONNECTIONS)),
        actors_active=round(_value_of(metrics.ACTORS_ACTIVE)),
        cpu_s=None if now.cpu_s is None or before.cpu_s is None else now.cpu_s - before.cpu_s,
        memory_bytes=now.memory_bytes,
    )


def _value_of(metric: MetricWrapperBase) -> float:
    """Return this process's value of a counter or gauge, the sum over its labels."""
    [family] = metric.collect()
    return sum(each.value for each in family.samples if not each.name.endswith("_created"))


def _all_of(histogram: BatchedHistogram) -> Distribution:
    nothing = Distribution(histogram.bounds, (0,) * len(histogram.bounds), 0.0)
    return reduce(Distribution.plus, (child.distribution for _, child in histogram.children()), nothing)


class ProcessUsage(NamedTuple):
    """CPU seconds since the start of the process, user and system; resident memory in bytes."""

    cpu_s: float
    memory_bytes: int


def usage_of(pid: int | None = None) -> ProcessUsage | None:
    """Return what a process has used, this one without a ``pid``; None if it has ended, or not on Linux."""
    with suppress(OSError, ValueError, IndexError):
        stat = Path(f"/proc/{pid or 'self'}/stat").read_text("utf-8", errors="replace")
        # The name, in parentheses, may contain anything. After it: utime and stime are fields 14 and 15, rss 24.
        fields = stat.rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return ProcessUsage(ticks / os.sysconf("SC_CLK_TCK"), int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))
    return None


class ProcessMeter:
    """Sets the metrics of this process, which is worker number ``worker``, or None; worker 0 adds its parent's."""

    def __init__(self, worker: int | None) -> None:
        self._pids: dict[str, int | None] = {"single" if worker is None else str(worker): None}
        if worker == 0:
            self._pids["parent"] = os.getppid()
        self._cpu_s: dict[str, float] = {}
        metrics.BUILD_INFO.labels(__version__, platform.python_version()).set(1)

    def measure(self) -> None:
        """Add what was used since the last call. A parent that has ended counts no longer."""
        metrics.LOG_MEMORY_BYTES.set(kept_bytes())
        for name, pid in self._pids.items():
            usage = usage_of(pid) if pid is None or pid == os.getppid() else None
            metrics.PROCESS_MEMORY_BYTES.labels(name).set(0 if usage is None else usage.memory_bytes)
            if usage is not None:
                before = self._cpu_s.get(name, 0.0 if pid is None else usage.cpu_s)
                metrics.PROCESS_CPU_S.labels(name).inc(usage.cpu_s - before)
                self._cpu_s[name] = usage.cpu_s
