"""What this process has counted of each media provider since its start, from its metrics."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Final

import msgspec
from prometheus_client import Counter

from holdfast.telemetry import metrics
from holdfast.telemetry.metrics.batched_histogram import Distribution

UNKNOWN: Final = "unknown"
"""The provider of callbacks that name none of the catalog."""


class ProviderFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Calls to a provider, and callbacks of it that were refused. ``call_p99_s`` is None without calls.

    ``errors`` counts failed calls by reason, ``callbacks_refused`` refused callbacks by the code of the refusal.
    """

    calls: int
    call_p99_s: float | None
    errors: dict[str, int]
    callbacks_refused: dict[str, int]


def figures_of(provider: str) -> ProviderFigures:
    """Return the figures of one provider, or of :data:`UNKNOWN`."""
    of_calls = [each.distribution for labels, each in metrics.PROVIDER_CALL_S.children() if labels[0] == provider]
    calls = reduce(Distribution.plus, of_calls) if of_calls else None
    errors: dict[str, int] = {}
    for (_, _, reason), count in _counts(metrics.PROVIDER_ERRORS, provider):
        errors[reason] = errors.get(reason, 0) + count
    return ProviderFigures(
        calls=0 if calls is None else calls.count,
        call_p99_s=None if calls is None else calls.quantile(0.99),
        errors=errors,
        callbacks_refused={reason: n for (_, reason), n in _counts(metrics.CALLBACKS_REFUSED, provider)},
    )


def _counts(counter: Counter, provider: str) -> Iterator[tuple[tuple[str, ...], int]]:
    """Return the labels and counts of a counter whose first label is the provider."""
    [family] = counter.collect()
    for sample in family.samples:
        if sample.name.endswith("_total") and sample.labels["provider"] == provider:
            yield tuple(sample.labels.values()), round(sample.value)
