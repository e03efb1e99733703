"""A histogram that costs a tenth of prometheus_client's own, for what is observed many times for each request."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self, cast

from prometheus_client import Histogram
from prometheus_client.samples import Sample


@dataclass(frozen=True, slots=True)
class Distribution:
    """How many observations were at most each of ``bounds`` and above the one before it, and their sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """The number of observations."""
        return sum(self.counts)

    def since(self, earlier: Distribution) -> Distribution:
        """Return what was observed after ``earlier``."""
        counts = tuple(now - before for now, before in zip(self.counts, earlier.counts, strict=True))
        return Distribution(self.bounds, counts, self.total - earlier.total)

    def plus(self, other: Distribution) -> Distribution:
        """Return the observations of both."""
        counts = tuple(one + another for one, another in zip(self.counts, other.counts, strict=True))
        return Distribution(self.bounds, counts, self.total + other.total)

    def quantile(self, part: float) -> float | None:
        """Return the value that ``part`` of the observations are at most, interpolated as Prometheus does.

        None without observations; the largest finite bound for what is above it.
        """
        rank, below, lower = part * self.count, 0, 0.0
        for upper, count in zip(self.bounds, self.counts, strict=True):
            if count and below + count >= rank:
                return lower if upper == float("inf") else lower + (upper - lower) * (rank - below) / count
            below += count
            lower = lower if upper == float("inf") else upper
        return None


class BatchedHistogram(Histogram):
    """Observations are counted in this process, and written to Prometheus' values when they are collected.

    With several workers, which collect each other's values from files, :meth:`flush` writes them. There
    prometheus_client writes each observation to a file, which takes 1.6 µs instead of 0.1. For one thread.

    From prometheus_client, private members used here: ``_metric_init``, ``_child_samples``, ``_labelnames``,
    ``_labelvalues``, ``_upper_bounds``, ``_buckets``, ``_sum``, ``_metrics``.
    """

    def _metric_init(self) -> None:
        super()._metric_init()
        self._bounds = self.bounds
        self._counts = [0] * len(self._bounds)
        self._total = 0.0
        self._written = [0] * len(self._bounds)
        self._written_total = 0.0

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:
        """Count one observation; there are no exemplars."""
        assert exemplar is None
        self._counts[bisect_left(self._bounds, amount)] += 1
        self._total += amount

    @property
    def bounds(self) -> tuple[float, ...]:
        """The upper bounds of its buckets, the last one infinite."""
        return tuple(self._upper_bounds)

    @property
    def distribution(self) -> Distribution:
        """All observations of this process so far, of one combination of labels."""
        return Distribution(self._bounds, tuple(self._counts), self._total)

    def children(self) -> Iterator[tuple[tuple[str, ...], Self]]:
        """Return each combination of labels that was observed; without labels, the histogram itself."""
        if self._labelnames and not self._labelvalues:
            of_labels = cast("dict[tuple[str, ...], Self]", self._metrics)
            yield from list(of_labels.items())
        else:
            yield (), self

    def flush(self) -> None:
        """Write what was observed since the last call, with all labels."""
        for _, child in self.children():
            child._write()

    def _write(self) -> None:
        if self._counts == self._written:
            return
        self._sum.inc(self._total - self._written_total)
        for bucket, now, before in zip(self._buckets, self._counts, self._written, strict=True):
            if now != before:
                bucket.inc(now - before)
        self._written, self._written_total = self._counts.copy(), self._total

    def _child_samples(self) -> Iterable[Sample]:
        self._write()
        return super()._child_samples()
