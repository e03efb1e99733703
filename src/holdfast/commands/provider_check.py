"""``holdfast provider check`` and ``holdfast catalog probe``: the running service runs jobs, and lines show how."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote

from holdfast.commands.service_calls import ServiceRefused, call_service
from holdfast.http.endpoints.operators.providers import ProviderCheckBody
from holdfast.ledger.catalog.models import Model
from holdfast.settings.settings import ServiceLocation

_RESULTS = {"ok": "ok     ", "failed": "FAILED ", "skipped": "-      "}


def check_provider(
    location: ServiceLocation, provider: str, wanted: Mapping[str, object], *, url: str | None, timeout_s: float
) -> ProviderCheckBody:
    """Have the service at ``location``, or at ``url``, check a provider. Raises :class:`ServiceFault`."""
    path = f"/ops/api/providers/{quote(provider, safe='')}/check"
    try:
        return call_service(location, path, ProviderCheckBody, url=url, timeout_s=timeout_s, body=wanted)
    except ServiceRefused as refused:
        if refused.code != "cost_not_accepted":
            raise
        raise ServiceRefused(refused.code, f"{refused} Repeat with --yes to accept that.") from refused


def check_lines(found: ProviderCheckBody) -> Iterator[str]:
    """Yield the lines of a check's result: what was tried, then each step with its time."""
    yield f"provider {found.provider}, one job of {found.model} (customers pay {found.price})"
    for step in found.steps:
        yield f"{_RESULTS[step.result]}{step.name:<11} {step.duration_s:>7.3f} s  {step.detail}"


def probe(
    location: ServiceLocation,
    models: Iterable[Model],
    *,
    accept_cost: bool,
    wait_s: float,
    url: str | None,
    timeout_s: float,
) -> Iterator[tuple[bool, str]]:
    """Run each model's example once at its provider; yield whether that failed, and a line about it.

    Raises :class:`ServiceFault` if the service cannot be asked.
    """
    for model in models:
        skipped = _why_skipped(model)
        if skipped is not None:
            yield False, f"{_RESULTS['skipped']}{model.id}  {skipped}"
            continue
        wanted = {"model": model.id, "input": model.example_input, "wait_s": wait_s, "accept_cost": accept_cost}
        begun = time.monotonic()
        try:
            found = check_provider(location, model.upstream.provider, wanted, url=url, timeout_s=timeout_s)
        except ServiceRefused as fault:
            yield True, f"{_RESULTS['failed']}{model.id}  {fault}"
            continue
        took_s = time.monotonic() - begun
        # A job that has not ended is no failure of its provider, and shows no output either.
        bad = [
            step
            for step in found.steps
            if step.result == "failed" or (step.name, step.result) == ("outputs", "skipped")
        ]
        detail = [f"{step.name}: {step.detail}" for step in bad] or [found.steps[-1].detail]
        result = _RESULTS["failed" if bad else "ok"]
        yield bool(bad), f"{result}{model.id}  {took_s:.1f} s, customers pay {found.price}  {'; '.join(detail)}"


def _why_skipped(model: Model) -> str | None:
    if model.priced_only:
        return "is priced only"
    if model.status == "disabled":
        return "is disabled"
    return "has no example_input" if model.example_input is None else None
