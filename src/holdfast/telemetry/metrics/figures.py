"""What this process has counted since its start, from its metrics: of media providers, routes and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from heapq import nlargest
from typing import Final

import msgspec
from prometheus_client import Counter

from holdfast.telemetry import metrics
from holdfast.telemetry.metrics.batched_histogram import Distribution

UNKNOWN: Final = "unknown"
"""The provider of callbacks that name none of the catalog."""

SHOWN_MAX: Final = 10
"""How many routes, and how many refusals."""


class RouteFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Requests to a route, those refused included."""

    route: str
    """The method and path."""
    requests: int
    """How many there were."""
    p50_s: float
    """The time that half of them took at most, in seconds."""
    p99_s: float
    """The time that 99 % of them took at most, in seconds."""


class RefusalFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Refused requests of one kind."""

    status: int
    """The HTTP status."""
    code: str
    """The code of the error."""
    requests: int
    """How many there were."""


class ProviderFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Calls to a provider, and callbacks of it that were refused."""

    calls: int
    """How many calls were made."""
    call_p99_s: float | None
    """The time that 99 % of them took at most, in seconds; null without calls."""
    errors: dict[str, int]
    """Failed calls by reason."""
    callbacks_refused: dict[str, int]
    """Refused callbacks by the code of the refusal."""


def figures_of(provider: str) -> ProviderFigures:
    """Return the figures of one provider, or of :data:`UNKNOWN`."""
    of_calls = [each.distribution for labels, each in metrics.PROVIDER_CALL_S.children() if labels[0] == provider]
    calls = reduce(Distribution.plus, of_calls) if of_calls else None
    errors: dict[str, int] = {}
    for (of, _, reason), count in _counts(metrics.PROVIDER_ERRORS):
        if of == provider:
            errors[reason] = errors.get(reason, 0) + count
    return ProviderFigures(
        calls=0 if calls is None else calls.count,
        call_p99_s=None if calls is None else calls.quantile(0.99),
        errors=errors,
        callbacks_refused={reason: n for (of, reason), n in _counts(metrics.CALLBACKS_REFUSED) if of == provider},
    )


def slowest_routes() -> list[RouteFigures]:
    """Return the routes whose slowest requests took longest, by the 99th percentile."""
    found: dict[str, Distribution] = {}
    for (route, _), each in metrics.HTTP_REQUEST_S.children():
        found[route] = found[route].plus(each.distribution) if route in found else each.distribution
    routes = [
        RouteFigures(route=route, requests=each.count, p50_s=p50_s, p99_s=p99_s)
        for route, each in found.items()
        if (p50_s := each.quantile(0.5)) is not None and (p99_s := each.quantile(0.99)) is not None
    ]
    return nlargest(SHOWN_MAX, routes, key=lambda each: each.p99_s)


def frequent_refusals() -> list[RefusalFigures]:
    """Return the most frequent refusals."""
    refusals = (
        RefusalFigures(status=int(status), code=code, requests=count)
        for (status, code), count in _counts(metrics.REFUSALS)
    )
    return nlargest(SHOWN_MAX, refusals, key=lambda each: each.requests)


def _counts(counter: Counter) -> Iterator[tuple[tuple[str, ...], int]]:
    """Return a counter's labels and counts."""
    [family] = counter.collect()
    for sample in family.samples:
        if sample.name.endswith("_total"):
            yield tuple(sample.labels.values()), round(sample.value)
