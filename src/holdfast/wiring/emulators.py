"""The emulators that these settings and this catalog need. They are a distribution of their own."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib.metadata import entry_points
from typing import cast

from holdfast.ledger.catalog.models import ProviderConfig
from holdfast.settings.checks import EMULATORS
from holdfast.settings.settings import Settings
from holdfast.sockets.emulator_sockets import EmulatorSockets
from holdfast.supervision.spec import Child
from holdfast.supervision.tree import RunningChild
from holdfast.wiring.card import WEBHOOK_PATH, emulator_key, emulator_webhook_secret
from holdfast.wiring.provider_registry import ProviderRegistry, studio_token


def emulators_of(
    settings: Settings, registry: ProviderRegistry, sockets: EmulatorSockets, *, local_url: str
) -> Mapping[str, Callable[[], Child]]:
    """Return how the emulators are started: the studio, if the catalog has it, and the card emulator.

    ``local_url`` is where the service listens. They are found by their entry points: production runs without them.
    """
    children: dict[str, Callable[[], Child]] = {}
    studio = next((config for config in registry.catalog.providers.values() if config.is_built_in), None)
    if studio is not None:
        assert sockets.studio is not None, "a catalog with the studio is refused if it is not installed"
        children["studio"] = _studio(settings, registry, studio, sockets.studio)
    if sockets.card is not None:
        children["card"] = _card(settings, sockets.card, local_url + WEBHOOK_PATH)
    return children


def _emulator(name: str) -> Callable[..., Awaitable[None]]:
    [found] = entry_points(group=EMULATORS, name=name)
    return cast(Callable[..., Awaitable[None]], found.load())


def _studio(
    settings: Settings, registry: ProviderRegistry, config: ProviderConfig, bound: socket.socket
) -> Callable[[], Child]:
    run = partial(
        _emulator("studio"),
        secret=registry.secrets_of(config)[0],
        token=studio_token(settings),
        files_dir=settings.data_dir / "studio",
        bound=bound,
        log_format=settings.log_format,
    )
    return partial(RunningChild, run)


def _card(settings: Settings, bound: socket.socket, webhook_url: str) -> Callable[[], Child]:
    run = partial(
        _emulator("card"),
        api_key=emulator_key(settings),
        webhook_secret=emulator_webhook_secret(settings),
        webhook_url=lambda: webhook_url,
        files_dir=settings.data_dir / "card",
        bound=bound,
    )
    return partial(RunningChild, run)
