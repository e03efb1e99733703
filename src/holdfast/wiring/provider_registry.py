"""The current catalog and the media providers it configures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import structlog
import trio

from holdfast.ledger.catalog.catalog import CatalogFault, load_catalog
from holdfast.ledger.catalog.models import Catalog, ProviderConfig
from holdfast.ledger.tasks.transitions import ProviderTraits
from holdfast.providers.media.base import MediaProvider, ProviderSetup
from holdfast.providers.media.callbacks import PURPOSE, hook_address
from holdfast.providers.media.health import ProviderHealth, ProviderState
from holdfast.providers.media.kinds import PROVIDER_KINDS, kind_rules
from holdfast.providers.media.provider_check import CHECK_ATTEMPT
from holdfast.providers.outbound.guarded import Origin
from holdfast.settings.checks import INSTALL_EMULATORS, has_emulators
from holdfast.settings.secret_strength import Candidate, find_weak
from holdfast.settings.settings import Settings, environment
from holdfast.settings.values import is_open_to_all
from holdfast.sockets.emulator_sockets import EMULATOR_HOST
from holdfast.telemetry.reports.conditions import PROVIDER, Conditions, ignore_outcome
from holdfast.telemetry.scrubbing import register_secrets

log = structlog.get_logger(__name__)

SECRET_CHARS_MIN = 24
"""For a signing secret: the hosted service's is 24 random bytes in base64."""

TOKEN_CHARS_MIN = 16
"""For a token, whose length the provider chooses."""

PAST_CATALOGS_MAX = 16
"""How many earlier catalogs are retained at most."""


@dataclass(frozen=True, slots=True)
class _Removed:
    """A provider that left the catalog: since when on the counter, and its last configuration, if known."""

    at_s: float
    config: ProviderConfig | None = None
    provider: MediaProvider | None = None


