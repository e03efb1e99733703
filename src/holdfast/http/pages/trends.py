"""Trends: the samples of all processes added up over time, as plots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from holdfast.http.pages.formats import duration_text, number_text
from holdfast.http.pages.plots import Plot, Points, plot
from holdfast.telemetry.metrics.samples import SAMPLE_S, SAMPLES_MAX, Sample

PERIODS_S: Final = (60.0, 300.0, 900.0, SAMPLE_S * SAMPLES_MAX)
"""A plot covers the shortest of these that has all samples, so that a new process has no empty plots."""

Value: TypeAlias = Callable[[Sample], float | None]
Total: TypeAlias = Callable[[Iterable[float]], float]


@dataclass(frozen=True, slots=True)
class Trend:
    """A plot of values of samples. ``total`` makes one value of those of several processes at one time."""

    title: str
    values: tuple[tuple[str, Value], ...]
    total: Total
    text: Callable[[float], str]


def _per_s(value: float) -> str:
    return f"{number_text(value)}/s"


TRENDS: Final = (
    Trend(
        "Requests",
        (
            ("answered", lambda sample: sample.responses_2xx_per_s + sample.responses_3xx_per_s),
            ("refused", lambda sample: sample.responses_4xx_per_s),
            ("failed", lambda sample: sample.responses_5xx_per_s),
        ),
        sum,
        _per_s,
    ),
    Trend(
        "Tasks",
        (("created", lambda sample: sample.creates_per_s), ("ended", lambda sample: sample.settled_per_s)),
        sum,
        _per_s,
    ),
    Trend("Commits", (("commits", lambda sample: sample.commits_per_s),), sum, _per_s),
    Trend(
        "Time of a commit",
        (
            ("99%", lambda sample: sample.commit_p99_s),
            ("50%", lambda sample: sample.commit_p50_s),
            ("its flush", lambda sample: sample.wal_sync_mean_s),
        ),
        max,
        duration_text,
    ),
    Trend(
        "Wait in a mailbox",
        (("99%", lambda sample: sample.mailbox_wait_p99_s), ("50%", lambda sample: sample.mailbox_wait_p50_s)),
        max,
        duration_text,
    ),
    Trend(
        "Waiting",
        (
            ("messages", lambda sample: sample.mailbox_messages),
            ("units for the journal", lambda sample: sample.journal_queue_units),
        ),
        sum,
        number_text,
    ),
    Trend("Lag of the event loop", (("at most", lambda sample: sample.loop_lag_max_s),), max, duration_text),
)


def plots_of(processes: Sequence[Sequence[Sample]], now: datetime) -> list[Plot]:
    """Return the plots of all trends. ``processes`` are the samples of each."""
    intervals = _by_interval(processes, now)
    oldest_s = max(intervals, default=0) * SAMPLE_S
    period_s = next((period_s for period_s in PERIODS_S if oldest_s <= period_s), PERIODS_S[-1])
    return [
        plot(
            trend.title,
            [(name, _points(intervals, value, trend.total)) for name, value in trend.values],
            period_s=period_s,
            text=trend.text,
        )
        for trend in TRENDS
    ]


def latest(processes: Sequence[Sequence[Sample]]) -> list[Sample]:
    """Return the newest sample of each process."""
    return [samples[-1] for samples in processes if samples]


def _by_interval(processes: Sequence[Sequence[Sample]], now: datetime) -> dict[int, list[Sample]]:
    """Put samples that were taken about the same time together, by the number of intervals before now."""
    found: dict[int, list[Sample]] = {}
    for samples in processes:
        for sample in samples:
            found.setdefault(round((now - sample.at).total_seconds() / SAMPLE_S), []).append(sample)
    return found


def _points(intervals: dict[int, list[Sample]], value: Value, total: Total) -> Points:
    points: list[tuple[float, float | None]] = []
    for number in sorted(intervals, reverse=True):
        values = [each for sample in intervals[number] if (each := value(sample)) is not None]
        points.append((-number * SAMPLE_S, total(values) if values else None))
    return points
