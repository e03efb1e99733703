"""The composition root: builds the whole service from the settings. Nothing runs yet."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socket import gethostname

from holdfast.actors.task.dependencies import TaskDependencies
from holdfast.actors.task.new_tasks import NewTasks
from holdfast.actors.unfenced import EventCommands, OperatorRecords, UnmatchedEventStore
from holdfast.actors.workers.heartbeat import Presence
from holdfast.actors.workers.order_checks import OrderChecks
from holdfast.actors.workers.passes import one_pass
from holdfast.actors.workers.poison_writer import PoisonQueue
from holdfast.actors.workers.provider_calls import SubmitKey
from holdfast.actors.workers.report_writer import ReportQueue
from holdfast.cluster.groups import ACCOUNTS, SIGN_INS, TASKS
from holdfast.cluster.members import Members
from holdfast.http.kit.dependencies import Dependencies, Readiness
from holdfast.ledger.links import PublicUrls
from holdfast.ledger.places import place_carried_by, place_of
from holdfast.persistence.claims.processes import this_process
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.journal.writer import BatchWriter
from holdfast.persistence.queries.reports import newest_position, reports_after
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.embedded import EmbeddedPostgres
from holdfast.persistence.server.service_clock import ServiceClock
from holdfast.providers.mail import DevelopmentMailer, Mailer, NoMailer, SmtpMailer
from holdfast.providers.outbound.guarded import GuardedClient
from holdfast.providers.outbound.name_lookups import NameLookups
from holdfast.providers.storage.base import AssetStore
from holdfast.providers.storage.local import LocalStore
from holdfast.settings.settings import PREFIX, Settings, SettingsFault
from holdfast.sockets.listening import Sockets
from holdfast.supervision.control.actor import ControlRef
from holdfast.supervision.dead_letters import DeadLetters
from holdfast.supervision.supervisor import Supervisor
from holdfast.supervision.tree import RunningChild, add_http_server, build_tree
from holdfast.telemetry.metrics import render_process
from holdfast.telemetry.metrics.samples import SampleRing
from holdfast.telemetry.reports.conditions import CARD, DATABASE, Conditions
from holdfast.telemetry.reports.feed import ReportFeed
from holdfast.telemetry.reports.report import ReportsAfter
from holdfast.telemetry.reports.reporter import Reporter
from holdfast.wiring.actors import KeyedGroups
from holdfast.wiring.card import PROVIDER, CardSetup, card_setup
from holdfast.wiring.cluster import cluster_members, dispatcher_of_all, outbox_that_reports, placed
from holdfast.wiring.control import collect_dead_letters, control_child, controls_of_all
from holdfast.wiring.emulators import emulators_of
from holdfast.wiring.http_server import HttpServer
from holdfast.wiring.poison import poison_replays, poison_writer
from holdfast.wiring.provider_checks import JobChecks
from holdfast.wiring.provider_registry import ProviderRegistry
from holdfast.wiring.workers import WorkerRefs, worker_children


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The composed service, not yet running."""

    settings: Settings
    database: Database
    tree: Supervisor
    presence: Presence
    members: Members
    registry: ProviderRegistry
    store: AssetStore
    card: CardSetup | None
    http: HttpServer | None
    reporter: Reporter
    reports: ReportQueue
    samples: SampleRing


