"""The workers of one process: the addresses of those that receive messages, and how each is started."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from holdfast.actors.runtime.mailbox import Mailbox
from holdfast.actors.runtime.refs import Directory, TrioActorRef
from holdfast.actors.workers.asset_sweeper import AssetSweeper
from holdfast.actors.workers.checker import Checker
from holdfast.actors.workers.database_metrics import DatabaseMetrics
from holdfast.actors.workers.delivery_capacity import DELIVERIES_MAX
from holdfast.actors.workers.dispatcher import Dispatcher
from holdfast.actors.workers.heartbeat import Heartbeat, Presence
from holdfast.actors.workers.hosting import HostingWorker
from holdfast.actors.workers.order_checks import OrderChecks
from holdfast.actors.workers.outbox import LEASE_MARGIN_S, OutboxWorker
from holdfast.actors.workers.pace import Pace
from holdfast.actors.workers.passes import Passes
from holdfast.actors.workers.provider_calls import ProviderCaller, SubmitKey
from holdfast.actors.workers.provider_watch import ProviderWatch
from holdfast.actors.workers.reconciler import OrderSweeper, Reconciler
from holdfast.actors.workers.report_writer import ReportQueue, ReportWriter
from holdfast.actors.workers.sampler import Sampler
from holdfast.actors.workers.sweeper import Sweeper
from holdfast.actors.workers.worker import WorkerRef
from holdfast.cluster.members import slots_of
from holdfast.ledger.clock import utc_now
from holdfast.ledger.links import PublicUrls
from holdfast.ledger.tasks.public import event_payload
from holdfast.persistence.claims.contents import ContentClaims
from holdfast.persistence.claims.outbox import DueEvent, claim_due
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.server.database import Database
from holdfast.providers.outbound.guarded import GuardedClient
from holdfast.providers.outbound.name_lookups import NameLookups
from holdfast.providers.outbound.webhook_post import post_event
from holdfast.providers.storage.base import AssetStore
from holdfast.settings.settings import Settings
from holdfast.supervision.directory import KeyedDirectory
from holdfast.supervision.spec import Child
from holdfast.supervision.tree import RunningChild
from holdfast.supervision.turn_watch import TurnWatch
from holdfast.telemetry.metrics.process_usage import ProcessMeter
from holdfast.telemetry.metrics.samples import SampleRing
from holdfast.telemetry.reports.conditions import STORAGE, Conditions
from holdfast.telemetry.reports.feed import ReportFeed
from holdfast.telemetry.reports.reporter import Reporter
from holdfast.wiring.masked_keys import masked_key
from holdfast.wiring.provider_registry import ProviderRegistry

WEBHOOK_CONNECT_S = 5.0
"""How long connecting to each address of a webhook's host may take: the next one is tried within the timeout."""


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


