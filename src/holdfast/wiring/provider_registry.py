"""The catalog in force and the media providers it names."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Literal
from urllib.parse import urlsplit

import structlog
import trio

from holdfast.ledger.catalog.catalog import Catalog, CatalogFault, load_catalog
from holdfast.ledger.catalog.models import ProviderConfig
from holdfast.ledger.clock import Now, utc_now
from holdfast.ledger.tasks.transitions import ProviderTraits
from holdfast.providers.media.base import MediaProvider
from holdfast.providers.media.callback_address import PURPOSE, hook_address
from holdfast.providers.media.cog import EVENTS, PLAIN_EVENTS, CogProvider
from holdfast.providers.media.health import ProviderHealth, ProviderState
from holdfast.providers.media.replicate import ReplicateProvider
from holdfast.providers.outbound.guarded import Origin
from holdfast.scrubbing import register_secrets
from holdfast.settings import Settings
from holdfast.wiring.provider_secrets import secret_faults

log = structlog.get_logger(__name__)

PAST_CATALOGS_MAX = 16
"""How many earlier catalogs are kept at most, however often the catalog is read again."""


@dataclass(frozen=True, slots=True)
class _Removed:
    """A provider that is not in the catalog: since when on the counter, and what it was where we knew it."""

    at_s: float
    config: ProviderConfig | None = None
    provider: MediaProvider | None = None


class ProviderRegistry:
    """The catalog in force and the providers it names; replaced whole by :meth:`reload`.

    ``providers`` and ``origins`` stay the same objects, so whoever was given them sees what a reload brought.
    ``origins`` are the addresses of configured providers: the only ones on private networks that outputs may come
    from.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        studio_url: str,
        now: Now = utc_now,
        counter: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._studio_url = studio_url
        self._now = now
        self._counter = counter
        self._past: dict[str, tuple[datetime, Catalog]] = {}
        self._reading = trio.CapacityLimiter(1)
        self._removed: dict[str, _Removed] = {}
        self.providers: dict[str, MediaProvider] = {}
        self.origins: set[Origin] = set()
        catalog = self._checked(load_catalog(settings.catalog))
        providers = self._made(catalog, {})
        self.catalog = catalog
        self._stock(providers)

    async def reload(self) -> bool:
        """Read the catalog again; one with faults is told of and left aside. Whether it was taken over.

        Tasks carry their terms; for the quotes that live, the catalog they were made by is kept as long.
        """
        try:
            catalog = await trio.to_thread.run_sync(load_catalog, self._settings.catalog, limiter=self._reading)
            providers = self._made(self._checked(catalog), self.catalog.providers)
        except (CatalogFault, OSError) as fault:
            for line in getattr(fault, "lines", (str(fault),)):
                log.error("catalog fault", fault=line)
            return False
        if self._needs_studio(catalog) and not self._needs_studio(self.catalog):
            log.warning("the in-tree studio starts with the service: restart it to run the models that name it")
        self._keep_past(catalog)
        for name in self.catalog.providers.keys() - catalog.providers.keys():
            self._removed[name] = _Removed(self._counter(), self.catalog.providers[name], self.providers.get(name))
            grace_s = self._settings.provider_removed_grace_s
            log.warning("provider has left the catalog", provider=name, its_tasks_fail_in_s=grace_s)
        self.catalog = catalog
        self._stock(providers)
        log.info("catalog in force", version=catalog.version, models=len(catalog.models))
        return True

    def catalog_of(self, version: str) -> Catalog | None:
        """The catalog that a live quote was made by, if this process still has it."""
        if version == self.catalog.version:
            return self.catalog
        until, catalog = self._past.get(version, (None, None))
        return catalog if until is not None and self._now() < until else None

    def _keep_past(self, catalog: Catalog) -> None:
        now = self._now()
        until = now + timedelta(seconds=self._settings.quote_ttl_s)
        past = {**self._past, self.catalog.version: (until, self.catalog)}
        past.pop(catalog.version, None)
        live = [(version, kept) for version, kept in past.items() if now < kept[0]]
        self._past = dict(live[-PAST_CATALOGS_MAX:])

    def _checked(self, catalog: Catalog) -> Catalog:
        """The catalog, if its secrets will do here. Raises :class:`CatalogFault`."""
        faults = secret_faults(catalog, self._settings)
        if faults:
            raise CatalogFault(faults)
        if self._settings.is_production and self._needs_studio(catalog):
            log.warning("the studio inside the service makes placeholders, and the catalog sells them")
        return catalog

    def _made(self, catalog: Catalog, before: Mapping[str, ProviderConfig]) -> dict[str, MediaProvider]:
        """A catalog's providers; one whose table has not changed stays as it is. Raises :class:`CatalogFault`."""
        register_secrets(secret for config in catalog.providers.values() for secret in _secrets_in(config))
        made: dict[str, MediaProvider] = {}
        for name, config in catalog.providers.items():
            try:
                provider = self.providers.get(name) if before.get(name) == config else self._provider(config)
            except ValueError as fault:
                raise CatalogFault((f"providers: {name}: {fault}",)) from fault
            if provider is not None:
                made[name] = provider
        return made

    def _stock(self, providers: Mapping[str, MediaProvider]) -> None:
        """Take over the providers of the catalog in force."""
        for line in self.catalog.warnings:
            log.warning("catalog warning", warning=line)
        for name in self.catalog.providers:
            if self._removed.pop(name, None) is not None:
                log.info("provider is in the catalog again", provider=name)
        configs = self._configs.values()
        origins = {_origin(url) for config in configs if (url := self._url_of(config)) is not None}
        kept = {name: gone.provider for name, gone in self._removed.items() if gone.provider is not None}
        # In one turn of the loop: no task sees an empty registry in between.
        self.providers.clear()
        self.providers.update(kept | dict(providers))
        self.origins.clear()
        self.origins.update(origins)

    @property
    def _configs(self) -> Mapping[str, ProviderConfig]:
        """The providers of the catalog, and those that have left it and whose grace has not ended."""
        kept = {name: gone.config for name, gone in self._removed.items() if gone.config and not self.removed(name)}
        return kept | dict(self.catalog.providers)

    def config_of(self, provider: str) -> ProviderConfig | None:
        """A provider as the catalog has it, or had it until lately."""
        return self._configs.get(provider)

    def removed(self, provider: str) -> bool:
        """Whether a provider has been out of the catalog for longer than its grace.

        One that this process has never heard of counts as removed now, when somebody first asks.
        """
        if provider in self.catalog.providers:
            return False
        gone = self._removed.setdefault(provider, _Removed(self._counter()))
        return self._counter() - gone.at_s >= self._settings.provider_removed_grace_s

    def origins_of(self, provider: str) -> frozenset[Origin]:
        """Where a provider's own outputs may lie on a private network: where it is itself."""
        config = self.config_of(provider)
        url = None if config is None else self._url_of(config)
        return frozenset() if url is None else frozenset({_origin(url)})

    @staticmethod
    def _needs_studio(catalog: Catalog) -> bool:
        return any(config.kind == "studio" and config.url is None for config in catalog.providers.values())

    def _url_of(self, config: ProviderConfig) -> str | None:
        return config.url or (self._studio_url if config.kind == "studio" else None)

    def _provider(self, config: ProviderConfig) -> MediaProvider | None:
        url = self._url_of(config)
        if url is None:
            return None
        if config.kind == "replicate":
            # Faults of the catalog have said so where there is no token.
            assert config.token is not None
            return ReplicateProvider(
                config.name,
                url,
                config.own_secrets,
                token=config.token,
                address=partial(self._hook_address, config.name),
                submit_timeout_s=config.submit_timeout_s,
            )
        return CogProvider(
            config.name,
            url,
            self.secrets_of(config),
            token=studio_token(self._settings) if config.url is None else config.token,
            polls=config.polls,
            events=PLAIN_EVENTS if config.kind == "cog" else EVENTS,
            submit_timeout_s=config.submit_timeout_s,
        )

    def _hook_address(self, provider: str, url: str, request_id: str, attempt: int) -> str:
        return hook_address(url, self._settings.derived_key(PURPOSE), provider, request_id, attempt)

    def secrets_of(self, config: ProviderConfig) -> tuple[str, ...]:
        """What a provider signs with: its own secret, or the one for providers that have none of their own."""
        return (config.secret or self._settings.callback_secret, *config.previous_secrets)

    def callback_secrets(self, provider: str | None) -> Sequence[str]:
        """The secrets a callback may be signed with: its provider's, or any provider's where it names none."""
        if provider is not None:
            config = self.config_of(provider)
            return () if config is None else self.secrets_of(config)
        secrets = [s for config in self._configs.values() for s in self.secrets_of(config)]
        return tuple(dict.fromkeys(secrets))

    def provider_states(self) -> Mapping[str, ProviderState]:
        """The state of each provider in the catalog; one that could not be created is down."""
        found = self.providers
        return {name: found[name].health.state if name in found else "down" for name in self.catalog.providers}

    def health_of(self, provider: str) -> ProviderHealth:
        """A provider's state; for one that this process does not have, a state that nothing reads."""
        found = self.providers.get(provider)
        return ProviderHealth(provider) if found is None else found.health

    def places(self) -> Mapping[str, int]:
        """How many jobs each provider takes at once."""
        return {name: config.concurrency for name, config in self.catalog.providers.items()}

    def traits(self, provider: str) -> ProviderTraits:
        """What a provider can do; one that has left the catalog can do it until its grace ends."""
        found = self.providers.get(provider)
        listed: Literal["yes", "lately", "no"] = "yes"
        if provider not in self.catalog.providers:
            listed = "no" if self.removed(provider) else "lately"
        if found is None:
            return ProviderTraits(idempotent_submit=False, polls=False, cancels=False, listed=listed)
        return ProviderTraits(
            idempotent_submit=found.idempotent_submit, polls=found.polls, cancels=found.cancels, listed=listed
        )


def _secrets_in(config: ProviderConfig) -> tuple[str, ...]:
    return config.own_secrets if config.token is None else (*config.own_secrets, config.token)


def studio_token(settings: Settings) -> str:
    """What the in-tree studio wants to see from us, so that nobody else on this machine gives it orders."""
    return settings.derived_key("in-tree studio").hex()


def _origin(url: str) -> Origin:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
