"""The catalog in force and the media providers it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import structlog

from holdfast.ledger.catalog import Catalog, CatalogFault, load_catalog
from holdfast.ledger.models import ProviderConfig
from holdfast.ledger.task_moves import ProviderTraits
from holdfast.providers.media.base import MediaProvider
from holdfast.providers.media.cog import CogProvider
from holdfast.settings import Settings

log = structlog.get_logger(__name__)


class Shelf:
    """The catalog in force and the providers it names; replaced whole by :meth:`reload`."""

    def __init__(self, settings: Settings, *, studio_url: str) -> None:
        self._settings = settings
        self._studio_url = studio_url
        self.catalog: Catalog
        self.providers: dict[str, MediaProvider] = {}
        self._stock(load_catalog(settings.catalog))

    def reload(self) -> bool:
        """Read the catalog again; one with faults is told of and left aside. Whether it was taken over.

        Tasks and quotes under way keep their terms: they carry them.
        """
        try:
            catalog = load_catalog(self._settings.catalog)
        except (CatalogFault, OSError) as fault:
            for line in getattr(fault, "lines", (str(fault),)):
                log.error("catalog fault", fault=line)
            return False
        self._stock(catalog)
        log.info("catalog in force", version=catalog.version, models=len(catalog.models))
        return True

    def _stock(self, catalog: Catalog) -> None:
        for line in catalog.warnings:
            log.warning("catalog warning", warning=line)
        built = {name: self._provider(config) for name, config in catalog.providers.items()}
        self.catalog = catalog
        self.providers.clear()
        self.providers.update({name: provider for name, provider in built.items() if provider is not None})

    def _provider(self, config: ProviderConfig) -> MediaProvider | None:
        url = config.url or (self._studio_url if config.kind == "studio" else None)
        if url is None:
            return None
        token = studio_token(self._settings) if config.url is None else None
        return CogProvider(
            config.name, url, self.secrets_of(config), token=token, submit_timeout_s=config.submit_timeout_s
        )

    def secrets_of(self, config: ProviderConfig) -> tuple[str, ...]:
        """What a provider signs with: its own secret, or the one for providers that have none of their own."""
        return (config.secret or self._settings.callback_secret, *config.previous_secrets)

    def callback_secrets(self, provider: str | None) -> Sequence[str]:
        """The secrets a callback may be signed with: its provider's, or any provider's where it names none."""
        if provider is not None:
            config = self.catalog.providers.get(provider)
            return () if config is None else self.secrets_of(config)
        secrets = [s for config in self.catalog.providers.values() for s in self.secrets_of(config)]
        return tuple(dict.fromkeys(secrets))

    def places(self) -> Mapping[str, int]:
        """How many jobs each provider takes at once."""
        return {name: config.concurrency for name, config in self.catalog.providers.items()}

    def traits(self, provider: str) -> ProviderTraits:
        """What a provider can do; of one no longer in the catalog, nothing is expected."""
        found = self.providers.get(provider)
        if found is None:
            return ProviderTraits(idempotent_submit=False, polls=False, cancels=False)
        return ProviderTraits(idempotent_submit=found.idempotent_submit, polls=found.polls, cancels=found.cancels)

    def own_origins(self) -> frozenset[tuple[str, int]]:
        """Addresses of configured providers: the only ones on private networks that outputs may come from."""
        origins = set()
        for config in self.catalog.providers.values():
            url = config.url or (self._studio_url if config.kind == "studio" else None)
            if url is not None:
                origins.add(_origin(url))
        return frozenset(origins)


def studio_token(settings: Settings) -> str:
    """What the in-tree studio wants to see from us, so that nobody else on this machine gives it orders."""
    return settings.derived_key("in-tree studio").hex()


def _origin(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
