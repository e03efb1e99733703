"""The card provider of this process: the configured one, development's emulator, or none."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.providers.card.base import CardPayments, CardProvider
from holdfast.settings.checks import has_emulators
from holdfast.settings.settings import Settings
from holdfast.sockets.emulator_sockets import EMULATOR_HOST, card_emulator_port
from holdfast.telemetry.reports.conditions import TakeOutcome, ignore_outcome

PROVIDER = "cardprovider"
WEBHOOK_PATH = "/v2/control/payments/cardprovider/webhook"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardSetup(CardPayments):
    """Card payments; ``emulator_url`` is the emulator's address, where the provider is that."""

    emulator_url: str | None = None


def card_setup(settings: Settings, take_outcome: TakeOutcome = ignore_outcome) -> CardSetup | None:
    """Return the card provider of a service with these settings; ``take_outcome`` takes the outcomes of calls.

    None without a key in production, which never uses the emulator, and where the emulator is not installed or has
    never run.
    """
    if settings.card_api_key is not None:
        return _configured(settings, settings.card_api_key, take_outcome)
    if settings.is_production or not has_emulators():
        return None
    port = card_emulator_port(settings)
    return None if port is None else _emulated(settings, port, take_outcome)


def _configured(settings: Settings, api_key: str, take_outcome: TakeOutcome) -> CardSetup:
    return CardSetup(
        provider=_adapter(settings, api_key, settings.card_api_base, take_outcome),
        webhook_secrets=settings.card_webhook_secrets,
        publishable_key=settings.card_publishable_key,
        livemode=_livemode(api_key),
    )


def _emulated(settings: Settings, port: int, take_outcome: TakeOutcome) -> CardSetup:
    url = f"http://{EMULATOR_HOST}:{port}"
    return CardSetup(
        provider=_adapter(settings, emulator_key(settings), url, take_outcome),
        webhook_secrets=(emulator_webhook_secret(settings),),
        publishable_key=settings.card_publishable_key or "pk_test_emulator",
        livemode=False,
        script_url=f"{url}/v3/",
        emulator_url=url,
    )


def _adapter(settings: Settings, api_key: str, api_base: str | None, take_outcome: TakeOutcome) -> CardProvider:
    from holdfast.providers.card.stripe_adapter import StripeProvider  # loaded only where there is a card provider

    return StripeProvider(
        api_key,
        api_base=api_base,
        timeout_s=settings.card_timeout_s,
        connect_timeout_s=min(5.0, settings.card_timeout_s),
        retries_count=settings.card_retries,
        automatic_payment_methods=settings.card_automatic_payment_methods,
        take_outcome=take_outcome,
    )


def emulator_key(settings: Settings) -> str:
    """Return the key that the card emulator requires."""
    return "sk_test_" + settings.derived_key("card emulator key").hex()


def emulator_webhook_secret(settings: Settings) -> str:
    """Return the secret that the card emulator signs its webhooks with."""
    return "whsec_" + settings.derived_key("card emulator webhooks").hex()


def _livemode(api_key: str) -> bool | None:
    """Read the mode from an API key: True for live, False for test, None if it does not show."""
    kind = api_key.split("_")[1:2]
    return {"live": True, "test": False}.get(kind[0]) if kind else None
