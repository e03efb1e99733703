"""The outbox worker: delivers events to customers' webhook URLs and by mail, with retries.

A claimed event counts as a failed attempt until its outcome is written, so a crash repeats a delivery and never
loses one. Receivers recognise a repeated event by its id. Concurrent deliveries are bounded, in all, per account
and per receiver, and receivers that hang are counted apart: they delay only their own events. So is mail, which
waits for one server. An account's webhooks are receivers of their own, and so is its mail; the ``webhook_url`` of
its tasks are one together.

Messages name the receivers that have new events. All are looked through every few seconds, and once a delivery may
begin again after none could.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, NoReturn, TypeVar

import structlog
import trio
from structlog.contextvars import bind_contextvars

from holdfast.actors.runtime.refs import Directory, TellRef, WorkerRef
from holdfast.actors.task.messages import DeliveryEnded, EventsDue, RecordAnnouncement
from holdfast.actors.workers.due_work import WaitDue
from holdfast.actors.workers.passes import LOOK_S, one_pass
from holdfast.actors.workers.worker import Worker
from holdfast.ledger.tasks.events import ASSETS_READY, DeliveryResponse, DeliveryState, after_attempt
from holdfast.ledger.tasks.webhook_secrets import signing_at, webhook_secret
from holdfast.ledger.values import Now
from holdfast.persistence.claims.outbox import FIRST, RECEIVERS_PROBED_MAX, Capacity, DueEvent, Share
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.journal.units import Committed, Unit
from holdfast.persistence.queries.events import MAIL
from holdfast.persistence.records.rows import OutboxAttemptRow, OutboxOutcomeRow
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.providers.outbound.urls import parse_url
from holdfast.providers.signatures import standard_headers
from holdfast.telemetry import metrics
from holdfast.telemetry.reports.conditions import WEBHOOKS, Conditions
from holdfast.telemetry.traces import traceparent

log = structlog.get_logger(__name__)

TICK_S = 2.0
"""How often due events are looked for, besides when a message says that an account has some."""
PER_RECEIVER_MAX = 4
PER_ACCOUNT_MAX = 16
"""Of each share."""
LEASE_MARGIN_S = 5.0
FINISH_S = 2.0
"""How long running deliveries may take to finish once the worker stops."""
ERROR_MAX_CHARS = 200

Key = TypeVar("Key")

ClaimDue = Callable[
    [datetime, str | None, Collection[str], Capacity, Mapping[str, bool]],
    Awaitable[tuple[list[DueEvent], str | None]],
]
"""Claims due events, as :func:`~holdfast.persistence.claims.outbox.claim_due` with its arguments in their order.

Raises :class:`~holdfast.persistence.server.database_faults.DatabaseAway`.
"""

Render = Callable[[DueEvent], bytes]
"""Renders an event's body, with links signed as of now."""

Send = Callable[[str, str, bytes, Mapping[str, str]], Awaitable[DeliveryResponse]]
"""Sends an account's event: URL, body and headers. One attempt, with its own timeout."""

SendMail = Callable[[DueEvent], Awaitable[DeliveryResponse]]
"""Sends an event to its account's owner by mail. One attempt, with its own timeout; its status is SMTP's."""


