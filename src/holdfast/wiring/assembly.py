"""How the parts are put together: settings in, a tree and an HTTP application out. Nothing runs yet."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from prometheus_client import generate_latest

from holdfast.actors.task.actor import TaskDependencies
from holdfast.actors.unfenced.event_commands import EventCommands
from holdfast.actors.unfenced.unmatched_events import UnmatchedEventStore
from holdfast.actors.workers.heartbeat import Presence
from holdfast.actors.workers.provider_calls import SubmitKey
from holdfast.http.kit.dependencies import CardPayments, Dependencies, Readiness
from holdfast.ledger.links import PublicUrls
from holdfast.persistence.claims.processes import this_process
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.journal.write_path import WritePath
from holdfast.persistence.journal.writer import BatchWriter
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.embedded import EmbeddedPostgres
from holdfast.persistence.server.service_clock import ServiceClock
from holdfast.providers.mail import DevelopmentMailer, Mailer, NoMailer, SmtpMailer
from holdfast.providers.storage import AssetStore, LocalStore
from holdfast.settings import PREFIX, Settings, SettingsFault
from holdfast.standins.studio.process import run_studio_process
from holdfast.supervision.directory import KeyedDirectory
from holdfast.supervision.keyed_slots import KeyedLimits
from holdfast.supervision.reports import DeadLetters, Reporter
from holdfast.supervision.spec import Child
from holdfast.supervision.supervisor import Supervisor
from holdfast.supervision.tree import RunningChild, TreeParts, build_tree
from holdfast.wiring.actor_factories import account_factory, sign_in_factory, task_factory
from holdfast.wiring.card import PROVIDER, CardSetup, card_setup, noted_port
from holdfast.wiring.http_factory import ListeningSockets, http_factory
from holdfast.wiring.provider_registry import ProviderRegistry, studio_token
from holdfast.wiring.worker_factories import worker_addresses, worker_factories

STUDIO_HOST = "127.0.0.1"


@dataclass(kw_only=True)
class Assembly:
    """Everything put together and not yet running."""

    settings: Settings
    database: Database
    tree: Supervisor
    deps: Dependencies
    registry: ProviderRegistry
    store: AssetStore
    reporter: Reporter
    dead_letters: DeadLetters
    card: CardSetup | None
    directories: dict[str, KeyedDirectory] = field(default_factory=dict)


def assemble(
    settings: Settings,
    *,
    database_url: str,
    local_url: str,
    embedded: EmbeddedPostgres | None = None,
    sockets: ListeningSockets | None = None,
) -> Assembly:
    """Put the service together. ``local_url`` is where it listens. Raises :class:`CatalogFault`.

    Without ``sockets`` nothing is served over HTTP.
    """
    studio_port = _studio_port(settings)
    studio_url = f"http://{STUDIO_HOST}:{studio_port}"
    public_url = settings.public_url or local_url
    urls = PublicUrls(
        base=public_url, link_key=settings.derived_key("asset links"), link_ttl_s=settings.asset_link_ttl_s
    )
    registry = ProviderRegistry(settings, studio_url=studio_url)
    database = Database(database_url, pool_size=settings.pool_size, embedded=embedded)
    presence = Presence(process := this_process(), ServiceClock(process.process_id))
    now = presence.clock.now
    submits: set[SubmitKey] = set()
    journal = Journal(
        BatchWriter(database.connect_writer, now=now, idempotency_ttl_s=settings.idempotency_ttl_s),
        database.gate,
    )
    reporter, dead_letters = Reporter(), DeadLetters()
    store = asset_store(settings)
    posts = worker_addresses()
    limits = KeyedLimits(
        mailbox_max=settings.mailbox_max, idle_s=settings.idle_passivate_s, awake_max=settings.awake_max
    )

    async def probe() -> bool:
        await database.open()
        return True

    keyed = partial(
        KeyedDirectory,
        gate=WritePath(database.gate, journal),
        probe=probe,
        reporter=reporter,
        dead_letters=dead_letters,
        limits=limits,
    )
    accounts = keyed("accounts", account_factory(settings, database, journal, posts["dispatcher"], now=now))
    sign_ins = keyed("sign-in", sign_in_factory(settings, database, journal))
    world = TaskDependencies(
        accounts=accounts,
        dispatcher=posts["dispatcher"],
        desk=posts["desk"],
        hosting=posts["hosting"],
        outbox=posts["outbox"],
        traits=registry.traits,
        callback_url=lambda provider: _callback_url(registry, provider, public_url, local_url),
        now=now,
        rng=random.Random(),  # noqa: S311 - spreads waiting times
        process_id=process.process_id,
        health=registry.health_of,
        is_submitting=lambda request_id, attempt: (request_id, attempt) in submits,
    )
    tasks = keyed("tasks", task_factory(database, journal, world))
    card = card_setup(settings, local_url=local_url)
    house = TreeParts(
        database=lambda: RunningChild(database.run),
        journal=lambda: RunningChild(journal.run, journal.stop),
        accounts=accounts,
        sign_ins=sign_ins,
        tasks=tasks,
        workers=worker_factories(
            settings,
            posts=posts,
            database=database,
            journal=journal,
            accounts=accounts,
            tasks=tasks,
            registry=registry,
            store=store,
            card=card,
            urls=urls,
            presence=presence,
            submits=submits,
        ),
        emulators=_emulators(settings, registry, studio_port, card),
        http=None
        if sockets is None
        else http_factory(
            sockets,
            settings,
            lambda: deps,
            reporter,
            is_final=lambda: tree.is_stopping,
        ),
    )
    tree = build_tree(house, reporter, shutdown_s=settings.shutdown_s)
    deps = Dependencies(
        settings=settings,
        database=database,
        accounts=accounts,
        sign_ins=sign_ins,
        tasks=tasks,
        catalog=lambda: registry.catalog,
        catalog_of=registry.catalog_of,
        asset_store=store,
        mailer=_mailer(settings),
        callback_secrets=registry.callback_secrets,
        sandbox_secrets=(settings.sandbox_secret,),
        card=None if card is None else _card_desk(card, UnmatchedEventStore(PROVIDER, journal, now)),
        events=EventCommands(journal, posts["outbox"], now),
        health=Vitals(database, tree, registry),
        metrics_text=generate_latest,
        urls=urls,
    )
    return Assembly(
        settings=settings,
        database=database,
        tree=tree,
        deps=deps,
        registry=registry,
        store=store,
        reporter=reporter,
        dead_letters=dead_letters,
        card=card,
        directories={"accounts": accounts, "sign-in": sign_ins, "tasks": tasks},
    )


@dataclass(frozen=True, slots=True)
class Vitals:
    """What ``/readyz`` looks at."""

    database: Database
    tree: Supervisor
    registry: ProviderRegistry

    async def readiness(self) -> Readiness:
        """The parts as they are now."""
        states = self.registry.provider_states()
        return Readiness(database=self.database.gate.is_open, tree=self.tree.is_ready, providers=states)


# ---------------------------------------------------------------------------------------------------- the outside


def asset_store(settings: Settings) -> AssetStore:
    """Where results are kept. Raises :class:`SettingsFault` where the library for buckets is not installed."""
    if settings.s3 is None:
        return LocalStore(settings.data_dir)
    try:
        from holdfast.providers.storage.s3 import S3Store
    except ModuleNotFoundError as fault:
        if fault.name != "obstore":
            raise
        line = f"{PREFIX}ASSET_STORE: s3 needs a library that is not installed: pip install 'holdfast[s3]'"
        raise SettingsFault((line,)) from None
    return S3Store(settings.s3, incoming_dir=settings.data_dir / "incoming")


def _studio_port(settings: Settings) -> int:
    """Where the in-tree studio will listen."""
    return noted_port(settings.data_dir / "studio.port", wanted=settings.studio_port)


def _emulators(
    settings: Settings, registry: ProviderRegistry, studio_port: int, card: CardSetup | None
) -> tuple[tuple[str, Callable[[], Child]], ...]:
    """The stand-ins we run ourselves: the studio, if the catalog gives it no address, and the card provider."""
    made: list[tuple[str, Callable[[], Child]]] = []
    found = [c for c in registry.catalog.providers.values() if c.kind == "studio" and c.url is None]
    if found:
        run = partial(
            run_studio_process,
            secret=registry.secrets_of(found[0])[0],
            token=studio_token(settings),
            files_dir=settings.data_dir / "studio",
            host=STUDIO_HOST,
            port=studio_port,
            log_format=settings.log_format,
            gallery=not settings.is_production,
        )
        made.append(("studio", partial(RunningChild, run)))
    if card is not None and card.emulator is not None:
        made.append(("card", card.emulator))
    return tuple(made)


def _card_desk(card: CardSetup, inbox: UnmatchedEventStore) -> CardPayments:
    return CardPayments(
        provider=card.provider,
        webhook_secrets=card.webhook_secrets,
        publishable_key=card.publishable_key,
        livemode=card.livemode,
        unmatched=inbox,
    )


def _mailer(settings: Settings) -> Mailer:
    if settings.smtp_url is not None:
        return SmtpMailer(settings.smtp_url, settings.mail_from)
    return NoMailer() if settings.is_production else DevelopmentMailer(Path(settings.data_dir) / "mail")


def _callback_url(registry: ProviderRegistry, provider: str, public_url: str, local_url: str) -> str:
    """Where a provider calls back: the in-tree studio on loopback, everybody else where the world finds us."""
    config = registry.config_of(provider)
    is_in_tree = config is not None and config.kind == "studio" and config.url is None
    url = f"{local_url if is_in_tree else public_url}/v2/callback"
    # Whoever speaks in words of its own does so at an address of its own.
    return url if config is None or config.kind == "studio" else f"{url}/{provider}"