def assemble(
    settings: Settings,
    *,
    database_url: str,
    local_url: str,
    embedded: EmbeddedPostgres | None = None,
    sockets: Sockets | None = None,
    has_emulators: bool = True,
    metrics_text: Callable[[], Awaitable[bytes]] = render_process,
    worker: int | None = None,
) -> Assembly:
    """Compose the service. ``local_url`` is where it listens. Raises :class:`CatalogFault`.

    Without ``sockets`` nothing is served over HTTP. ``has_emulators``: whether the emulators run in this process,
    rather than in one for all workers. ``metrics_text`` renders the metrics. ``worker`` is this
    process's slot, if it has a parent.
    """
    public_url = settings.public_url or local_url
    urls = PublicUrls(
        base=public_url, link_key=settings.derived_key("asset links"), link_ttl_s=settings.asset_link_ttl_s
    )
    registry = ProviderRegistry(settings)
    store = asset_store(settings)
    database = Database(database_url, pool_size=settings.pool_size, embedded=embedded)
    presence = Presence(process := this_process(), ServiceClock(process.process_id))
    now = presence.clock.now
    reporter = Reporter(now=now, member_id=process.process_id, host=gethostname(), worker=worker)
    reports = ReportQueue()
    reporter.listen(reports.put)
    conditions = Conditions(reporter)
    database.gate.watch = conditions.watch(DATABASE)
    registry.watch(conditions)
    card = card_setup(settings, conditions.watch(CARD))
    feed = ReportFeed(reporter, ReportTable(database))
    journal = Journal(
        BatchWriter(database.connect_writer, now=now, idempotency_ttl_s=settings.idempotency_ttl_s),
        database.gate,
    )

    members = cluster_members(settings, presence, local_url=local_url)
    refs = WorkerRefs()
    submits: set[SubmitKey] = set()
    samples = SampleRing(Path(settings.data_dir) / f"samples-{worker or 0}.json")
    dispatcher = dispatcher_of_all(refs.dispatcher, members)
    new_tasks = NewTasks()
    dead_letters = DeadLetters(process.process_id, now=now)
    poison = PoisonQueue()
    collect_dead_letters(dead_letters, refs.all(), members)
    control_ref = ControlRef()
    controls = controls_of_all(control_ref, members)
    groups = KeyedGroups(settings, database, journal, reporter, dead_letters, poison)
    local_accounts = groups.accounts(dispatcher=dispatcher, new_tasks=new_tasks, now=now)
    accounts = placed(ACCOUNTS, local_accounts, members, place_of)
    local_sign_ins = groups.sign_ins(conditions, now)
    sign_ins = placed(SIGN_INS, local_sign_ins, members, place_of)
    task_dependencies = TaskDependencies(
        accounts=accounts,
        dispatcher=dispatcher,
        provider_calls=refs.provider_calls,
        hosting=refs.hosting,
        outbox=refs.outbox,
        traits=registry.traits,
        callback_url=partial(registry.callback_url, public_url=public_url, local_url=local_url),
        now=now,
        rng=random.Random(),  # noqa: S311 - spreads retries
        process_id=process.process_id,
        health=registry.health_of,
        is_submitting=lambda request_id, attempt: (request_id, attempt) in submits,
    )
    local_tasks = groups.tasks(task_dependencies, new_tasks)
    tasks = placed(TASKS, local_tasks, members, place_carried_by)
    directories = (local_accounts, local_sign_ins, local_tasks)
    order_checks = OrderChecks(
        database=database,
        accounts=accounts,
        card=None if card is None else card.provider,
        env=settings.env,
        now=now,
    )

    tree = build_tree(
        reporter,
        conditions,
        shutdown_s=settings.shutdown_s,
        control=control_child(
            settings,
            control_ref,
            tree=lambda: tree,
            members=members,
            database=database,
            conditions=conditions,
            directories=directories,
            dead_letters=dead_letters,
            samples=samples,
            provider_states=registry.provider_states,
            worker=worker,
        ),
        database=lambda: RunningChild(database.run),
        journal=lambda: RunningChild(journal.run, journal.stop),
        members=lambda: RunningChild(members.run, members.stop),
        accounts=local_accounts,
        sign_ins=local_sign_ins,
        tasks=local_tasks,
        emulators=emulators_of(settings, registry, local_url=local_url) if has_emulators else {},
        workers=worker_children(
            settings,
            refs,
            database=database,
            journal=journal,
            tasks=tasks,
            registry=registry,
            store=store,
            order_checks=order_checks,
            urls=urls,
            presence=presence,
            submits=submits,
            reporter=reporter,
            reports=reports,
            samples=samples,
            poison_writer=poison_writer(settings, poison, database, reporter),
            directories=directories,
            worker=worker,
            feed=feed,
            conditions=conditions,
            delivery_reports=outbox_that_reports(refs.outbox, members),
        ),
    )
    http = None
    if sockets is not None:
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
            card=card,
            unmatched_events=UnmatchedEventStore(PROVIDER, journal, now),
            reports=feed,
            events=EventCommands(journal, refs.outbox, now),
            operators=OperatorRecords(database),
            order_checks=order_checks,
            report=reporter.report,
            readiness=lambda: Readiness(
                database.gate.is_open and not journal.is_blocked, tree.is_ready, registry.provider_states()
            ),
            controls=controls,
            poison=poison_replays(settings, database, {ACCOUNTS: accounts, TASKS: tasks}, now),
            provider_checks=JobChecks(
                database,
                registry,
                GuardedClient(registry.origins, resolve=NameLookups("downloads").addresses),
                now=now,
                callback_url=partial(registry.check_callback_url, public_url=public_url, local_url=local_url),
            ),
            metrics_text=metrics_text,
            urls=urls,
            now=now,
            conditions=conditions,
        )
        http = HttpServer(sockets, worker or 0, deps, reporter, lambda: tree.is_stopping)
        add_http_server(tree, http.start)
    return Assembly(
        settings=settings,
        database=database,
        tree=tree,
        presence=presence,
        members=members,
        registry=registry,
        store=store,
        card=card,
        http=http,
        reporter=reporter,
        reports=reports,
        samples=samples,
    )


@dataclass(frozen=True, slots=True)
class ReportTable:
    """The table that the feed follows."""

    database: Database

    async def after(self, position: int, limit: int) -> ReportsAfter:
        """Read what was written after a position."""
        with one_pass("reading of reports"):
            return await self.database.read(reports_after, position, limit=limit)

    async def newest_position(self) -> int:
        """Read the position that was written last."""
        return await self.database.read(newest_position)


def asset_store(settings: Settings) -> AssetStore:
    """Return the store for results. Raises :class:`SettingsFault` if the library for buckets is not installed."""
    if settings.s3 is None:
        return LocalStore(settings.data_dir)
    try:
        from holdfast.providers.storage.s3 import S3Store
    except ModuleNotFoundError as fault:
        if fault.name != "obstore":
            raise
        line = f"{PREFIX}ASSET_STORE: s3 needs a library that is not installed: pip install 'holdfast[s3]'"
        raise SettingsFault((line,)) from None
    return S3Store(settings.s3)


def _mailer(settings: Settings) -> Mailer:
    if settings.smtp_url is not None:
        return SmtpMailer(settings.smtp_url, settings.mail_from)
    return NoMailer() if settings.is_production else DevelopmentMailer(Path(settings.data_dir) / "mail")
