"""How each worker of one process is started."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import cast

import structlog

from holdfast.actors.workers.archives import ArchiveWorker
from holdfast.actors.workers.asset_sweeper import AssetSweeper
from holdfast.actors.workers.checker import Checker, Pace
from holdfast.actors.workers.closings import ClosingWorker
from holdfast.actors.workers.dispatcher import Dispatcher
from holdfast.actors.workers.due_work import DueWork
from holdfast.actors.workers.heartbeat import Heartbeat
from holdfast.actors.workers.hosting import HostingWorker
from holdfast.actors.workers.lot_sweeper import LotSweeper
from holdfast.actors.workers.order_checks import OrderChecks
from holdfast.actors.workers.outbox import DELIVERIES_MAX, LEASE_MARGIN_S, OutboxWorker
from holdfast.actors.workers.passes import Passes, Schedule
from holdfast.actors.workers.provider_calls import ProviderCaller
from holdfast.actors.workers.provider_watch import ProviderWatch
from holdfast.actors.workers.receipts import ReceiptsWorker
from holdfast.actors.workers.reconciler import OrderSweeper, Reconciler, TopUpWorker
from holdfast.actors.workers.report_writer import ReportWriter
from holdfast.actors.workers.sampler import DatabaseMetrics, Sampler
from holdfast.actors.workers.sweeper import Sweeper
from holdfast.cluster.members import slots_of
from holdfast.http.endpoints.operators.bulk import BulkActions
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.extensions import installed_extensions
from holdfast.ledger.alerts.account_events import AccountEventKind, account_payload
from holdfast.ledger.receipts import ReceiptSeller, ReceiptTerms
from holdfast.ledger.tasks.public import event_payload
from holdfast.ledger.tasks.task import EventKind
from holdfast.ledger.values import format_time, utc_now
from holdfast.persistence.claims.due_work import DueKind
from holdfast.persistence.claims.outbox import DueEvent, claim_due
from holdfast.providers.card.base import micro_per_minor
from holdfast.providers.outbound.guarded import GuardedClient
from holdfast.providers.outbound.name_lookups import NameLookups
from holdfast.providers.outbound.webhook_post import post_event
from holdfast.settings.settings import Settings
from holdfast.supervision.spec import Child
from holdfast.supervision.tree import RunningChild
from holdfast.supervision.turn_watch import TurnWatch
from holdfast.telemetry.metrics.samples import ProcessMeter
from holdfast.telemetry.reports.conditions import STORAGE
from holdfast.wiring.actors import Actors, masked_key, poison_writer
from holdfast.wiring.alert_mail import AlertMail
from holdfast.wiring.cluster import outbox_that_reports
from holdfast.wiring.parts import Parts

log = structlog.get_logger(__name__)

WEBHOOK_CONNECT_S = 5.0
"""How long connecting to each address of a webhook's host may take: the next one is tried within the timeout."""


Starts = dict[str, Callable[[], Child]]
"""How workers are started, by name and in start order."""


def worker_children(
    parts: Parts, actors: Actors, order_checks: OrderChecks, deps: Callable[[], Dependencies]
) -> Starts:
    """Return how all workers are started; ``deps`` are those of operators' actions.

    The heartbeat comes before what falls due, so that service time is known.
    """
    passes = Passes()
    due = DueWork(
        database=parts.database, overrides=parts.overrides, me=parts.presence.process.member_id, now=parts.now
    )
    workers = (
        _watching(parts, actors, passes)
        | {"due-work": lambda: RunningChild(due.run)}
        | _tasks(parts, actors, due)
        | _sweeping(parts, actors, order_checks, due, deps)
        | _measuring(parts, actors)
    )
    return {name: passes.of_worker(name, start) for name, start in workers.items()}


def _watching(parts: Parts, actors: Actors, passes: Passes) -> Starts:
    """Return those that store and follow reports, and renew this process's lease."""
    database = parts.database
    return {
        "report-writer": lambda: RunningChild(
            ReportWriter(parts.reports, database=database, reporter=parts.reporter).run
        ),
        "report-feed": lambda: RunningChild(parts.feed.run),
        "poison-writer": poison_writer(parts),
        "turn-watch": lambda: RunningChild(
            TurnWatch(
                actors.local,
                passes,
                limit_s=parts.settings.stuck_turn_s,
                reporter=parts.reporter,
                is_database_open=lambda: database.gate.is_open,
                mask=partial(masked_key, parts.settings),
            ).run
        ),
        "heartbeat": lambda: Heartbeat(database=database, presence=parts.presence, providers=parts.registry.slots),
    }


