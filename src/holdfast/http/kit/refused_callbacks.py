"""Refused callbacks of providers, reported to operators by provider and reason."""

from __future__ import annotations

from typing import Final

from holdfast.http.kit.calls import Call
from holdfast.http.kit.routes import Outcome
from holdfast.ledger.refusals import Refusal
from holdfast.providers.signatures import SignatureVerdict
from holdfast.telemetry import metrics
from holdfast.telemetry.metrics.figures import UNKNOWN
from holdfast.telemetry.reports.conditions import CALLBACKS

SENDER_ERRORS: Final = (
    "missing_signature",
    "invalid_signature",
    "signature_expired",
    "provider_not_configured",
    "invalid_event",
)
"""The refusals of the sender or of the form of a callback."""


def refused_signature(verdict: SignatureVerdict, header: str) -> Refusal:
    """Return the refusal of a callback whose signature, in ``header``, is not valid."""
    match verdict:
        case "missing":
            return Refusal(code="missing_signature", message=f"The header {header} is missing.")
        case "expired":
            return Refusal(code="signature_expired", message="The signature's time is outside the tolerance.")
        case _:
            return Refusal(code="invalid_signature", message="The signature does not match the body.")


def count_refused(call: Call, provider: str | None, outcome: Outcome, *, claimed_by: str = "address") -> None:
    """Count the outcome of a callback if it is a refusal of the sender or of the form.

    ``provider`` is what the callback claims in its address, or in the part ``claimed_by``, so only names of the
    catalog and of our payment providers are taken. A report has the origin of the callback that it was made for.
    """
    if isinstance(outcome, Refusal) and outcome.code in SENDER_ERRORS:
        name = provider or UNKNOWN
        metrics.CALLBACKS_REFUSED.labels(name, outcome.code).inc()
        claim = "" if provider is None or claimed_by == "address" else f", the provider as its {claimed_by} claims"
        reason = f"{outcome.code}, from {call.origin()}{claim}"
        call.deps.conditions.failed(CALLBACKS, f"{name} {outcome.code}", reason, provider=name)


def known_media_provider(call: Call, name: str | None) -> str | None:
    """Return ``name`` if the catalog has such a provider."""
    return name if name in call.deps.registry.catalog.providers else None
