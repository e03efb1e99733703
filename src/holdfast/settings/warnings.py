"""Warnings about valid settings that were probably not intended, logged at start."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.settings.checks import has_emulators
from holdfast.settings.secret_strength import is_plainly_weak
from holdfast.settings.settings import PREFIX, Settings
from holdfast.settings.values import trusts_the_public


def find_warnings(settings: Settings) -> Iterator[str]:
    """Yield a sentence for each such setting."""
    production = _production_warnings if settings.is_production else _development_warnings
    for name, problem in (*production(settings), *_card_warnings(settings)):
        yield f"{PREFIX}{name} {problem}"


def _production_warnings(settings: Settings) -> Iterator[tuple[str, str]]:
    if settings.smtp_url is None:
        yield "SMTP_URL", "is not set: sign-in codes cannot be mailed"
    if settings.sandbox_enabled:
        yield "SANDBOX_ENABLED", "is true: every account can give itself credit without paying"
    if settings.webhook_local_allowed:
        yield "WEBHOOK_LOCAL_ALLOWED", "is true: customers' webhooks may be sent to private addresses"
    if settings.card_api_key is not None and "_test_" in settings.card_api_key:
        yield "CARD_API_KEY", "is a test key: credit is given for payments that are not real"
    if settings.ops_port is None:
        yield "OPS_PORT", "is not set: /ops and /metrics are served on the public port"
    if settings.public_url is None:
        yield "PUBLIC_URL", "is not set: links contain the address that the service listens on"


def _development_warnings(settings: Settings) -> Iterator[tuple[str, str]]:
    secrets = {
        "OPERATOR_TOKEN": settings.operator_token,
        "CALLBACK_SECRET": settings.callback_secret,
        "SANDBOX_SECRET": settings.sandbox_secret,
        "SERVER_KEY": settings.server_secret,
    }
    for name, secret in secrets.items():
        if is_plainly_weak(secret):
            yield name, "is weak: production refuses it"
    if settings.card_api_key is None and not has_emulators():
        yield "CARD_API_KEY", "is not set, and the card emulator is not installed: there are no card payments"
    if trusts_the_public(settings.trusted_proxies):
        yield "TRUSTED_PROXIES", "trusts public addresses: production refuses it"


def _card_warnings(settings: Settings) -> Iterator[tuple[str, str]]:
    if settings.card_api_key is None:
        return
    if not settings.card_webhook_secrets:
        yield "CARD_WEBHOOK_SECRET", "is not set: the card webhook refuses every event"
    if settings.card_publishable_key is None:
        yield "CARD_PUBLISHABLE_KEY", "is not set: responses to card orders contain no key for the browser"