class ProviderRegistry:
    """The current catalog and its providers, replaced together by :meth:`reload`.

    ``providers`` and ``origins`` stay the same objects, so that their users see a reload. ``origins`` are the
    addresses of configured providers: the only private addresses from which outputs may be downloaded.
    """

    def __init__(self, settings: Settings, *, counter: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._counter = counter
        self._past: dict[str, tuple[float, Catalog]] = {}
        self._reading = trio.CapacityLimiter(1)
        self._removed: dict[str, _Removed] = {}
        self.providers: dict[str, MediaProvider] = {}
        self.origins: set[Origin] = set()
        self._conditions: Conditions | None = None
        catalog = self._read()
        providers = self._create_providers(catalog, {})
        self.catalog = catalog
        self._install(providers)

    def watch(self, conditions: Conditions) -> None:
        """Report the outages of providers to ``conditions``, from now on."""
        self._conditions = conditions
        for name, provider in self.providers.items():
            is_sold = name in self.catalog.providers
            provider.health.take_outcome = (
                conditions.outcomes_of(PROVIDER, name, provider=name) if is_sold else ignore_outcome
            )

    async def reload(self) -> bool:
        """Reload the catalog and return whether it was accepted; one with faults is logged and ignored.

        Tasks carry their terms. Earlier catalogs are retained while quotes of them are valid.
        """
        try:
            catalog = await trio.to_thread.run_sync(self._read, abandon_on_cancel=True, limiter=self._reading)
            providers = self._create_providers(catalog, self.catalog.providers)
        except (CatalogFault, OSError) as fault:
            for line in getattr(fault, "lines", (str(fault),)):
                log.error("catalog fault", fault=line)
            return False
        if needs_studio(catalog) and not needs_studio(self.catalog):
            log.warning("the built-in studio starts only with the service; restart to use it")
        self._retain(catalog)
        for name in self.catalog.providers.keys() - catalog.providers.keys():
            self._removed[name] = _Removed(self._counter(), self.catalog.providers[name], self.providers.get(name))
            grace_s = self._settings.provider_removed_grace_s
            log.warning("provider has left the catalog", provider=name, its_tasks_fail_in_s=grace_s)
            if self._conditions is not None:
                self._conditions.forget(PROVIDER, name)
        self.catalog = catalog
        self._install(providers)
        log.info("catalog loaded", version=catalog.version, models=len(catalog.models))
        return True

    def catalog_of(self, version: str) -> Catalog | None:
        """Return the catalog of a valid quote, if this process still has it."""
        if version == self.catalog.version:
            return self.catalog
        until, catalog = self._past.get(version, (None, None))
        return catalog if until is not None and self._counter() < until else None

    def _retain(self, catalog: Catalog) -> None:
        now = self._counter()
        until = now + self._settings.quote_ttl_s
        past = {**self._past, self.catalog.version: (until, self.catalog)}
        past.pop(catalog.version, None)
        live = [(version, entry) for version, entry in past.items() if now < entry[0]]
        self._past = dict(live[-PAST_CATALOGS_MAX:])

    def _read(self) -> Catalog:
        """Read the catalog, which can be used here. Blocks. Raises :class:`CatalogFault`."""
        catalog = read_catalog(self._settings.catalog)
        check_studio(catalog)
        check_secrets(catalog, self._settings)
        if self._settings.is_production and needs_studio(catalog):
            log.warning("the catalog sells placeholder outputs of the built-in studio")
        return catalog

    def _create_providers(self, catalog: Catalog, before: Mapping[str, ProviderConfig]) -> dict[str, MediaProvider]:
        """Return a catalog's providers; unchanged ones are reused. Raises :class:`CatalogFault`."""
        register_secrets(secret for config in catalog.providers.values() for secret in config.secret_values)
        created: dict[str, MediaProvider] = {}
        for name, config in catalog.providers.items():
            try:
                provider = self.providers.get(name) if before.get(name) == config else self._provider(config)
            except ValueError as fault:
                raise CatalogFault((f"providers: {name}: {fault}",)) from fault
            if provider is not None:
                created[name] = provider
        return created

    def _install(self, providers: Mapping[str, MediaProvider]) -> None:
        """Replace the providers by those of the current catalog."""
        for line in self.catalog.warnings:
            log.warning("catalog warning", warning=line)
        for name in self.catalog.providers:
            if self._removed.pop(name, None) is not None:
                log.info("provider is in the catalog again", provider=name)
        configs = self._configs.values()
        origins = {_origin(url) for config in configs if (url := self._url_of(config)) is not None}
        in_grace = {name: gone.provider for name, gone in self._removed.items() if gone.provider is not None}
        # Without a checkpoint in between: no task sees an empty registry.
        self.providers.clear()
        self.providers.update(in_grace | dict(providers))
        if self._conditions is not None:
            self.watch(self._conditions)
        self.origins.clear()
        self.origins.update(origins)

    @property
    def _configs(self) -> Mapping[str, ProviderConfig]:
        """The providers of the catalog, and removed ones within their grace period."""
        in_grace = {
            name: gone.config for name, gone in self._removed.items() if gone.config and not self._is_over(gone)
        }
        return in_grace | dict(self.catalog.providers)

    def config_of(self, provider: str) -> ProviderConfig | None:
        """Return a provider's configuration, also within its grace period after removal."""
        # Nearly all are in the catalog, and are found without building a mapping.
        return self.catalog.providers.get(provider) or self._configs.get(provider)

    def track_grace(self, provider: str) -> bool:
        """Begin the grace period of a provider that is not in the catalog, unless begun; return whether it is over.

        That of one which left the catalog here has begun. Another process may have a catalog with this provider.
        """
        if provider in self.catalog.providers:
            return False
        return self._is_over(self._removed.setdefault(provider, _Removed(self._counter())))

    def _is_over(self, gone: _Removed) -> bool:
        return self._counter() - gone.at_s >= self._settings.provider_removed_grace_s

    def origins_of(self, provider: str) -> frozenset[Origin]:
        """Return the private addresses a provider's outputs may come from: its own."""
        config = self.config_of(provider)
        url = None if config is None else self._url_of(config)
        return frozenset() if url is None else frozenset({_origin(url)})

    def _url_of(self, config: ProviderConfig) -> str | None:
        return f"http://{EMULATOR_HOST}:{self._settings.studio_port}" if config.is_built_in else config.url

    def _provider(self, config: ProviderConfig) -> MediaProvider | None:
        url = self._url_of(config)
        if url is None:
            return None
        setup = ProviderSetup(
            config=config,
            url=url,
            token=studio_token(self._settings) if config.is_built_in else config.token,
            secrets=self.secrets_of(config),
            seal_callback_url=partial(self._hook_address, config.name),
        )
        return PROVIDER_KINDS[config.kind].create(setup)

    def _hook_address(self, provider: str, url: str, request_id: str, attempt: int) -> str:
        return hook_address(url, self._settings.derived_key(PURPOSE), provider, request_id, attempt)

    def secrets_of(self, config: ProviderConfig) -> tuple[str, ...]:
        """Return a provider's signing secrets: its own, or the shared one."""
        return (config.secret or self._settings.callback_secret, *config.previous_secrets)

    def callback_secrets(self, provider: str | None) -> Sequence[str]:
        """Return the accepted secrets of a callback: its provider's, or all if it names no provider."""
        if provider is not None:
            config = self.config_of(provider)
            return () if config is None else self.secrets_of(config)
        secrets = [s for config in self._configs.values() for s in self.secrets_of(config)]
        return tuple(dict.fromkeys(secrets))

    def provider_states(self) -> Mapping[str, ProviderState]:
        """Return the state of each provider in the catalog; one that could not be created is down."""
        found = self.providers
        return {name: found[name].health.state if name in found else "down" for name in self.catalog.providers}

    def health_of(self, provider: str) -> ProviderHealth:
        """Return a provider's health record; for an unknown provider, one that nothing reads."""
        found = self.providers.get(provider)
        return ProviderHealth(provider) if found is None else found.health

    def callback_url(self, provider: str, *, public_url: str, local_url: str) -> str:
        """Return the URL for a provider's callbacks: local for the built-in studio, else public.

        Providers with a webhook format of their own get a path of their own.
        """
        config = self.config_of(provider)
        url = self.own_url(provider, public_url=public_url, local_url=local_url) + "/v2/callback"
        return url if config is None or config.kind == "studio" else f"{url}/{provider}"

    def own_url(self, provider: str, *, public_url: str, local_url: str) -> str:
        """Return where a provider reaches this service."""
        config = self.config_of(provider)
        return local_url if config is not None and config.is_built_in else public_url

    def check_callback_url(self, provider: str, check_id: str, *, public_url: str, local_url: str) -> str:
        """Return the sealed URL for callbacks about a check's job, also where the provider's own are not sealed."""
        url = self.callback_url(provider, public_url=public_url, local_url=local_url)
        config = self.config_of(provider)
        seals_itself = config is not None and PROVIDER_KINDS[config.kind].rules.webhooks == "standard"
        return url if seals_itself else self._hook_address(provider, url, check_id, CHECK_ATTEMPT)

    def url_of(self, provider: str) -> str | None:
        """Return a provider's base address."""
        config = self.config_of(provider)
        return None if config is None else self._url_of(config)

    def slots(self) -> Mapping[str, int]:
        """Return how many jobs each provider runs at once."""
        return {name: config.concurrency for name, config in self.catalog.providers.items()}

    def traits(self, provider: str) -> ProviderTraits:
        """Return a provider's capabilities; they last until the end of its grace period."""
        found = self.providers.get(provider)
        listed: Literal["yes", "recently", "no"] = "yes"
        if provider not in self.catalog.providers:
            listed = "no" if self.track_grace(provider) else "recently"
        if found is None:
            return ProviderTraits(idempotent_submit=False, polls=False, cancels=False, listed=listed)
        return ProviderTraits(
            idempotent_submit=found.idempotent_submit, polls=found.polls, cancels=found.cancels, listed=listed
        )


def read_catalog(path: Path | None) -> Catalog:
    """Read a catalog, with secrets from variables of this process, and warn of files that everybody may read.

    Raises :class:`CatalogFault`, and OSError.
    """
    catalog = load_catalog(path, kind_rules(), environment())
    open_files = [
        f"{file} has secrets, and every user of this machine can read or write it"
        for file in catalog.secret_files
        if is_open_to_all(file)
    ]
    return replace(catalog, warnings=(*open_files, *catalog.warnings))


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
    weak = find_weak(candidate for config in catalog.providers.values() for _, candidate in _candidates(config))
    for config in catalog.providers.values():
        where = f"provider {config.name}"
        if config.secret is None and PROVIDER_KINDS[config.kind].rules.webhooks == "token" and not config.polls:
            yield f"{where}: secret is missing: without one its webhooks are refused, and polling is off"
        used = _candidates(config)
        yield from dict.fromkeys(f"{where}: {name} {weak[each]}" for name, each in used if each in weak)


def _candidates(config: ProviderConfig) -> list[tuple[str, Candidate]]:
    """Return a provider's own secrets with what each one is."""
    secrets = [("secret", (secret, SECRET_CHARS_MIN)) for secret in config.own_secrets]
    return secrets if config.token is None else [*secrets, ("token", (config.token, TOKEN_CHARS_MIN))]


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


def studio_token(settings: Settings) -> str:
    """Return the token that the built-in studio requires, so that no other program submits jobs to it."""
    return settings.derived_key("in-tree studio").hex()


@lru_cache(maxsize=256)
def _origin(url: str) -> Origin:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
