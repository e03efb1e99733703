"""``holdfast provider check``: the steps of a provider's check, one line each."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.http.endpoints.operators.providers.checks import ProviderCheckBody

_RESULTS = {"ok": "ok     ", "failed": "FAILED ", "skipped": "-      "}


def check_lines(found: ProviderCheckBody) -> Iterator[str]:
    """Yield the lines of a check's result: what was tried, then each step with its time."""
    yield f"provider {found.provider}, one job of {found.model} (customers pay {found.price})"
    for step in found.steps:
        yield f"{_RESULTS[step.result]}{step.name:<11} {step.duration_s:>7.3f} s  {step.detail}"
