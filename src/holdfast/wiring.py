"""How the parts are put together: settings in, a tree and a front end out. Nothing runs yet."""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import structlog
from prometheus_client import generate_latest

from holdfast.actors.account import AccountActor, AccountLimits
from holdfast.actors.mailbox import Mailbox
from holdfast.actors.messages import TaskCreated
from holdfast.actors.sign_in import SignInActor, SignInRules
from holdfast.actors.task import TaskActor, TaskWorld
from holdfast.actors.turns import Tell, Teller
from holdfast.actors.workers.desk import ProviderDesk
from holdfast.actors.workers.dispatcher import Dispatcher
from holdfast.actors.workers.hosting import HostingWorker
from holdfast.actors.workers.sweeper import Sweeper
from holdfast.actors.workers.worker import WorkerPost
from holdfast.http.front import Front, Readiness
from holdfast.ledger.catalog import Catalog, CatalogFault, load_catalog
from holdfast.ledger.clock import utc_now
from holdfast.ledger.models import ProviderConfig
from holdfast.ledger.task_moves import ProviderTraits
from holdfast.ledger.tasks import Task
from holdfast.persistence.database import Database
from holdfast.persistence.embedded import EmbeddedPostgres
from holdfast.persistence.journal import Journal
from holdfast.persistence.loading import load_account, load_event_ids, load_sign_in, load_task
from holdfast.persistence.order_loading import OrderReads
from holdfast.persistence.writer import BatchWriter
from holdfast.providers.assets import LocalStore
from holdfast.providers.guarded import GuardedClient
from holdfast.providers.mail import DevelopmentMailer, Mailer, SmtpMailer
from holdfast.providers.media.base import MediaProvider
from holdfast.providers.media.cog import CogProvider
from holdfast.providers.studio.process import run_studio_process
from holdfast.settings import Settings
from holdfast.supervision.directory import KeyedDirectory
from holdfast.supervision.keyed_slots import KeyedLimits
from holdfast.supervision.reports import DeadLetters, Reporter
from holdfast.supervision.supervisor import Supervisor
from holdfast.supervision.tree import House, RunningChild, build_tree

log = structlog.get_logger(__name__)

STUDIO_HOST = "127.0.0.1"


class Shelf:
    """The catalog in force and the providers it names; replaced whole by :meth:`reload`."""

    def __init__(self, settings: Settings, *, studio_url: str | None) -> None:
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


@dataclass(kw_only=True)
class Assembly:
    """Everything put together and not yet running."""

    settings: Settings
    database: Database
    tree: Supervisor
    front: Front
    shelf: Shelf
    store: LocalStore
    reporter: Reporter
    dead_letters: DeadLetters
    directories: dict[str, KeyedDirectory] = field(default_factory=dict)


