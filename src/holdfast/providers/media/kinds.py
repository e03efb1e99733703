"""The kinds of providers that a catalog may name: their rules, and how a provider of each kind is created."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from holdfast.ledger.catalog.kinds import KIND_RULES, KindRules
from holdfast.providers.media.base import MediaProvider, ProviderSetup
from holdfast.providers.media.cog import CogProvider, PlainCogProvider
from holdfast.providers.media.replicate import ReplicateProvider


@dataclass(frozen=True, slots=True)
class ProviderKind:
    """One kind of provider. ``create`` raises ``ValueError`` for a configuration that cannot be used."""

    rules: KindRules
    create: Callable[[ProviderSetup], MediaProvider]


def _cog(kind: type[CogProvider], setup: ProviderSetup) -> MediaProvider:
    return kind(
        setup.config.name,
        setup.url,
        setup.secrets,
        token=setup.token,
        polls=setup.config.polls,
        submit_timeout_s=setup.config.submit_timeout_s,
    )


def _replicate(setup: ProviderSetup) -> MediaProvider:
    # The catalog requires a token.
    assert setup.token is not None
    return ReplicateProvider(
        setup.config.name,
        setup.url,
        setup.config.own_secrets,
        token=setup.token,
        webhook_url=setup.seal_callback_url,
        submit_timeout_s=setup.config.submit_timeout_s,
    )


KINDS: dict[str, ProviderKind] = {
    "studio": ProviderKind(KIND_RULES["studio"], partial(_cog, CogProvider)),
    "cog": ProviderKind(KIND_RULES["cog"], partial(_cog, PlainCogProvider)),
    "replicate": ProviderKind(KIND_RULES["replicate"], _replicate),
}
"""Every kind by its name in the catalog. A new kind is registered here."""


def kind_rules() -> dict[str, KindRules]:
    """Return the rules of every kind, for reading a catalog."""
    return {name: kind.rules for name, kind in KINDS.items()}
