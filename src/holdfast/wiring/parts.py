"""What the parts of one process share: its database, its journal, its membership, its providers, its reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from socket import gethostname

from holdfast.actors.runtime.mailbox import Mailbox
from holdfast.actors.runtime.refs import WorkerRef
from holdfast.actors.workers.dispatcher import NewTaskSlots
from holdfast.actors.workers.heartbeat import Presence
from holdfast.actors.workers.newest_queue import NewestQueue
from holdfast.actors.workers.passes import one_pass
from holdfast.actors.workers.poison_writer import MESSAGES_MAX, PoisonedMessage
from holdfast.actors.workers.provider_calls import SubmitKey
from holdfast.actors.workers.report_writer import REPORTS_MAX
from holdfast.cluster.members import Members
from holdfast.http.kit.operators import SeenSessions
from holdfast.ledger.cells import Cells
from holdfast.ledger.links import PublicUrls
from holdfast.ledger.values import Now
from holdfast.persistence.claims.contents import ContentClaims
from holdfast.persistence.claims.processes import this_process
from holdfast.persistence.journal.changes import Changes
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.journal.writer import BatchWriter
from holdfast.persistence.operators.overrides import Overrides, find_overrides
from holdfast.persistence.queries.reports import newest_position, reports_after
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.embedded import EmbeddedPostgres
from holdfast.persistence.server.service_clock import ServiceClock
from holdfast.providers.mail.base import Mailer, NoMailer
from holdfast.providers.storage.base import AssetStore
from holdfast.providers.storage.local import LocalStore
from holdfast.settings.checks import install_extra
from holdfast.settings.settings import PREFIX, Settings, SettingsFault
from holdfast.supervision.dead_letters import DeadLetters
from holdfast.telemetry.metrics.samples import SampleRing
from holdfast.telemetry.refused_requests import RefusedRequests
from holdfast.telemetry.reports.conditions import CARD, DATABASE, Conditions
from holdfast.telemetry.reports.feed import ReportFeed
from holdfast.telemetry.reports.report import Report, ReportsAfter
from holdfast.telemetry.reports.reporter import Reporter
from holdfast.wiring.card import CardSetup, card_setup
from holdfast.wiring.cluster import cluster_members
from holdfast.wiring.provider_registry import ProviderRegistry


@dataclass(frozen=True, slots=True)
class WorkerRefs:
    """The addresses of the workers that receive messages; they stay valid when a worker restarts."""

    dispatcher: WorkerRef = field(default_factory=lambda: WorkerRef("dispatcher"))
    provider_calls: WorkerRef = field(default_factory=lambda: WorkerRef("provider-calls"))
    hosting: WorkerRef = field(default_factory=lambda: WorkerRef("hosting"))
    outbox: WorkerRef = field(default_factory=lambda: WorkerRef("outbox"))

    def all(self) -> tuple[WorkerRef, ...]:
        """Return all of them."""
        return self.dispatcher, self.provider_calls, self.hosting, self.outbox

    def mailboxes(self) -> list[Mailbox]:
        """Return the workers' mailboxes."""
        return [ref.actor_inbox for ref in self.all()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the parts of one process share, none of it running.

    ``local_url`` is where the process listens, ``worker`` its slot if it has a parent. ``submits`` are the jobs
    that are being submitted, or were and whose tasks do not know it yet.
    """

    settings: Settings
    local_url: str
    worker: int | None
    presence: Presence
    registry: ProviderRegistry
    store: AssetStore
    claims: ContentClaims
    card: CardSetup | None
    mailer: Mailer
    database: Database
    overrides: Overrides
    changes: Changes
    journal: Journal
    members: Members
    cells: Cells | None
    reporter: Reporter
    reports: NewestQueue[Report]
    conditions: Conditions
    feed: ReportFeed
    samples: SampleRing
    dead_letters: DeadLetters
    refused: RefusedRequests
    poison: NewestQueue[PoisonedMessage]
    seen_sessions: SeenSessions = field(default_factory=SeenSessions)
    refs: WorkerRefs = field(default_factory=WorkerRefs)
    submits: set[SubmitKey] = field(default_factory=set)
    new_task_slots: NewTaskSlots = field(default_factory=NewTaskSlots)

    @property
    def now(self) -> Now:
        """Service time."""
        return self.presence.clock.now

    @property
    def public_url(self) -> str:
        """The address of the service for customers and providers."""
        return self.settings.public_url or self.local_url

    @property
    def urls(self) -> PublicUrls:
        """The links in what customers receive."""
        settings = self.settings
        return PublicUrls(
            base=self.public_url,
            link_keys=settings.derived_keys("asset links"),
            link_ttl_s=settings.asset_link_ttl_s,
        )


def parts_of(
    settings: Settings, *, database_url: str, local_url: str, embedded: EmbeddedPostgres | None, worker: int | None
) -> Parts:
    """Create what the parts of a process share. Raises :class:`CatalogFault` and :class:`SettingsFault`."""
    registry = ProviderRegistry(settings)
    store = asset_store(settings)
    database = Database(database_url, pool_size=settings.pool_size, embedded=embedded)
    process = this_process()
    presence = Presence(process, ServiceClock(process.member_id, off_max_s=settings.clock_off_max_s))
    now = presence.clock.now
    reporter = Reporter(now=now, member_id=process.member_id, host=gethostname(), worker=worker)
    reports = NewestQueue[Report](REPORTS_MAX)
    reporter.listen(reports.put)
    conditions = Conditions(reporter)
    database.gate.take_outcome = conditions.outcomes_of(DATABASE)
    registry.watch(conditions)
    changes = Changes()
    writer = BatchWriter(database.keep_writer(), now=now, idempotency_ttl_s=settings.idempotency_ttl_s)
    return Parts(
        settings=settings,
        local_url=local_url,
        worker=worker,
        presence=presence,
        registry=registry,
        store=store,
        claims=ContentClaims(database.keep_writer()),
        mailer=_mailer(settings),
        card=card_setup(settings, conditions.outcomes_of(CARD)),
        database=database,
        overrides=Overrides(partial(database.look, find_overrides), now),
        changes=changes,
        journal=Journal(writer, database.gate, changes=changes),
        members=cluster_members(settings, presence, changes, local_url=local_url),
        cells=None if settings.cell is None else Cells(settings.cell, settings.cells),
        reporter=reporter,
        reports=reports,
        conditions=conditions,
        feed=ReportFeed(reporter, ReportTable(database)),
        samples=SampleRing(settings.data_dir / f"samples-{worker or 0}.json"),
        dead_letters=DeadLetters(process.member_id, now=now),
        refused=RefusedRequests(conditions, process.member_id, now=now),
        poison=NewestQueue(MESSAGES_MAX),
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
    if settings.asset_store == "local":
        return LocalStore(settings.data_dir)
    try:
        from holdfast.providers.storage.s3 import S3Store
    except ModuleNotFoundError as fault:
        if fault.name != "obstore":
            raise
        line = (
            f"{PREFIX}ASSET_STORE: s3 needs a library that is not installed: run {install_extra('s3')}, "
            "or install requirements/options.lock"
        )
        raise SettingsFault((line,)) from None
    return S3Store(settings)


def _mailer(settings: Settings) -> Mailer:
    if settings.smtp_url is None and settings.is_production:
        return NoMailer()
    # Loaded only where mail is sent.
    from holdfast.providers.mail.mailers import DevelopmentMailer, SmtpMailer

    if settings.smtp_url is None:
        return DevelopmentMailer(settings.data_dir / "mail")
    return SmtpMailer(settings.smtp_url, settings.mail_from)
