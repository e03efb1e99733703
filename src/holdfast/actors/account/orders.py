"""An account's payment orders: what each message changes, and the rows and operations to write for it.

Orders have no fence of their own: every change of one is a change of its account, in the account's unit of work,
together with the ledger operations it requires and the event that caused it. So of two processes that receive the
same event at once one fails its fence, reloads, and finds the event applied.

An order is loaded when it is first addressed and cached as decided. One whose newest decision is not durable yet is
never evicted: its row is still the old one.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Literal, assert_never

import msgspec
import structlog

from holdfast.actors.account.messages import (
    AttachIntent,
    CreateOrder,
    ExpireOrder,
    OrderCommand,
    PaySandboxOrder,
    ReceivePaymentEvent,
    ReconcileOrder,
    RecordIntentRefused,
    ResolveOrder,
)
from holdfast.actors.account.units import AccountUnits
from holdfast.actors.runtime.journaled import Commit, LogEvent, Turn
from holdfast.ledger.alerts.account_events import PaymentCredited, PaymentReversed, TopUpFailed
from holdfast.ledger.credit.account import (
    AccountState,
    OperationDetails,
    decide_bonus,
    decide_bonus_void,
    decide_credit,
    decide_reversal,
)
from holdfast.ledger.credit.operations import Operation, OperationKind
from holdfast.ledger.orders.decisions import (
    SANDBOX_EVENT_TYPE,
    attach_intent,
    create_order,
    on_create_refused,
    on_event,
    on_expiry,
    on_foreign_payment,
    on_reconciled,
    on_sandbox_callback,
    resolve_held,
)
from holdfast.ledger.orders.facts import provider_objects_of
from holdfast.ledger.orders.order import BonusMove, LedgerMove, Order, OrderResult
from holdfast.ledger.public_types import counted
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.progress import clean_message
from holdfast.ledger.values import Now, format_amount, new_id
from holdfast.persistence.journal.units import Unit
from holdfast.persistence.queries.orders import (
    are_of_another_order,
    order_of_account,
    pending_order_count,
    read_for_event,
)
from holdfast.persistence.records.resulting_rows import payment_rows, synthetic_event_rows
from holdfast.persistence.records.rows import PaymentEventRow, Row
from holdfast.persistence.server.database import Database

log = structlog.get_logger(__name__)

NOT_FOUND = Refusal(code="payment_order_not_found", message="The payment order does not exist.")
OF_ANOTHER_ORDER = Refusal(code="provider_event_mismatch", message="The payment belongs to another payment order.")

BONUS_REASON = "bonus of the order"
BONUS_VOIDED_REASON = "bonus voided with the payment"
NEW_OPERATION_ID = partial(new_id, "op")
CACHED_MAX = 64
"""How many orders are cached, besides those whose newest decision is not durable yet."""


class AccountOrders:
    """The orders of one account, for one incarnation of its actor."""

    __slots__ = ("_cache", "_database", "_now", "_pending_max", "_undurable", "_units")

    def __init__(self, units: AccountUnits, database: Database, now: Now, *, pending_max: int) -> None:
        self._units = units
        self._database = database
        self._now = now
        self._pending_max = pending_max
        self._cache: OrderedDict[str, Order] = OrderedDict()
        self._undurable: dict[Unit, str] = {}
        """The order that each unit changes, until the unit has ended."""

    async def decide(self, command: OrderCommand) -> Turn[OrderResult]:
        """Decide a command. Refuses: 1. ``payment_order_not_found``; 2. what each decision refuses."""
        if isinstance(command, CreateOrder):
            return await self._create(command)
        if isinstance(command, ReceivePaymentEvent):
            return await self._receive_event(command)
        order = await self._order(command.order_id)
        if order is None or not _is_for(command, order):
            return self._units.confirm(NOT_FOUND)
        now = self._now()
        match command:
            case AttachIntent(payment_id=payment_id):
                return await self._apply(command, order, attach_intent(order, payment_id, now))
            case RecordIntentRefused(reason=reason):
                return await self._apply(command, order, on_create_refused(order, reason, now))
            case PaySandboxOrder():
                return await self._pay_sandbox(command, order, now)
            case ExpireOrder():
                return await self._apply(command, order, on_expiry(order, now))
            case ReconcileOrder():
                return await self._reconcile(command, order, now)
            case ResolveOrder():
                return await self._resolve(command, order, now)
            case _:
                assert_never(command)

    def unit_ended(self, unit: Unit) -> None:
        """Record that a unit has ended, with any result."""
        self._undurable.pop(unit, None)

    # ------------------------------------------------------------------------------------------------ the messages

    async def _create(self, command: CreateOrder) -> Turn[OrderResult]:
        """Refuses: 1. ``too_many_open_orders``."""
        account_id = self._units.state.account_id
        assert command.request.account_id == account_id
        # Counted before the rows: an order that becomes durable in between is counted twice rather than not at all.
        waiting = len(set(self._undurable.values()))
        waiting += await self._database.read(pending_order_count, account_id)
        if waiting >= self._pending_max:
            refusal = Refusal(
                code="too_many_open_orders",
                message=f"The account has {counted(waiting, 'unpaid payment order')}, the most allowed.",
                retry_after_s=60,
            )
            return self._units.refuse(command, refusal)
        order = create_order(command.request)
        log_event = _log_event("order created", order, amount_micro=order.request.amount_micro)
        rows = (order, *self._units.noted(command, "order_created", order.order_id))
        return self._change(command, OrderResult(order, "applied"), rows=rows, log_event=log_event)

    async def _receive_event(self, command: ReceivePaymentEvent) -> Turn[OrderResult]:
        event, order_id, now = command.event, command.order_id, self._now()
        order, is_event_taken, taken_ids = self._cache.get(order_id), False, frozenset[str]()
        if order is None or event.event_id not in order.state.event_ids:
            account_id, names = self._units.state.account_id, provider_objects_of(event.facts)
            found = await self._database.read(read_for_event, account_id, order_id, event.event_id, names)
            if found is not None:
                stored, is_event_taken, taken_ids = found
                # A cached one may be newer. What was read is cached by its change alone, after the checks, since
                # these need the cached orders that were not durable when it was read.
                order = order or stored
        if order is None or not _is_for(command, order):
            return self._units.confirm(NOT_FOUND)
        provider = order.request.provider
        result = on_event(order, event, now, new_operation_id=NEW_OPERATION_ID)
        row = PaymentEventRow(
            provider, event.event_id, order.account_id, order_id, event.type, now, result.verdict, command.body
        )
        if result.order is not order and (is_event_taken or self._has_applied_to_another(order, event.event_id)):
            # An event id is applied once. If the money was paid, the reconciler finds it under a synthetic id.
            log.warning(
                "a payment event's id was used for another order",
                event_id=event.event_id,
                order_id=order_id,
                account_id=order.account_id,
                provider=provider,
            )
            unapplied = msgspec.structs.replace(
                row, event_id=f"sha256_{hashlib.sha256(command.body).hexdigest()}", verdict="refused"
            )
            return self._units.confirm(OrderResult(order, "duplicate"), (unapplied,))
        return await self._apply(command, order, result, event=row, taken_ids=taken_ids)

    async def _pay_sandbox(self, command: PaySandboxOrder, order: Order, now: datetime) -> Turn[OrderResult]:
        request = order.request
        result = on_sandbox_callback(order, command.values, now)
        assert request.sandbox_event_id is not None
        event = PaymentEventRow(
            request.provider,
            request.sandbox_event_id,
            order.account_id,
            order.order_id,
            f"{SANDBOX_EVENT_TYPE}.{command.values.status}",
            now,
            "applied",
            command.body,
        )
        return await self._apply(command, order, result, event=event)

    async def _reconcile(self, command: ReconcileOrder, order: Order, now: datetime) -> Turn[OrderResult]:
        result = on_reconciled(order, command.snapshot, now, new_operation_id=NEW_OPERATION_ID)
        if await self._names_another_orders(order, result.order):
            log.warning(
                "the provider's record of an order names another order's payment",
                order_id=order.order_id,
                account_id=order.account_id,
                provider=order.request.provider,
            )
            return await self._apply(command, order, on_foreign_payment(order, now, source="reconcile"))
        events = () if command.snapshot is None else command.snapshot.events
        more = synthetic_event_rows(order, result.order, events, now)
        return await self._apply(command, order, result, more=more, taken_ids=frozenset())

    async def _resolve(self, command: ResolveOrder, order: Order, now: datetime) -> Turn[OrderResult]:
        decision: Literal["credit", "cancel"] = "credit" if command.credit else "cancel"
        result = resolve_held(
            order,
            decision,
            now,
            reason=clean_message(command.note) or f"operator_{decision}",
            new_operation_id=NEW_OPERATION_ID,
            amount_micro=command.amount_micro,
        )
        return await self._apply(command, order, result)

    # ------------------------------------------------------------------------------------------------- the effects

    async def _apply(
        self,
        command: OrderCommand,
        order: Order,
        result: OrderResult | Refusal,
        *,
        event: PaymentEventRow | None = None,
        more: tuple[Row, ...] = (),
        taken_ids: frozenset[str] | None = None,
    ) -> Turn[OrderResult]:
        """Commit what a decision changed.

        Refuses: 1. the decision if it is a refusal; 2. ``provider_event_mismatch`` (a payment or charge of
        another order; ``taken_ids`` are those among the new ones, if they were read in this turn); 3.
        ``amount_too_large`` (the balance would exceed the limit). The event is then stored as refused.
        """
        if isinstance(result, Refusal):
            return self._units.confirm(result, _refused(event))
        if result.order is order:
            return self._units.confirm(result)
        after = result.order
        if await self._names_another_orders(order, after, taken_ids):
            if order.net_micro and order.statuses.reconcile_status != "mismatch":
                return self._mark_mismatch(command, order, after.updated_at, _refused(event))
            return self._units.confirm(OF_ANOTHER_ORDER, _refused(event))
        moves = after.state.moves[len(order.state.moves) :]
        at = after.updated_at
        operations = _post(after, moves, self._units.state, at, expires_at=self._units.paid_until(at))
        if isinstance(operations, Refusal):
            return self._units.confirm(operations, _refused(event))
        after = _with_bonus(after, operations)
        result = OrderResult(after, result.verdict)
        off_reason = None
        if order.request.origin == "top_up":
            assert self._units.top_up is not None
            off_reason = self._units.top_up.order_changed(order, after)
            if off_reason is not None:
                amount = format_amount(order.request.amount_micro)
                failed = TopUpFailed(order.account_id, order.order_id, amount, off_reason)
                more = (*more, *self._units.event_rows(failed, after.updated_at))
        if after.statuses.risk_status == "mismatch" != order.statuses.risk_status:
            log.warning(
                "a payment does not match its order",
                order_id=after.order_id,
                account_id=after.account_id,
                provider=after.request.provider,
                status=after.status,
            )
        rows: list[Row] = [after, *payment_rows(order, after), *more]
        if event is not None:
            rows.append(event)
        rows += self._event_rows(after, moves)
        log_event = _log_event_of(order, after, moves, off_reason)
        return self._change(command, result, operations=operations, rows=tuple(rows), log_event=log_event)

    def _event_rows(self, order: Order, moves: Sequence[LedgerMove]) -> list[Row]:
        """Return the account's events of an order's moves: one of what they give, one of what they take back."""
        credit_micro, reversed_micro = _sums(moves)
        state, at = self._units.state, order.updated_at
        rows: list[Row] = []
        for event, amount_micro in ((PaymentCredited, credit_micro), (PaymentReversed, reversed_micro)):
            if amount_micro:
                balance, amount = format_amount(state.balance_micro), format_amount(amount_micro)
                rows += self._units.event_rows(event(state.account_id, order.order_id, amount, balance), at)
        return rows

    def _mark_mismatch(
        self, command: OrderCommand, order: Order, now: datetime, refused: tuple[PaymentEventRow, ...]
    ) -> Commit[Refusal]:
        """Refuse an event of a credited order that names another order's payment: it may have paid both."""
        log.warning(
            "a payment event names another order's payment",
            event_ids=[row.event_id for row in refused],
            order_id=order.order_id,
            account_id=order.account_id,
            provider=order.request.provider,
        )
        marked = on_foreign_payment(order, now, source="provider_webhook").order
        self._cache_order(marked)
        commit = self._units.change(command, OF_ANOTHER_ORDER, rows=(marked, *refused))
        self._undurable[commit.unit] = order.order_id
        return commit

    def _change(
        self,
        command: OrderCommand,
        result: OrderResult,
        *,
        operations: tuple[Operation, ...] = (),
        rows: tuple[Row, ...],
        log_event: LogEvent | None = None,
    ) -> Commit[OrderResult]:
        self._cache_order(result.order)
        commit = self._units.change(command, result, operations=operations, rows=rows, log_event=log_event)
        self._undurable[commit.unit] = result.order.order_id
        return commit

    async def _names_another_orders(
        self, order: Order, after: Order, taken_ids: frozenset[str] | None = None
    ) -> bool:
        """Whether a decision names a payment or charge that another order was the first to name, durable or not.

        ``taken_ids`` are those of the new ones that are of a durable order; None if that is to be read.
        """
        provider, order_id = order.request.provider, order.order_id
        new = set(after.state.provider_object_ids).difference(order.state.provider_object_ids)
        return bool(new) and (
            any(
                not new.isdisjoint(each.state.provider_object_ids) and each.order_id != order_id
                for each in self._cache.values()
            )
            or (
                await self._database.read(are_of_another_order, provider, new, order_id)
                if taken_ids is None
                else not new.isdisjoint(taken_ids)
            )
        )

    def _has_applied_to_another(self, order: Order, event_id: str) -> bool:
        """Whether an event with this id was applied to another order that is cached, durable or not."""
        provider, order_id = order.request.provider, order.order_id
        return any(
            event_id in each.state.event_ids and each.order_id != order_id and each.request.provider == provider
            for each in self._cache.values()
        )

    # --------------------------------------------------------------------------------------------------- the cache

    async def _order(self, order_id: str) -> Order | None:
        order = self._cache.get(order_id)
        if order is None:
            order = await self._database.read(order_of_account, self._units.state.account_id, order_id)
            if order is not None:
                self._cache_order(order)
        return order

    def _cache_order(self, order: Order) -> None:
        self._cache[order.order_id] = order
        self._cache.move_to_end(order.order_id)
        if len(self._cache) > CACHED_MAX:
            undurable = {order.order_id, *self._undurable.values()}
            durable = [each for each in self._cache if each not in undurable]
            for order_id in durable[: len(self._cache) - CACHED_MAX]:
                del self._cache[order_id]


