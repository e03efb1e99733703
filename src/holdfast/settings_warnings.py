"""What a service can be run with and was probably not meant: a line each, shown at start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.settings_reader import PREFIX

if TYPE_CHECKING:
    from holdfast.settings import Settings


def warnings_of(settings: Settings) -> tuple[str, ...]:
    """The lines that these settings deserve."""
    lines: list[str] = []
    if settings.is_production:
        if settings.smtp_url is None:
            lines.append(f"{PREFIX}SMTP_URL is not set: sign-in codes cannot be mailed")
        if settings.sandbox_enabled:
            lines.append(f"{PREFIX}SANDBOX_ENABLED is true: every account can give itself credit without paying")
        if settings.webhook_local_allowed:
            lines.append(f"{PREFIX}WEBHOOK_LOCAL_ALLOWED is true: customers can have us call private addresses")
        if settings.card_api_key is not None and "_test_" in settings.card_api_key:
            lines.append(f"{PREFIX}CARD_API_KEY is a test key: credit is given for payments that are none")
        if settings.ops_port is None:
            lines.append(f"{PREFIX}OPS_PORT is not set: /ops and /metrics answer on the public port")
        if settings.public_url is None:
            lines.append(f"{PREFIX}PUBLIC_URL is not set: links will name the address the service listens on")
        elif settings.public_url.startswith("http:"):
            lines.append(f"{PREFIX}PUBLIC_URL is not https: tokens would travel in clear")
    if settings.card_api_key is not None:
        if not settings.card_webhook_secrets:
            lines.append(f"{PREFIX}CARD_WEBHOOK_SECRET is not set: the card webhook stays shut")
        if settings.card_publishable_key is None:
            lines.append(f"{PREFIX}CARD_PUBLISHABLE_KEY is not set: card orders carry no key for the browser")
    return tuple(lines)