def worker_children(
    settings: Settings,
    refs: WorkerRefs,
    *,
    database: Database,
    journal: Journal,
    tasks: Directory,
    registry: ProviderRegistry,
    store: AssetStore,
    order_checks: OrderChecks,
    urls: PublicUrls,
    presence: Presence,
    submits: set[SubmitKey],
    reporter: Reporter,
    reports: ReportQueue,
    samples: SampleRing,
    poison_writer: Callable[[], Child],
    directories: Sequence[KeyedDirectory],
    worker: int | None,
    feed: ReportFeed,
    conditions: Conditions,
    delivery_reports: TrioActorRef,
) -> Mapping[str, Callable[[], Child]]:
    """Return how each worker is started, by name and in start order.

    The heartbeat comes before what falls due, so that service time is known. ``directories`` have the keyed
    actors of this process, ``worker`` is its slot at the parent. ``delivery_reports`` takes the results of
    deliveries, as ``reporting`` of the outbox worker.
    """
    now = presence.clock.now
    downloads = GuardedClient(registry.origins, resolve=NameLookups("downloads").addresses)
    webhooks = GuardedClient(
        local_allowed=settings.webhook_local_allowed,
        resolve=NameLookups("webhooks").addresses,
        connect_timeout_s=min(settings.webhook_timeout_s, WEBHOOK_CONNECT_S),
        idle_timeout_s=settings.webhook_timeout_s,
        connections_max_count=DELIVERIES_MAX,
    )

    claims = ContentClaims(database.connect_writer)

    def render(event: DueEvent) -> bytes:
        return event_payload(urls, event.event_id, event.kind, event.created_at, event.task, now=now())

    passes = Passes()
    workers: dict[str, Callable[[], Child]] = {
        "report-writer": lambda: RunningChild(ReportWriter(reports, database=database, reporter=reporter).run),
        "report-feed": lambda: RunningChild(feed.run),
        "poison-writer": poison_writer,
        "turn-watch": lambda: RunningChild(
            TurnWatch(
                directories,
                passes,
                limit_s=settings.stuck_turn_s,
                reporter=reporter,
                is_database_open=lambda: database.gate.is_open,
                mask=partial(masked_key, settings),
            ).run
        ),
        "heartbeat": lambda: Heartbeat(database=database, presence=presence, providers=registry.slots),
        "dispatcher": lambda: Dispatcher(
            refs.dispatcher,
            database=database,
            tasks=tasks,
            slots=registry.slots,
            now=now,
            process=presence.process,
            removed=registry.removed,
            leases_are_reliable=presence.leases_are_reliable,
            silences=lambda provider: registry.health_of(provider).silences(),
            assigns_slots=lambda provider: presence.holds(slots_of(provider)),
        ),
        "provider-calls": lambda: ProviderCaller(
            refs.provider_calls, providers=registry.providers, tasks=tasks, submits=submits
        ),
        "provider-watch": lambda: RunningChild(ProviderWatch(providers=registry.providers).run),
        "hosting": lambda: HostingWorker(
            refs.hosting,
            downloads=downloads,
            origins_of=registry.origins_of,
            store=store,
            claims=claims,
            incoming_dir=settings.data_dir / "incoming",
            tasks=tasks,
            now=now,
            watch=conditions.watch(STORAGE),
        ),
        "outbox": lambda: OutboxWorker(
            refs.outbox,
            claim=lambda at, after, named, capacity, learned: database.work(
                claim_due,
                at,
                after=after,
                named=named,
                capacity=capacity,
                learned=learned,
                lease_s=settings.webhook_timeout_s + LEASE_MARGIN_S,
            ),
            journal=journal,
            tasks=tasks,
            render=render,
            send=partial(post_event, webhooks, timeout_s=settings.webhook_timeout_s, now=utc_now),
            secrets_key=settings.derived_key("webhook secrets"),
            give_up_s=settings.webhook_give_up_s,
            now=now,
            rng=random.Random(),  # noqa: S311 - spreads retries
            conditions=conditions,
            reporting=delivery_reports,
        ),
        "conditions": lambda: RunningChild(conditions.run),
        "reconciler": lambda: RunningChild(
            Reconciler(
                database=database, order_checks=order_checks, is_ours=partial(presence.holds, "reconciler")
            ).run
        ),
        "order-sweeper": lambda: RunningChild(
            OrderSweeper(
                database=database, order_checks=order_checks, is_ours=partial(presence.holds, "order-sweeper")
            ).run
        ),
        "asset-sweeper": lambda: RunningChild(
            AssetSweeper(
                database=database,
                tasks=tasks,
                store=store,
                now=now,
                is_ours=partial(presence.holds, "asset-sweeper"),
            ).run
        ),
        "sweeper": lambda: RunningChild(
            Sweeper(
                database=database,
                now=now,
                idempotency_ttl_s=settings.idempotency_ttl_s,
                revoked_keys_retention_s=settings.revoked_keys_retention_s,
                reports_retention_s=settings.reports_retention_s,
                reports_max=settings.reports_max,
                is_ours=partial(presence.holds, "sweeper"),
            ).run
        ),
        "database-metrics": lambda: RunningChild(DatabaseMetrics(database=database, now=now).run),
        "sampler": lambda: RunningChild(
            Sampler(
                samples,
                journal_units=lambda: journal.queued_units,
                mailboxes=lambda: chain(*(each.mailboxes() for each in directories), refs.mailboxes()),
                quarantined=lambda: {each.name: len(each.quarantined()) for each in directories},
                processes=ProcessMeter(worker),
                now=now,
            ).run
        ),
    }
    if settings.checker_share:
        workers["checker"] = lambda: RunningChild(
            Checker(
                database=database,
                now=now,
                report=reporter.report,
                pace=Pace(settings.checker_share, journal),
                is_ours=partial(presence.holds, "checker"),
            ).run
        )
    return {name: passes.watching(name, start) for name, start in workers.items()}