def assemble(
    settings: Settings,
    *,
    database_url: str,
    local_url: str,
    embedded: EmbeddedPostgres | None = None,
) -> Assembly:
    """Put the service together. ``local_url`` is where it listens. Raises :class:`CatalogFault`."""
    studio_port = _studio_port(settings)
    studio_url = None if studio_port is None else f"http://{STUDIO_HOST}:{studio_port}"
    public_url = settings.public_url or local_url
    shelf = Shelf(settings, studio_url=studio_url)
    database = Database(database_url, pool_size=settings.pool_size, embedded=embedded)
    journal = Journal(
        BatchWriter(database.connect_writer, now=utc_now, idempotency_ttl_s=settings.idempotency_ttl_s),
        database.gate,
    )
    reporter, dead_letters = Reporter(), DeadLetters()
    store = LocalStore(settings.data_dir)
    posts = {name: WorkerPost(name) for name in ("dispatcher", "desk", "hosting", "sweeper")}
    limits = KeyedLimits(
        mailbox_max=settings.mailbox_max, idle_s=settings.idle_passivate_s, awake_max=settings.awake_max
    )

    async def probe() -> bool:
        await database.open()
        return True

    keyed = partial(
        KeyedDirectory,
        gate=database.gate,
        probe=probe,
        reporter=reporter,
        dead_letters=dead_letters,
        limits=limits,
    )
    accounts = keyed("accounts", account_factory(settings, database, journal, posts["dispatcher"]))
    sign_ins = keyed("sign-in", sign_in_factory(settings, database, journal))
    world = TaskWorld(
        accounts=accounts,
        dispatcher=posts["dispatcher"],
        desk=posts["desk"],
        hosting=posts["hosting"],
        traits=shelf.traits,
        callback_url=lambda provider: _callback_url(shelf, provider, public_url, local_url),
        now=utc_now,
        rng=random.Random(),  # noqa: S311 - spreads waiting times
    )
    tasks = keyed("tasks", task_factory(database, journal, world))
    downloads = GuardedClient(shelf.own_origins())
    house = House(
        database=lambda: RunningChild(database.run),
        journal=lambda: RunningChild(journal.run, journal.stop),
        accounts=accounts,
        sign_ins=sign_ins,
        tasks=tasks,
        workers=(
            (
                "dispatcher",
                lambda: Dispatcher(posts["dispatcher"], database=database, tasks=tasks, places=shelf.places),
            ),
            ("desk", lambda: ProviderDesk(posts["desk"], providers=shelf.providers, tasks=tasks)),
            (
                "hosting",
                lambda: HostingWorker(
                    posts["hosting"],
                    downloads=downloads,
                    store=store,
                    incoming_dir=settings.data_dir / "incoming",
                    tasks=tasks,
                    now=utc_now,
                ),
            ),
            (
                "sweeper",
                lambda: Sweeper(posts["sweeper"], database=database, idempotency_ttl_s=settings.idempotency_ttl_s),
            ),
        ),
        emulators=_emulators(settings, shelf, studio_port),
    )
    tree = build_tree(house, reporter, shutdown_s=settings.shutdown_s)
    front = Front(
        settings=settings,
        database=database,
        accounts=accounts,
        sign_ins=sign_ins,
        tasks=tasks,
        catalog=lambda: shelf.catalog,
        asset_store=store,
        mailer=_mailer(settings),
        callback_secrets=shelf.callback_secrets,
        sandbox_secrets=(settings.sandbox_secret,),
        card=None,
        health=Vitals(database, tree, shelf),
        metrics_text=generate_latest,
        public_url=lambda: public_url,
    )
    return Assembly(
        settings=settings,
        database=database,
        tree=tree,
        front=front,
        shelf=shelf,
        store=store,
        reporter=reporter,
        dead_letters=dead_letters,
        directories={"accounts": accounts, "sign-in": sign_ins, "tasks": tasks},
    )


@dataclass(frozen=True, slots=True)
class Vitals:
    """What ``/readyz`` looks at."""

    database: Database
    tree: Supervisor
    shelf: Shelf

    async def readiness(self) -> Readiness:
        """The parts as they are now."""
        providers = {name: name in self.shelf.providers for name in self.shelf.catalog.providers}
        return Readiness(database=self.database.gate.is_open, tree=self.tree.is_ready, providers=providers)


# ------------------------------------------------------------------------------------------------ actors by key


def account_factory(settings: Settings, database: Database, journal: Journal, dispatcher: Teller) -> Any:
    """Makes the account actors of one process."""
    limits = AccountLimits(tasks_in_flight_max=settings.tasks_in_flight_max)
    orders = OrderReads(database)

    async def load(account_id: str) -> Any:
        return await database.read(lambda connection: load_account(connection, account_id))

    def announce(task: Task) -> Tell:
        return Tell(dispatcher, task.request_id, TaskCreated(task.provider, task.request_id))

    def factory(account_id: str, mailbox: Mailbox) -> AccountActor:
        return AccountActor(
            account_id,
            mailbox,
            journal,
            load=load,
            orders=orders,
            announce=announce,
            now=utc_now,
            limits=limits,
        )

    return factory