def _tasks(parts: Parts, actors: Actors, due: DueWork) -> Starts:
    """Return those that take tasks from the queue to the customer's server."""
    settings, database, presence = parts.settings, parts.database, parts.presence
    registry, refs, tasks, now = parts.registry, parts.refs, actors.tasks, parts.now
    downloads = GuardedClient(registry.origins, resolve=NameLookups("downloads").addresses)
    return {
        "dispatcher": lambda: Dispatcher(
            refs.dispatcher,
            database=database,
            tasks=tasks,
            slots=lambda: parts.overrides.slots(registry.slots()),
            paused_models=parts.overrides.paused_models,
            now=now,
            process=presence.process,
            removed=registry.track_grace,
            leases_are_reliable=presence.leases_are_reliable,
            silences=lambda provider: registry.health_of(provider).silences(),
            assigns_slots=lambda provider: presence.has_claimed(slots_of(provider)),
            due=due,
            new_task_slots=parts.new_task_slots,
        ),
        "provider-calls": lambda: ProviderCaller(
            refs.provider_calls, providers=registry.providers, tasks=tasks, submits=parts.submits
        ),
        "provider-watch": lambda: RunningChild(ProviderWatch(providers=registry.providers).run),
        "hosting": lambda: HostingWorker(
            refs.hosting,
            downloads=downloads,
            origins_of=registry.origins_of,
            store=parts.store,
            claims=parts.claims,
            incoming_dir=settings.data_dir / "incoming",
            tasks=tasks,
            now=now,
            take_outcome=parts.conditions.outcomes_of(STORAGE),
        ),
        "outbox": _outbox(parts, actors, due),
    }


def _outbox(parts: Parts, actors: Actors, due: DueWork) -> Callable[[], Child]:
    settings, now = parts.settings, parts.now
    urls = parts.urls
    webhooks = GuardedClient(
        local_allowed=settings.webhook_local_allowed,
        resolve=NameLookups("webhooks").addresses,
        connect_timeout_s=min(settings.webhook_timeout_s, WEBHOOK_CONNECT_S),
        idle_timeout_s=settings.webhook_timeout_s,
        connections_max_count=DELIVERIES_MAX,
    )
    reporting = outbox_that_reports(parts.refs.outbox, parts.members)

    bodies = {name: body for each in installed_extensions() for name, body in each.webhook_bodies.items()}

    def payload(event: DueEvent) -> bytes:
        if event.request_id is None:
            kind, at = cast(AccountEventKind, event.kind), format_time(event.created_at)
            return account_payload(event.event_id, kind, at, event.snapshot)
        task, kind_of_task = event.task, cast(EventKind, event.kind)
        own_format = task.request.webhook_format if event.webhook_id is None else None
        # If the extension with this format is no longer installed, the event is sent in the service's own.
        if own_format in bodies:
            return bodies[own_format](urls, task, now())
        return event_payload(urls, event.event_id, kind_of_task, event.created_at, task, now=now())

    return lambda: OutboxWorker(
        parts.refs.outbox,
        claim=lambda at, after, named, capacity, learned: parts.database.work(
            claim_due,
            at,
            after=after,
            named=named,
            capacity=capacity,
            learned=learned,
            lease_s=settings.webhook_timeout_s + LEASE_MARGIN_S,
        ),
        journal=parts.journal,
        tasks=actors.tasks,
        render=payload,
        send=partial(post_event, webhooks, timeout_s=settings.webhook_timeout_s, now=utc_now),
        send_mail=AlertMail(parts.database, actors.accounts, parts.mailer, urls).send,
        secrets_keys=settings.webhook_keys,
        give_up_s=settings.webhook_give_up_s,
        now=now,
        rng=random.Random(),  # noqa: S311 - spreads retries
        conditions=parts.conditions,
        reporting=reporting,
        wait_due=due.waiting_for("events"),
    )


