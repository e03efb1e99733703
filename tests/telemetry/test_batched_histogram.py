"""The batched histogram: the same buckets as prometheus_client's own, and quantiles of what was observed."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from holdfast.telemetry.metrics.batched_histogram import BatchedHistogram, Distribution

BOUNDS = (0.1, 1.0, 10.0)


def test_it_renders_as_the_plain_histogram_does() -> None:
    rendered = []
    for kind in (Histogram, BatchedHistogram):
        registry = CollectorRegistry()
        histogram = kind("waits_seconds", "Waits.", ["kind"], buckets=BOUNDS, registry=registry)
        for value in (0.05, 0.1, 0.5, 1.0, 1.5, 99.0):
            histogram.labels("a").observe(value)
        histogram.labels("b").observe(5)
        generate_latest(registry)
        histogram.labels("b").observe(6)
        lines = generate_latest(registry).decode().splitlines()
        rendered.append([line for line in lines if "_created" not in line])
    assert rendered[0] == rendered[1]


def test_nothing_is_written_before_it_is_collected() -> None:
    histogram = BatchedHistogram("waits_seconds", "Waits.", buckets=BOUNDS, registry=CollectorRegistry())
    histogram.observe(0.5)
    histogram.observe(2)
    assert histogram._sum.get() == 0
    histogram.flush()
    histogram.flush()
    assert histogram._sum.get() == 2.5
    assert [bucket.get() for bucket in histogram._buckets] == [0, 1, 1, 0]


def test_a_distribution_since_an_earlier_one_has_what_came_after() -> None:
    histogram = BatchedHistogram("waits_seconds", "Waits.", buckets=BOUNDS, registry=CollectorRegistry())
    histogram.observe(0.05)
    earlier = histogram.distribution
    histogram.observe(3)
    since = histogram.distribution.since(earlier)
    assert (since.count, since.total, since.counts) == (1, 3, (0, 0, 1, 0))
    assert since.plus(earlier).counts == (1, 0, 1, 0)


@pytest.mark.parametrize(
    ("counts", "part", "value"),
    [
        ((0, 0, 0, 0), 0.5, None),
        ((10, 0, 0, 0), 0.5, 0.05),
        ((10, 10, 0, 0), 0.75, 0.55),
        ((0, 0, 4, 0), 1.0, 10.0),
        ((1, 0, 0, 1), 0.99, 10.0),
    ],
)
def test_quantiles_are_interpolated_in_their_bucket(
    counts: tuple[int, ...], part: float, value: float | None
) -> None:
    found = Distribution((*BOUNDS, float("inf")), counts, 0.0).quantile(part)
    assert found == (None if value is None else pytest.approx(value))
