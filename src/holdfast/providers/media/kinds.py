"""The kinds of providers that a catalog may name. A new kind is registered here."""

from __future__ import annotations

from holdfast.ledger.catalog.entries import KindRules
from holdfast.providers.media.base import ProviderKind
from holdfast.providers.media.cog import CONTAINER, STUDIO
from holdfast.providers.media.replicate import REPLICATE

PROVIDER_KINDS: dict[str, ProviderKind] = {
    "studio": STUDIO,
    "cog": CONTAINER,
    "replicate": REPLICATE,
}


def kind_rules() -> dict[str, KindRules]:
    """Return the rules of every kind, for reading a catalog."""
    return {name: kind.rules for name, kind in PROVIDER_KINDS.items()}