class OutboxWorker(Worker):
    """Delivers due events. ``give_up_s`` limits the retries; the accounts' secrets derive from ``secrets_keys``.

    ``reporting`` is the outbox worker that counts all members' deliveries to a host, so that one reports of it;
    None if this one does. ``wait_due`` returns when events may wait in the rows; without it they are looked for at
    each tick.
    """

    kind = "outbox"

    def __init__(
        self,
        ref: WorkerRef,
        *,
        claim: ClaimDue,
        journal: Journal,
        tasks: Directory,
        render: Render,
        send: Send,
        send_mail: SendMail,
        secrets_keys: Sequence[bytes],
        give_up_s: float,
        now: Now,
        rng: random.Random,
        conditions: Conditions,
        reporting: TellRef | None = None,
        tick_s: float = TICK_S,
        wait_due: WaitDue | None = None,
    ) -> None:
        super().__init__(ref)
        self._claim = claim
        self._journal = journal
        self._tasks = tasks
        self._render = render
        self._send = send
        self._send_mail = send_mail
        self._secrets_keys = secrets_keys
        self._give_up_s = give_up_s
        self._now = now
        self._rng = rng
        self._results = DeliveryResults(conditions)
        self._reporting = reporting or ref
        self._tick_s = tick_s
        self._wait_due = wait_due
        self._busy: Counter[str] = Counter()
        self._accounts_busy: Counter[tuple[str, Share]] = Counter()
        self._capacity = DeliveryCapacity(self._look)
        self._named: set[str] = set()
        # The receiver after which the look through all continues; None if none is under way.
        self._after: str | None = None
        self._look_at = -math.inf
        self._wake = trio.Event()

    def background_loops(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Deliver due events."""
        return (self._poll_loop, self._look_when_due, self._capacity.run)

    async def stop(self) -> None:  # type: ignore[override]  # the tree awaits it
        """Stop within ``FINISH_S``: deliveries that take longer are cancelled and repeated after their lease."""
        await super().stop()
        self.nursery.cancel_scope.deadline = trio.current_time() + FINISH_S

    def on_receive(self, message: object) -> None:
        """Deliver at once what has become due of a receiver, or note a result of any member's delivery."""
        if isinstance(message, DeliveryEnded):
            self._results.take(message)
        else:
            assert isinstance(message, EventsDue)
            self._note_due(message.receiver)

    def _note_due(self, receiver: str) -> None:
        """Claim this receiver's events soon; with too many such receivers, look through all instead."""
        if len(self._named) < RECEIVERS_PROBED_MAX:
            self._named.add(receiver)
            self._wake.set()
        else:
            self._look()

    def _look(self) -> None:
        """Look through all receivers as soon as possible."""
        self._look_at = trio.current_time()
        self._wake.set()

    def _look_within_a_tick(self) -> None:
        if self._wait_due is None:
            self._look_at = min(self._look_at, trio.current_time() + self._tick_s)

    async def _look_when_due(self) -> None:
        """Look through all receivers every tick while events wait in the rows."""
        while self._wait_due is not None:
            await trio.sleep(max(0.0, self._tick_s - LOOK_S))
            await self._wait_due()
            self._look()

    async def _poll_loop(self) -> None:
        while True:
            try:
                is_more_due = True
                while is_more_due:
                    with one_pass("claim of due events"):
                        is_more_due = await self._deliver_due()
            except DatabaseAway as away:
                # What is due stays due; a later look finds it.
                log.debug("event delivery postponed", reason=str(away))
                self._look_at = trio.current_time() + self._tick_s
            with trio.CancelScope(deadline=self._look_at):
                await self._wake.wait()
            self._wake = trio.Event()

    async def _deliver_due(self) -> bool:
        """Claim due events up to the limits and start their deliveries; return whether other receivers follow."""
        if self._after is None and trio.current_time() >= self._look_at:
            self._after, self._look_at = FIRST, math.inf
        capacity = Capacity(
            self._capacity.to_mail,
            self._capacity.to_silent,
            self._capacity.quick,
            PER_RECEIVER_MAX,
            dict(self._busy),
            PER_ACCOUNT_MAX,
            dict(self._accounts_busy),
        )
        if not capacity.to_mail and not capacity.to_silent and not capacity.quick:
            self._look_within_a_tick()
            return False
        named, self._named = self._named, set()
        learned, self._capacity.learned = self._capacity.learned, {}
        try:
            due, self._after = await self._claim(self._now(), self._after, named, capacity, learned)
        except DatabaseAway:
            self._capacity.learned = learned | self._capacity.learned
            raise
        if self._after is None:
            self._look_within_a_tick()
        for event in due:
            self._busy[event.receiver] += 1
            self._accounts_busy[event.account_id, event.share] += 1
            delivery = self._capacity.begin(event.receiver, event.share)
            self.nursery.start_soon(self._deliver, event, delivery)
        return self._after is not None

    async def _deliver(self, event: DueEvent, delivery: RunningDelivery) -> None:
        traceparent.set(event.traceparent)
        bind_contextvars(event_id=event.event_id, task_id=event.request_id, account_id=event.account_id)
        try:
            await self._attempt(event, delivery)
        except Exception:
            # A defect in one event must not end all deliveries; without an outcome the attempt counts as failed.
            log.exception("delivery failed")
        finally:
            self._capacity.discard(delivery)
            if _end_one(self._busy, event.receiver) >= PER_RECEIVER_MAX:
                self._note_due(event.receiver)
            if _end_one(self._accounts_busy, (event.account_id, event.share)) >= PER_ACCOUNT_MAX:
                # Which of its receivers wait is not known.
                self._look()

    async def _attempt(self, event: DueEvent, delivery: RunningDelivery) -> None:
        at, started = self._now(), trio.current_time()
        if event.ended is not None:
            # Its webhook is gone, so it is not tried; if this is not written, the next claim finds the same.
            ended = DeliveryState("given_up", reason=event.ended)
            await self._write(event, (_outcome_row(event, ended, at),), ended)
            return
        # The result if the delivery is ended for others.
        answer = DeliveryResponse(None, error="ended early, because too many receivers are slow")
        with delivery.scope:
            answer = await self._sent(event, at)
        self._capacity.end(delivery, is_answered=answer.status_code is not None)
        duration_ms = round((trio.current_time() - started) * 1000)
        outcome = after_attempt(
            answer,
            at + timedelta(milliseconds=duration_ms),
            tries=event.tries,
            round_at=event.round_at,
            give_up_s=self._give_up_s,
            jitter=self._rng.random(),
        )
        await self._write(event, _rows_of(event, answer, outcome, at, duration_ms), outcome)
        # The URL may contain a secret, so the receiver is named by its host.
        host = MAIL if event.is_mail else parse_url(event.url).netloc
        reason = None if outcome.status == "delivered" else answer.error or f"status {answer.status_code}"
        self._reporting.tell(DeliveryEnded(host, event.receiver, event.account_id, event.event_id, reason))
        result = "failed" if outcome.status == "pending" else outcome.status
        metrics.EVENT_DELIVERIES.labels(result).inc()
        if outcome.status == "given_up":
            log.info("event given up", reason=outcome.reason)

    async def _sent(self, event: DueEvent, at: datetime) -> DeliveryResponse:
        try:
            if event.is_mail:
                return await self._send_mail(event)
            body = self._render(event)
            return await self._send(event.account_id, event.url, body, self._headers(event, at, body))
        except Exception:
            # A later version may be able to send it; until then it fails and is given up like any other.
            log.exception("event not sent")
            return DeliveryResponse(None, error="internal fault")

    def _headers(self, event: DueEvent, at: datetime, body: bytes) -> dict[str, str]:
        secrets = [
            webhook_secret(key, event.account_id, generation)
            for key in self._secrets_keys
            for generation in signing_at(event.rotations, at).generations
        ]
        return standard_headers(secrets, event.event_id, int(at.timestamp()), body)

    async def _write(
        self, event: DueEvent, rows: tuple[OutboxAttemptRow | OutboxOutcomeRow, ...], outcome: DeliveryState
    ) -> None:
        if event.kind == ASSETS_READY and event.webhook_id is None and outcome.status != "pending":
            # The task shows whether this event was delivered: its actor writes both in one commit.
            assert event.request_id is not None
            self._tasks.ref(event.request_id).tell(RecordAnnouncement(outcome.status == "delivered", rows))
            return
        verdict = await self._journal.write(Unit(rows=rows))
        if not isinstance(verdict, Committed):
            log.info("delivery outcome not written", result=type(verdict).__name__)


def _end_one(counts: Counter[Key], key: Key) -> int:
    """Count one less, forgetting a key without any; return how many there were."""
    before = counts[key]
    counts[key] -= 1
    if before == 1:
        del counts[key]
    return before


def _rows_of(
    event: DueEvent, answer: DeliveryResponse, outcome: DeliveryState, at: datetime, duration_ms: int
) -> tuple[OutboxAttemptRow, OutboxOutcomeRow]:
    attempt = OutboxAttemptRow(
        account_id=event.account_id,
        event_id=event.event_id,
        number=event.attempts,
        at=at,
        status_code=answer.status_code,
        error=None if answer.error is None else answer.error[:ERROR_MAX_CHARS],
        duration_ms=duration_ms,
    )
    return attempt, _outcome_row(event, outcome, at + timedelta(milliseconds=duration_ms))


def _outcome_row(event: DueEvent, outcome: DeliveryState, at: datetime) -> OutboxOutcomeRow:
    return OutboxOutcomeRow(
        account_id=event.account_id,
        event_id=event.event_id,
        attempts=event.attempts,
        round_at=event.round_at,
        due_at=outcome.due_at,
        status=outcome.status,
        done_at=None if outcome.status == "pending" else at,
        reason=outcome.reason,
    )


HOSTS_MAX: Final = 1_000
FAILING_MAX: Final = 100
"""Of so many hosts the results are known, and of so many failing receivers of each: those with the newest ones."""
FORGOTTEN_S: Final = 3600.0
"""After this long without a delivery a receiver does not count as failing: it may be gone."""


@dataclass(slots=True)
class _Failing:
    """A receiver whose last deliveries have failed; ``own_count`` of them were counted as its own failures."""

    since_s: float
    last_s: float
    own_count: int = 0


@dataclass(slots=True)
class _Host:
    """What is known of a host: when it last took a delivery, and who has failed since, the latest last."""

    well_s: float = -math.inf
    failing: dict[str, _Failing] = field(default_factory=dict)


class DeliveryResults:
    """Turns results of deliveries into conditions: of a receiver that fails alone, or else of its host.

    A receiver fails alone if its host has taken a delivery of another since it began to fail, or no other fails.
    The URL may contain a secret, so a receiver is named by its host and its id.
    """

    def __init__(self, conditions: Conditions) -> None:
        self._conditions = conditions
        # The host with the newest result is the last.
        self._hosts: dict[str, _Host] = {}

    def take(self, ended: DeliveryEnded) -> None:
        """Count a result."""
        now_s, own = trio.current_time(), f"{ended.host} {ended.receiver}"
        host = self._hosts[ended.host] = self._hosts.pop(ended.host, _Host())
        _drop_first(self._hosts, HOSTS_MAX)
        if ended.reason is None:
            host.well_s = now_s
            host.failing.pop(ended.receiver, None)
            self._conditions.ended(WEBHOOKS, own)
            self._conditions.ended(WEBHOOKS, ended.host)
            return
        failing = host.failing.pop(ended.receiver, _Failing(now_s, now_s))
        failing.last_s = now_s
        host.failing[ended.receiver] = failing
        _drop_first(host.failing, FAILING_MAX)
        host.failing = {name: each for name, each in host.failing.items() if each.last_s > now_s - FORGOTTEN_S}
        is_alone = host.well_s > failing.since_s or len(host.failing) == 1
        if is_alone or failing.own_count >= WEBHOOKS.failures_min:
            failing.own_count += 1
            subject = own
        else:
            subject = ended.host
        self._conditions.failed(
            WEBHOOKS, subject, ended.reason, account_id=ended.account_id, event_id=ended.event_id
        )


def _drop_first(found: dict[str, Any], most: int) -> None:
    if len(found) > most:
        del found[next(iter(found))]


SLOW_AFTER_S: Final = 1.0
QUICK_MAX: Final = 128
SLOW_MAX: Final = 128
"""With more slow deliveries than this, the one that has been slow for longest is ended as a failed attempt."""
TO_SILENT_MAX: Final = 96
"""Deliveries to silent receivers begin only up to here: the rest is for those that become slow."""
DELIVERIES_MAX: Final = QUICK_MAX + SLOW_MAX
MAIL_MAX: Final = 4


@dataclass(slots=True, eq=False)
class RunningDelivery:
    """One delivery. ``scope`` is cancelled when it is ended for others; ``is_silent``: its receiver was, before."""

    receiver: str
    is_silent: bool
    began_at: float = field(default_factory=trio.current_time)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class DeliveryCapacity:
    """The deliveries of one process.

    ``on_free`` is called when a quick one or one by mail may begin again after none could.

    ``learned`` has what became known of receivers since it was last stored: whether they are silent.
    """

    def __init__(self, on_free: Callable[[], None]) -> None:
        self.learned: dict[str, bool] = {}
        self._on_free = on_free
        self._has_quick = trio.Event()
        # Each in the order in which they began, or became slow.
        self._quick: dict[RunningDelivery, None] = {}
        self._slow: dict[RunningDelivery, None] = {}
        self._mail: dict[RunningDelivery, None] = {}

    @property
    def to_mail(self) -> int:
        """How many deliveries by mail may begin."""
        return max(0, MAIL_MAX - len(self._mail))

    @property
    def quick(self) -> int:
        """How many deliveries may begin to receivers that are not silent."""
        return max(0, QUICK_MAX - len(self._quick))

    @property
    def to_silent(self) -> int:
        """How many deliveries may begin to silent receivers."""
        return max(0, TO_SILENT_MAX - len(self._slow))

    def begin(self, receiver: str, share: Share) -> RunningDelivery:
        """Count a delivery from now on."""
        delivery = RunningDelivery(receiver, is_silent=share == "silent")
        {"mail": self._mail, "silent": self._slow, "quick": self._quick}[share][delivery] = None
        if self._quick:
            self._has_quick.set()
        return delivery

    def end(self, delivery: RunningDelivery, *, is_answered: bool) -> None:
        """Count it no longer, and learn from it whether its receiver is silent."""
        is_silent = not is_answered and trio.current_time() >= delivery.began_at + SLOW_AFTER_S
        if is_silent != delivery.is_silent and delivery not in self._mail:
            self.learned[delivery.receiver] = is_silent
        self.discard(delivery)

    def discard(self, delivery: RunningDelivery) -> None:
        """Count it no longer; nothing happens if it has ended."""
        self._slow.pop(delivery, None)
        if delivery in self._mail:
            was_full = not self.to_mail
            del self._mail[delivery]
            if was_full:
                self._on_free()
        if delivery in self._quick:
            self._remove_quick(delivery)

    async def run(self) -> NoReturn:
        """Watch for deliveries that become slow."""
        while True:
            if not self._quick:
                self._has_quick = trio.Event()
                await self._has_quick.wait()
            first = next(iter(self._quick), None)
            began_at = trio.current_time() if first is None else first.began_at
            await trio.sleep_until(began_at + SLOW_AFTER_S)
            before = trio.current_time() - SLOW_AFTER_S
            for delivery in [each for each in self._quick if each.began_at <= before]:
                self._slow[delivery] = None
                self._remove_quick(delivery)
            while len(self._slow) > SLOW_MAX:
                longest = next(iter(self._slow))
                del self._slow[longest]
                longest.scope.cancel()

    def _remove_quick(self, delivery: RunningDelivery) -> None:
        was_full = not self.quick
        del self._quick[delivery]
        if was_full:
            self._on_free()
