"""Checks of a catalog against this installation: the studio, and in production its secrets."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.ledger.catalog.catalog import Catalog, CatalogFault
from holdfast.providers.media.kinds import KINDS
from holdfast.settings.checks import INSTALL_EMULATORS, has_emulators
from holdfast.settings.secret_strength import weakness
from holdfast.settings.settings import Settings

SECRET_CHARS_MIN = 24
"""For a signing secret: the hosted service's is 24 random bytes in base64."""

TOKEN_CHARS_MIN = 16
"""For a token, whose length the provider chooses."""


def needs_studio(catalog: Catalog) -> bool:
    """Whether the catalog has the built-in studio as a provider."""
    return any(config.is_built_in for config in catalog.providers.values())


def check_studio(catalog: Catalog) -> None:
    """Raise :class:`CatalogFault` if the built-in studio is not installed, and the catalog has it."""
    if needs_studio(catalog) and not has_emulators():
        raise CatalogFault((f"providers: the built-in studio has no url and is an emulator: {INSTALL_EMULATORS}",))


def check_secrets(catalog: Catalog, settings: Settings) -> None:
    """In production, raise :class:`CatalogFault` with a line for each secret that is weak, missing or reused."""
    if settings.is_production and (faults := (*_weak(catalog), *_shared(catalog, settings))):
        raise CatalogFault(faults)


def _weak(catalog: Catalog) -> Iterator[str]:
    for config in catalog.providers.values():
        where = f"provider {config.name}"
        if config.secret is None and KINDS[config.kind].rules.webhooks == "token" and not config.polls:
            yield f"{where}: secret is missing: without one its webhooks are refused, and polling is off"
        reasons = [(weakness(secret, chars_min=SECRET_CHARS_MIN), "secret") for secret in config.own_secrets]
        if config.token is not None:
            reasons.append((weakness(config.token, chars_min=TOKEN_CHARS_MIN), "token"))
        yield from dict.fromkeys(f"{where}: {name} {reason}" for reason, name in reasons if reason is not None)


def _shared(catalog: Catalog, settings: Settings) -> Iterator[str]:
    """Yield secrets used by two providers, or by a provider and the settings."""
    own = set(settings.secret_values())
    owner: dict[str, str] = {}
    for config in catalog.providers.values():
        for secret in sorted(config.secret_values):
            if secret in own:
                yield f"provider {config.name}: a secret is also a secret of the settings; give each use its own"
            elif owner.setdefault(secret, config.name) != config.name:
                yield f"provider {config.name}: a secret is also one of provider {owner[secret]}; give each its own"