def _is_for(command: OrderCommand, order: Order) -> bool:
    """Whether the command applies to orders of this provider."""
    if isinstance(command, ExpireOrder | ResolveOrder):
        return True
    return order.request.provider == ("sandbox" if isinstance(command, PaySandboxOrder) else "cardprovider")


def _log_event(event: str, order: Order, **fields: str | int | None) -> LogEvent:
    about = {"order_id": order.order_id, "account_id": order.account_id, "provider": order.request.provider}
    return LogEvent(event, {**about, **fields})


def _log_event_of(
    before: Order, after: Order, moves: Sequence[LedgerMove], off_reason: str | None
) -> LogEvent | None:
    """Return the event that a decision is: credit given or taken back, or another status.

    ``off_reason`` is why it has switched the account's automatic top-up off.
    """
    credit_micro, reversed_micro = _sums(moves)
    if credit_micro or reversed_micro:
        event = "order reversed" if reversed_micro else "order credited"
        amounts = {"credited_micro": credit_micro or None, "reversed_micro": reversed_micro or None}
        return _log_event(event, after, **amounts, top_up_off=off_reason)
    attempt = after.state.facts.attempt
    if after.status != before.status:
        return _log_event(
            f"order {after.status}",
            after,
            amount_micro=after.request.amount_micro,
            reason=None if attempt is None else attempt.reason,
            top_up_off=off_reason,
        )
    return None if off_reason is None else _log_event("top-up switched off", after, top_up_off=off_reason)


