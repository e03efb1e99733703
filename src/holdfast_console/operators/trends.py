"""Trends: the samples of all processes added up over time, as plots."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple, TypeAlias

from holdfast.telemetry.metrics.samples import SAMPLE_S, SAMPLES_MAX, Sample
from holdfast_console.formats import duration_text, number_text

WIDTH: Final = 300
HEIGHT: Final = 100
POINTS_MAX: Final = 200
"""More points than a plot can show are averaged."""

Points = Sequence[tuple[float, float | None]]
"""Seconds before now, as negative numbers and ascending, and values; None where there is none."""


class Curve(NamedTuple):
    """One curve. ``latest`` is the newest value in words."""

    name: str
    path: str
    area: str
    latest: str


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot as its template draws it: curves in a box of :data:`WIDTH` by :data:`HEIGHT`, and the axes' words.

    ``summary`` is the plot in a sentence, for who cannot see it.
    """

    title: str
    curves: tuple[Curve, ...]
    y_labels: tuple[str, str, str]
    x_labels: tuple[str, str, str]
    summary: str


def plot(
    title: str, series: Sequence[tuple[str, Points]], *, period_s: float, text: Callable[[float], str]
) -> Plot:
    """Return a plot of the last ``period_s`` seconds. ``text`` writes a value with its unit."""
    thinned = [(name, _thin(points)) for name, points in series]
    values = [value for _, points in thinned for _, value in points if value is not None]
    top = nice_top(max(values, default=0.0))
    curves = tuple(_curve(name, points, period_s, top, text) for name, points in thinned)
    latest = "; ".join(f"{curve.name} {curve.latest}" for curve in curves)
    return Plot(
        title=title,
        curves=curves,
        y_labels=(text(top), text(top / 2), "0"),
        x_labels=(f"{period_s / 60:g} min ago", f"{period_s / 120:g} min", "now"),
        summary=f"{title} in the last {period_s / 60:g} minutes: {latest}",
    )


def nice_top(value: float) -> float:
    """Return the end of an axis for values up to ``value``: 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if value <= step * power * (1 + 1e-9))


def _thin(points: Points) -> Points:
    size = math.ceil(len(points) / POINTS_MAX)
    if size <= 1:
        return points
    found = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        values = [value for _, value in part if value is not None]
        found.append((part[-1][0], sum(values) / len(values) if values else None))
    return found


def _curve(name: str, points: Points, period_s: float, top: float, text: Callable[[float], str]) -> Curve:
    path: list[str] = []
    area: list[str] = []
    run: list[tuple[float, float]] = []

    def end_run() -> None:
        if run:
            line = "L".join(f"{x:.1f} {y:.1f}" for x, y in run)
            # A single point is drawn as a dot: a line without length, with round ends.
            path.append(f"M{line}" if len(run) > 1 else f"M{line}h0")
            area.append(f"M{run[0][0]:.1f} {HEIGHT}L{line}L{run[-1][0]:.1f} {HEIGHT}Z")
            run.clear()

    for at_s, value in points:
        if value is None or at_s < -period_s:
            end_run()
        else:
            run.append((WIDTH * (1 + at_s / period_s), HEIGHT * (1 - min(value / top, 1.0))))
    end_run()
    newest = next((value for _, value in reversed(points) if value is not None), None)
    return Curve(name, "".join(path), "".join(area), "–" if newest is None else text(newest))


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
