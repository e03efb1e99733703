"""The composition root: builds the whole service from the settings. Nothing runs yet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from holdfast.actors.unfenced import EventCommands, UnmatchedEventStore
from holdfast.actors.workers.order_checks import OrderChecks
from holdfast.http.kit.dependencies import Access, Dependencies, Payments
from holdfast.http.kit.operating import Operating, Readiness
from holdfast.http.kit.sending import Sending
from holdfast.http.kit.upload_shares import Storage
from holdfast.http.kit.waiting_calls import STREAMS_PER_READ_MAX, Following, WaitingCalls
from holdfast.ledger.values import new_id
from holdfast.persistence.server.embedded import EmbeddedPostgres
from holdfast.persistence.server.lookups import GroupedLookups
from holdfast.providers.outbound.guarded import GuardedClient
from holdfast.providers.outbound.name_lookups import NameLookups
from holdfast.settings.settings import Settings
from holdfast.sockets.emulator_sockets import EmulatorSockets
from holdfast.sockets.listening import Sockets
from holdfast.supervision.control.actor import ControlRef
from holdfast.supervision.supervisor import Supervisor
from holdfast.supervision.tree import RunningChild, add_http_server, build_tree
from holdfast.telemetry.metrics import render_process
from holdfast.wiring.actors import Actors, actors_of, poison_replays
from holdfast.wiring.card import PROVIDER
from holdfast.wiring.control import collect_dead_letters, control_child, controls_of_all
from holdfast.wiring.emulators import emulators_of
from holdfast.wiring.http_server import HttpServer
from holdfast.wiring.parts import Parts, parts_of
from holdfast.wiring.provider_checks import JobChecks
from holdfast.wiring.workers import worker_children


@dataclass(frozen=True, slots=True)
class Assembly:
    """The composed service, not yet running."""

    parts: Parts
    tree: Supervisor
    http: HttpServer | None


def assemble(
    settings: Settings,
    *,
    database_url: str,
    local_url: str,
    embedded: EmbeddedPostgres | None = None,
    sockets: Sockets | None = None,
    emulator_sockets: EmulatorSockets | None = None,
    metrics_text: Callable[[], Awaitable[bytes]] = render_process,
    worker: int | None = None,
) -> Assembly:
    """Compose the service. ``local_url`` is where it listens. Raises :class:`CatalogFault`.

    Without ``sockets`` nothing is served over HTTP. Without ``emulator_sockets`` the emulators run elsewhere.
    ``metrics_text`` renders the metrics. ``worker`` is this process's slot, if it has a parent.
    """
    parts = parts_of(settings, database_url=database_url, local_url=local_url, embedded=embedded, worker=worker)
    actors = actors_of(parts)
    order_checks = OrderChecks(
        conditions=parts.conditions,
        database=parts.database,
        accounts=actors.accounts,
        card=None if parts.card is None else parts.card.provider,
        env=settings.env,
        now=parts.now,
    )
    control_ref = ControlRef()
    collect_dead_letters(parts)
    accounts, sign_ins, tasks = actors.local
    tree = build_tree(
        parts.reporter,
        parts.conditions,
        shutdown_s=settings.shutdown_s,
        # The control actor shows the tree, which does not exist yet.
        control=control_child(parts, control_ref, tree=lambda: tree, directories=actors.local),
        database=lambda: RunningChild(parts.database.run),
        journal=lambda: parts.journal,
        members=lambda: parts.members,
        accounts=accounts,
        sign_ins=sign_ins,
        tasks=tasks,
        emulators={}
        if emulator_sockets is None
        else emulators_of(settings, parts.registry, emulator_sockets, local_url=local_url),
        workers=worker_children(parts, actors, order_checks, lambda: deps),
    )
    deps = _dependencies(
        parts, actors, order_checks=order_checks, control=control_ref, tree=tree, metrics_text=metrics_text
    )
    http = None
    if sockets is not None:
        http = HttpServer(sockets, worker or 0, deps, parts.reporter, lambda: tree.is_stopping)
        add_http_server(tree, http.start)
    return Assembly(parts, tree, http)


def _dependencies(
    parts: Parts,
    actors: Actors,
    *,
    order_checks: OrderChecks,
    control: ControlRef,
    tree: Supervisor,
    metrics_text: Callable[[], Awaitable[bytes]],
) -> Dependencies:
    """Return what the endpoints use."""
    settings, database, registry, now = parts.settings, parts.database, parts.registry, parts.now
    return Dependencies(
        settings=settings,
        database=database,
        accounts=actors.accounts,
        sign_ins=actors.sign_ins,
        tasks=actors.tasks,
        registry=registry,
        write_record=database.record,
        urls=parts.urls,
        now=now,
        cells=parts.cells,
        conditions=parts.conditions,
        access=Access(lookups=GroupedLookups(database.read), seen_sessions=parts.seen_sessions),
        following=Following(
            changes=parts.changes,
            waiting=WaitingCalls(per_account_max=settings.waiting_per_account_max, all_max=settings.waiting_max),
            stream_lookups=GroupedLookups(database.read, callers_max=STREAMS_PER_READ_MAX),
        ),
        sending=Sending(mailer=parts.mailer, events=EventCommands(parts.journal, parts.refs.outbox, now)),
        storage=Storage(store=parts.store, claims=parts.claims),
        payments=Payments(
            card=parts.card,
            unmatched_events=UnmatchedEventStore(PROVIDER, parts.journal, now),
            order_checks=order_checks,
        ),
        operating=Operating(
            report=parts.reporter.report,
            reports=parts.feed,
            refused=parts.refused,
            overrides=parts.overrides,
            readiness=lambda: Readiness(
                database.gate.is_open and not parts.journal.is_blocked, tree.is_ready, registry.provider_states()
            ),
            metrics_text=metrics_text,
            controls=controls_of_all(control, parts.members),
            poison=poison_replays(parts, actors),
            provider_checks=JobChecks(
                database,
                registry,
                GuardedClient(registry.origins, resolve=NameLookups("downloads").addresses),
                now=now,
                new_id=partial(new_id, "check") if parts.cells is None else parts.cells.new_check_id,
                callback_url=partial(
                    registry.check_callback_url, public_url=parts.public_url, local_url=parts.local_url
                ),
            ),
        ),
    )
