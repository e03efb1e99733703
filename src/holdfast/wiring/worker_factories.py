"""What the workers of one process are made with, and the posts at which they are told of errands."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial

from holdfast.actors.workers.asset_sweeper import AssetSweeper
from holdfast.actors.workers.dispatcher import Dispatcher
from holdfast.actors.workers.heartbeat import Heartbeat, Presence
from holdfast.actors.workers.hosting import HostingWorker
from holdfast.actors.workers.order_checks import OrderChecks
from holdfast.actors.workers.outbox import DELIVERIES_MAX, LEASE_MARGIN_S, OutboxRows, OutboxWorker
from holdfast.actors.workers.provider_calls import ProviderCaller, SubmitKey
from holdfast.actors.workers.provider_watch import ProviderWatch
from holdfast.actors.workers.reconciler import OrderSweeper, Reconciler
from holdfast.actors.workers.sweeper import Sweeper
from holdfast.actors.workers.worker import WorkerRef
from holdfast.ledger.clock import Now, utc_now
from holdfast.ledger.links import PublicUrls
from holdfast.ledger.tasks.public import event_payload
from holdfast.persistence.claims.outbox import DueEvent
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.server.database import Database
from holdfast.providers.outbound.guarded import GuardedClient, resolver
from holdfast.providers.outbound.name_lookups import NameLookups
from holdfast.providers.outbound.webhook_post import post_event
from holdfast.providers.storage import AssetStore
from holdfast.settings import Settings
from holdfast.supervision.directory import KeyedDirectory
from holdfast.supervision.spec import Child
from holdfast.wiring.card import CardSetup
from holdfast.wiring.provider_registry import ProviderRegistry

WORKERS = (
    "heartbeat", "dispatcher", "desk", "provider-watch", "hosting", "outbox", "reconciler", "order-sweeper",
    "asset-sweeper",
    "sweeper",
)  # fmt: skip


def worker_addresses() -> dict[str, WorkerRef]:
    """A post for each worker. Posts outlive the workers' incarnations, so whoever tells one keeps its post."""
    return {name: WorkerRef(name) for name in WORKERS}


def worker_factories(
    settings: Settings,
    *,
    posts: Mapping[str, WorkerRef],
    database: Database,
    journal: Journal,
    accounts: KeyedDirectory,
    tasks: KeyedDirectory,
    registry: ProviderRegistry,
    store: AssetStore,
    card: CardSetup | None,
    urls: PublicUrls,
    presence: Presence,
    submits: set[SubmitKey],
) -> tuple[tuple[str, Callable[[], Child]], ...]:
    """Return what makes an incarnation of each worker."""
    downloads = GuardedClient(registry.origins, resolve=resolver(NameLookups("downloads")))
    now = presence.clock.now
    outbox = outbox_factory(settings, database, journal, posts["outbox"], tasks, urls=urls, now=now)
    order_checks = OrderChecks(
        database=database,
        accounts=accounts,
        card=None if card is None else card.provider,
        env=settings.env,
        now=now,
    )
    return (
        (
            # First, so that service time is known before anything falls due by it.
            "heartbeat",
            lambda: Heartbeat(posts["heartbeat"], database=database, presence=presence, providers=registry.places),
        ),
        (
            "dispatcher",
            lambda: Dispatcher(
                posts["dispatcher"],
                database=database,
                tasks=tasks,
                places=registry.places,
                now=now,
                process=presence.process,
                removed=registry.removed,
                judges_leases=presence.judges_leases,
                silences=lambda provider: registry.health_of(provider).silences(),
            ),
        ),
        (
            "desk",
            lambda: ProviderCaller(posts["desk"], providers=registry.providers, tasks=tasks, submits=submits),
        ),
        ("provider-watch", lambda: ProviderWatch(posts["provider-watch"], providers=registry.providers)),
        (
            "hosting",
            lambda: HostingWorker(
                posts["hosting"],
                downloads=downloads,
                origins_of=registry.origins_of,
                store=store,
                database=database,
                incoming_dir=settings.data_dir / "incoming",
                tasks=tasks,
                now=now,
            ),
        ),
        ("outbox", outbox),
        ("reconciler", lambda: Reconciler(posts["reconciler"], database=database, order_checks=order_checks)),
        (
            "order-sweeper",
            lambda: OrderSweeper(posts["order-sweeper"], database=database, order_checks=order_checks),
        ),
        (
            "asset-sweeper",
            lambda: AssetSweeper(posts["asset-sweeper"], database=database, tasks=tasks, store=store, now=now),
        ),
        (
            "sweeper",
            lambda: Sweeper(posts["sweeper"], database=database, idempotency_ttl_s=settings.idempotency_ttl_s),
        ),
    )


def outbox_factory(
    settings: Settings,
    database: Database,
    journal: Journal,
    post: WorkerRef,
    tasks: KeyedDirectory,
    *,
    urls: PublicUrls,
    now: Now,
) -> Callable[[], OutboxWorker]:
    """Return what makes the worker that delivers events."""
    client = GuardedClient(
        local_allowed=settings.webhook_local_allowed,
        resolve=resolver(NameLookups("webhooks")),
        connect_timeout_s=settings.webhook_timeout_s,
        idle_timeout_s=settings.webhook_timeout_s,
        connections_max_count=DELIVERIES_MAX,
    )
    rows = OutboxRows(database, lease_s=settings.webhook_timeout_s + LEASE_MARGIN_S)

    def render(event: DueEvent) -> bytes:
        return event_payload(urls, event.event_id, event.kind, event.created_at, event.task, now=utc_now())

    def make() -> OutboxWorker:
        return OutboxWorker(
            post,
            rows=rows,
            journal=journal,
            tasks=tasks,
            render=render,
            send=partial(post_event, client, timeout_s=settings.webhook_timeout_s, now=utc_now),
            secrets_key=settings.derived_key("webhook secrets"),
            give_up_s=settings.webhook_give_up_s,
            now=now,
            rng=random.Random(),  # noqa: S311 - spreads waiting times
        )

    return make