def sign_in_factory(settings: Settings, database: Database, journal: Journal) -> Any:
    """Makes the sign-in actors of one process."""
    rules = SignInRules(
        pepper=settings.derived_key("one-time codes"),
        otp_ttl_s=settings.otp_ttl_s,
        otp_attempts=settings.otp_attempts,
        otp_failures_day=settings.otp_failures_day,
        otp_resend_s=settings.otp_resend_s,
        otp_per_email_hour=settings.otp_per_email_hour,
        otp_per_origin_hour=settings.otp_per_origin_hour,
        session_ttl_s=settings.session_ttl_s,
        brand_id=settings.brand_id,
        operators=frozenset(settings.operators),
    )

    async def load(key: str) -> Any:
        return await database.read(lambda connection: load_sign_in(connection, key))

    def factory(key: str, mailbox: Mailbox) -> SignInActor:
        return SignInActor(key, mailbox, journal, load=load, now=utc_now, rules=rules)

    return factory


def task_factory(database: Database, journal: Journal, world: TaskWorld) -> Any:
    """Makes the task actors of one process."""

    async def load(request_id: str) -> Any:
        def query(connection: Any) -> Any:
            task = load_task(connection, request_id)
            return task, load_event_ids(connection, request_id, task.account_id)

        return await database.read(query)

    def factory(request_id: str, mailbox: Mailbox) -> TaskActor:
        return TaskActor(request_id, mailbox, journal, load=load, world=world)

    return factory


# ---------------------------------------------------------------------------------------------------- the outside


def studio_token(settings: Settings) -> str:
    """What the in-tree studio wants to see from us, so that nobody else on this machine gives it orders."""
    return settings.derived_key("in-tree studio").hex()


def _studio_port(settings: Settings) -> int | None:
    """Where the in-tree studio will listen: as told, as last time, or at a port found free. None in production.

    As last time, because tasks that a fallen service left behind know their results by that address.
    """
    if settings.is_production:
        return None
    if settings.studio_port:
        return settings.studio_port
    note = settings.data_dir / "studio.port"
    last = note.read_text().strip() if note.is_file() else ""
    port = _free_port(int(last) if last.isdigit() else 0) or _free_port(0)
    note.write_text(f"{port}\n")
    return port


def _free_port(wanted: int) -> int | None:
    """The wanted port if it can be had now (0: any), else None."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((STUDIO_HOST, wanted))
        except (OSError, OverflowError):
            return None
        port: int = probe.getsockname()[1]
        return port


def _emulators(settings: Settings, shelf: Shelf, studio_port: int | None) -> tuple[Any, ...]:
    """The stand-ins that development runs itself: a studio for each catalog entry that names no other server."""
    found = [c for c in shelf.catalog.providers.values() if c.kind == "studio" and c.url is None]
    if studio_port is None or not found:
        return ()
    secret = shelf.secrets_of(found[0])[0]

    run = partial(
        run_studio_process,
        secret=secret,
        token=studio_token(settings),
        files_dir=settings.data_dir / "studio",
        host=STUDIO_HOST,
        port=studio_port,
        log_format=settings.log_format,
    )
    return (("studio", lambda: RunningChild(run)),)


def _mailer(settings: Settings) -> Mailer:
    if settings.smtp_url is not None:
        return SmtpMailer(settings.smtp_url, settings.mail_from)
    return DevelopmentMailer(Path(settings.data_dir) / "mail")


def _callback_url(shelf: Shelf, provider: str, public_url: str, local_url: str) -> str:
    """Where a provider calls back: the in-tree studio on loopback, everybody else where the world finds us."""
    config = shelf.catalog.providers.get(provider)
    is_in_tree = config is not None and config.kind == "studio" and config.url is None
    return f"{local_url if is_in_tree else public_url}/v2/callback"


def _origin(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
