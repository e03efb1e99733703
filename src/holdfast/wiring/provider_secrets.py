"""Production's checks of the secrets in a catalog: each must be strong and used once."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.ledger.catalog.catalog import Catalog
from holdfast.providers.media.kinds import KINDS
from holdfast.settings.secret_strength import weakness
from holdfast.settings.settings import Settings

SECRET_CHARS_MIN = 24
"""For a signing secret: the hosted service's is 24 random bytes in base64."""

TOKEN_CHARS_MIN = 16
"""For a token, whose length the provider chooses."""


def secret_faults(catalog: Catalog, settings: Settings) -> tuple[str, ...]:
    """Return a line for each secret that is weak, missing or used twice; none outside production."""
    if not settings.is_production:
        return ()
    return (*_weak(catalog), *_shared(catalog, settings))


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
