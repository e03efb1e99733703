"""The emulators that these settings and this catalog need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from holdfast.emulators.studio.process import run_studio_process
from holdfast.settings.settings import Settings
from holdfast.sockets.emulator_ports import EMULATOR_HOST
from holdfast.supervision.spec import Child
from holdfast.supervision.tree import RunningChild
from holdfast.wiring.card import CardSetup
from holdfast.wiring.provider_registry import ProviderRegistry, studio_token


def emulators_of(
    settings: Settings, registry: ProviderRegistry, studio_port: int, card: CardSetup | None
) -> Mapping[str, Callable[[], Child]]:
    """Return how the emulators are started: the studio, if the catalog gives it no URL, and the card emulator."""
    children: dict[str, Callable[[], Child]] = {}
    found = [c for c in registry.catalog.providers.values() if c.kind == "studio" and c.url is None]
    if found:
        run = partial(
            run_studio_process,
            secret=registry.secrets_of(found[0])[0],
            token=studio_token(settings),
            files_dir=settings.data_dir / "studio",
            host=EMULATOR_HOST,
            port=studio_port,
            log_format=settings.log_format,
        )
        children["studio"] = partial(RunningChild, run)
    if card is not None and card.emulator is not None:
        children["card"] = card.emulator
    return children