def _sweeping(
    parts: Parts, actors: Actors, order_checks: OrderChecks, due: DueWork, deps: Callable[[], Dependencies]
) -> Starts:
    """Return those of which one member has each: they reconcile orders, delete what has expired, act in bulk."""
    settings, database, now = parts.settings, parts.database, parts.now
    if settings.is_production and settings.card_api_key and not (settings.seller_name and settings.seller_address):
        log.warning(
            "receipts do not state who sells: set SELLER_NAME and SELLER_ADDRESS, which later receipts will have"
        )

    def schedule(worker: str, *kinds: DueKind) -> Schedule:
        return Schedule(partial(parts.presence.has_claimed, worker), due.waiting_for(*kinds) if kinds else None)

    return {
        "conditions": lambda: RunningChild(parts.conditions.run),
        "reconciler": lambda: RunningChild(
            Reconciler(
                database=database,
                order_checks=order_checks,
                schedule=schedule("reconciler", "orders"),
            ).run
        ),
        "order-sweeper": lambda: RunningChild(
            OrderSweeper(
                database=database,
                order_checks=order_checks,
                schedule=schedule("order-sweeper", "orders"),
            ).run
        ),
        "top-ups": lambda: RunningChild(
            TopUpWorker(
                database=database,
                order_checks=order_checks,
                schedule=schedule("top-ups", "orders", "resuming_accounts"),
            ).run
        ),
        "receipts": lambda: RunningChild(
            ReceiptsWorker(
                database=database,
                terms=receipt_terms(settings),
                now=now,
                schedule=schedule("receipts", "money"),
            ).run
        ),
        "asset-sweeper": lambda: RunningChild(
            AssetSweeper(
                database=database,
                tasks=actors.tasks,
                store=parts.store,
                now=now,
                schedule=schedule("asset-sweeper", "stored"),
            ).run
        ),
        "lot-sweeper": lambda: RunningChild(
            LotSweeper(
                database=database,
                accounts=actors.accounts,
                now=now,
                lots=schedule("lot-sweeper", "lots"),
                claims=schedule("lot-sweeper", "coupon_claims"),
                notices=schedule("lot-sweeper"),
            ).run
        ),
        "closings": lambda: RunningChild(
            ClosingWorker(
                database=database,
                journal=parts.journal,
                accounts=actors.accounts,
                card=None if parts.card is None else parts.card.provider,
                now=now,
                member_id=parts.presence.process.member_id,
                schedule=schedule("closings", "closings"),
            ).run
        ),
        "archives": lambda: RunningChild(
            ArchiveWorker(
                database=database,
                store=parts.store,
                claims=parts.claims,
                directory=settings.data_dir / "incoming",
                now=now,
                schedule=schedule("archives", "archives"),
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
                schedule=schedule("sweeper"),
            ).run
        ),
        "bulk-actions": lambda: RunningChild(
            BulkActions(deps, schedule=schedule("bulk-actions", "bulk_actions")).run
        ),
    }


def receipt_terms(settings: Settings) -> ReceiptTerms:
    """Return what the settings decide of new receipts; the address is divided into lines at ``;``."""
    lines = (line.strip() for part in settings.seller_address.splitlines() for line in part.split(";"))
    seller = ReceiptSeller(settings.seller_name, tuple(filter(None, lines)), settings.seller_tax_id)
    return ReceiptTerms(settings.receipt_prefix, seller, micro_per_minor)


def _measuring(parts: Parts, actors: Actors) -> Starts:
    """Return those that measure this process and the database, and check the rows."""
    settings, database, journal, now = parts.settings, parts.database, parts.journal, parts.now
    workers: Starts = {
        "database-metrics": lambda: RunningChild(DatabaseMetrics(database=database, now=now).run),
        "sampler": lambda: RunningChild(
            Sampler(
                parts.samples,
                journal_units=lambda: journal.queued_units,
                mailboxes=lambda: chain(*(each.mailboxes() for each in actors.local), parts.refs.mailboxes()),
                quarantined=lambda: {each.name: len(each.quarantined()) for each in actors.local},
                processes=ProcessMeter(parts.worker),
                are_others=parts.worker is not None,
                now=now,
            ).run
        ),
    }
    if settings.checker_share:
        workers["checker"] = lambda: RunningChild(
            Checker(
                database=database,
                now=now,
                report=parts.reporter.report,
                pace=Pace(settings.checker_share, journal),
                is_ours=partial(parts.presence.has_claimed, "checker"),
            ).run
        )
    return workers
