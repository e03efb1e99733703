"""Refused callbacks of providers, reported to operators by provider and reason."""

from __future__ import annotations

from typing import Final

from holdfast import metrics
from holdfast.http.kit.calls import Call
from holdfast.http.kit.routes import Outcome
from holdfast.ledger.refusals import Refusal
from holdfast.metrics.provider_figures import UNKNOWN
from holdfast.reports.conditions import CALLBACKS

_REPORTED: Final = frozenset(
    {"missing_signature", "invalid_signature", "signature_expired", "provider_not_configured", "invalid_event"}
)


def count_refused(call: Call, provider: str | None, outcome: Outcome) -> Outcome:
    """Return the outcome of a callback, counted if it is a refusal of the sender or of the form.

    ``provider`` is what the callback claims, so only names of the catalog and of our payment providers are taken.
    """
    if isinstance(outcome, Refusal) and outcome.code in _REPORTED:
        name = provider or UNKNOWN
        metrics.CALLBACKS_REFUSED.labels(name, outcome.code).inc()
        call.deps.conditions.failed(CALLBACKS, f"{name} {outcome.code}", outcome.code, provider=name)
    return outcome


def known_media_provider(call: Call, name: str | None) -> str | None:
    """Return ``name`` if the catalog has such a provider."""
    return name if name in call.deps.catalog().providers else None
