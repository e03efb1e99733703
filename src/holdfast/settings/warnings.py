"""Warnings about valid settings that were probably not intended, logged at start."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import parse_qs, unquote

from holdfast.settings.checks import OWN_SECRETS, has_emulators, is_local
from holdfast.settings.secret_strength import is_plainly_weak
from holdfast.settings.settings import PREFIX, Settings
from holdfast.settings.values import split_database_url, trusts_the_public


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
    if settings.database_url is not None and _may_reach_an_impostor(settings.database_url):
        yield (
            "DATABASE_URL",
            "names another host without sslmode=verify-full: who is between could read and change all",
        )
    if settings.ops_port is None:
        yield "OPS_PORT", "is not set: /ops and /metrics are served on the public port"
    if settings.public_url is None:
        yield "PUBLIC_URL", "is not set: links contain the address that the service listens on"


def _development_warnings(settings: Settings) -> Iterator[tuple[str, str]]:
    for name in OWN_SECRETS:
        if is_plainly_weak(getattr(settings, name.lower())):
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


def _may_reach_an_impostor(database_url: str) -> bool:
    """Whether libpq may connect to another machine without checking whose it is.

    A URL may have several hosts, or name them in its query. With the system's authorities libpq always checks.
    """
    parts = split_database_url(database_url)
    assert parts is not None, "settings have no other URL"
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if options.get("sslmode") == "verify-full" or options.get("sslrootcert") == "system":
        return False
    named = [_without_port(each) for each in parts.hosts.split(",")]
    for name in ("host", "hostaddr"):
        if name in options:
            named = options[name].split(",")
    return not all(map(is_local, named))


def _without_port(host: str) -> str:
    found = re.match(r"\[([^]]*)\]|([^:]*)", host)
    assert found is not None
    return unquote(found[1] or found[2] or "")