def _sums(moves: Sequence[LedgerMove]) -> tuple[int, int]:
    """Return the credit that the moves give, and what they take back."""
    credit_micro = sum(move.amount_micro for move in moves if move.kind == "credit")
    return credit_micro, sum(move.amount_micro for move in moves) - credit_micro


def _post(
    order: Order, moves: Sequence[LedgerMove], state: AccountState, at: datetime, *, expires_at: datetime | None
) -> tuple[Operation, ...] | Refusal:
    """Apply an order's moves to the account, and what follows for its bonus. Refuses as the ledger does.

    What is credited expires then. Only the first move can be refused, and it is no reversal, so that nothing is
    applied then: a credit is followed by reversals only. A bonus is voided before its payment is taken back, so
    that the payment is not taken from what is voided. It is given only with money that comes: what is taken back
    gives none, also if less of the bonus was given than is due.
    """
    operations: list[Operation] = []
    bonus_micro = order.bonus_due_micro - order.bonus_micro if moves else 0
    about = OperationDetails(operation_id=NEW_OPERATION_ID(), reference=order.order_id, reason=BONUS_REASON, at=at)
    if bonus_micro < 0 and moves[0].kind == "reversal":
        about["reason"] = BONUS_VOIDED_REASON
        voided = decide_bonus_void(state, amount_micro=-bonus_micro, **about)
        if voided is not None:
            state.apply(voided)
            operations.append(voided)
    for move in moves:
        decide = decide_reversal if move.kind == "reversal" else partial(decide_credit, expires_at=expires_at)
        operation = decide(
            state,
            operation_id=move.operation_id,
            amount_micro=move.amount_micro,
            source=order.request.provider,
            reference=order.order_id,
            reason=move.reason,
            at=at,
        )
        if isinstance(operation, Refusal):
            assert not operations
            return operation
        state.apply(operation)
        operations.append(operation)
    bonus_until = order.bonus_expires_at
    if bonus_micro > 0 and moves[0].kind == "credit" and bonus_until is not None:
        given = decide_bonus(state, amount_micro=bonus_micro, expires_at=bonus_until, **about)
        if given is not None:
            state.apply(given)
            operations.append(given)
    return tuple(operations)


def _with_bonus(order: Order, operations: Sequence[Operation]) -> Order:
    """Return the order with those of its operations that are of its bonus."""
    moves = tuple(
        BonusMove(amount_micro=each.amount_micro, operation_id=each.operation_id)
        for each in operations
        if each.kind in (OperationKind.GRANT, OperationKind.ADJUSTMENT)
    )
    if not moves:
        return order
    state = msgspec.structs.replace(order.state, bonus_moves=(*order.state.bonus_moves, *moves))
    return msgspec.structs.replace(order, state=state)


def _refused(event: PaymentEventRow | None) -> tuple[PaymentEventRow, ...]:
    """Return the row of an event that was refused."""
    return () if event is None else (msgspec.structs.replace(event, verdict="refused"),)
