"""An account's payment orders: what a message does to one, and everything that wants writing then.

Orders have no fence of their own: every change of one is a change of its account, in the account's unit of work,
together with the ledger operations it asks for and the event that told of it. So of two processes that hear the
same event at once one is fenced off, reads again, and finds the event known.

An order is read when it is first spoken of and remembered as decided. One whose newest decision is not durable yet
is never let go: its row still says less.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar

import structlog

from holdfast.actors.actor import Reload
from holdfast.actors.order_messages import (
    AttachIntent,
    CreateOrder,
    ExpireOrder,
    HearPayment,
    NoteIntentRefused,
    OrderHeard,
    PaySandboxOrder,
    ReconcileOrder,
    ResolveOrder,
)
from holdfast.actors.order_rows import changed_order_row, new_order_row, synthetic_event_rows
from holdfast.ledger.account import AccountState, decide_credit, decide_reversal
from holdfast.ledger.clock import Now
from holdfast.ledger.ids import new_id
from holdfast.ledger.money import AMOUNT_MICRO_MAX
from holdfast.ledger.operations import Operation
from holdfast.ledger.order_steps import (
    SANDBOX_EVENT_TYPE,
    OrderStep,
    attach_intent,
    create_order,
    on_create_refused,
    on_event,
    on_expiry,
    on_reconciled,
    on_sandbox_callback,
    resolve_held,
)
from holdfast.ledger.orders import LedgerMove, Order
from holdfast.ledger.payment_snapshots import ProviderSnapshot
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.task_progress import clean_message
from holdfast.persistence.database import DatabaseAway
from holdfast.persistence.rows import PaymentEventKeptRow, PaymentEventRow, Row
from holdfast.persistence.units import Unit

log = structlog.get_logger(__name__)

T = TypeVar("T")

NOT_FOUND = Refusal(code="payment_order_not_found", message="There is no such payment order.")


class OrderReads(Protocol):
    """What is read of orders inside a turn."""

    async def order(self, account_id: str, order_id: str) -> Order | None: ...

    async def payment_is_anothers(self, provider: str, payment_id: str, order_id: str) -> bool: ...

    async def event_is_anothers(self, provider: str, event_id: str, order_id: str) -> bool: ...

    async def pending_count(self, account_id: str) -> int: ...


@dataclass(frozen=True, slots=True)
class OrderTurn:
    """What a message comes to. ``moves`` False: answered once the account's version has been confirmed."""

    reply: OrderHeard | Refusal
    moves: bool = False
    operations: tuple[Operation, ...] = ()
    rows: tuple[Row, ...] = ()


class AccountOrders:
    """The orders of one account, for one incarnation of its actor."""

    __slots__ = ("_account_id", "_kept", "_kept_max", "_now", "_open", "_pending_max", "_reads", "_undurable")

    def __init__(
        self, account_id: str, reads: OrderReads, now: Now, *, pending_max: int, kept_max: int = 64
    ) -> None:
        self._account_id = account_id
        self._reads = reads
        self._now = now
        self._pending_max = pending_max
        self._kept_max = kept_max
        self._kept: OrderedDict[str, Order] = OrderedDict()
        self._undurable: dict[Unit, str] = {}
        self._open: Counter[str] = Counter()

    async def decide(self, command: Any, state: AccountState) -> OrderTurn:
        """Decide a message and move ``state`` by what follows from it. Nothing may fail afterwards."""
        if isinstance(command, CreateOrder):
            return await self._create(command)
        order = await self._order(command.order_id)
        if order is None or not _speaks_of(command, order):
            return OrderTurn(NOT_FOUND)
        return await _DECIDERS[type(command)](self, command, order, state)

    def wrote(self, unit: Unit, reply: OrderHeard) -> None:
        """The unit that makes an order's newest decision durable is on its way."""
        order_id = reply.order.order_id
        self._undurable[unit] = order_id
        self._open[order_id] += 1

    def settled(self, unit: Unit) -> None:
        """A unit has ended, whichever way and whatever it was about."""
        order_id = self._undurable.pop(unit, None)
        if order_id is not None:
            self._open[order_id] -= 1
            if not self._open[order_id]:
                del self._open[order_id]

    # ------------------------------------------------------------------------------------------------ the messages

    async def _create(self, command: CreateOrder) -> OrderTurn:
        """Refuses: 1. too many orders that wait to be paid."""
        assert command.request.account_id == self._account_id
        # Counted before the rows are: what becomes durable in between is counted twice rather than not at all.
        waiting = len(self._open)
        waiting += await self._read(lambda: self._reads.pending_count(self._account_id))
        if waiting >= self._pending_max:
            return OrderTurn(
                Refusal(
                    code="too_many_open_orders",
                    message=f"This account has {waiting} unpaid payment orders, as many as it may.",
                    retry_after_s=60,
                )
            )
        order = create_order(command.request)
        self._keep(order)
        return OrderTurn(OrderHeard(order, "applied"), moves=True, rows=(new_order_row(order, self._now()),))

    async def _attach(self, command: AttachIntent, order: Order, state: AccountState) -> OrderTurn:
        return await self._take(order, attach_intent(order, command.payment_id, self._now()), state)

    async def _note_refused(self, command: NoteIntentRefused, order: Order, state: AccountState) -> OrderTurn:
        return await self._take(order, on_create_refused(order, command.reason, self._now()), state)

    async def _hear(self, command: HearPayment, order: Order, state: AccountState) -> OrderTurn:
        now, event = self._now(), command.event
        step = on_event(order, event, now, new_operation_id=_operation_id)
        provider, account_id, order_id = order.request.provider, order.account_id, order.order_id
        row = PaymentEventRow(
            provider, event.event_id, account_id, order_id, event.type, now, step.verdict, command.body
        )
        if step.order is not order and await self._event_is_anothers(order, event.event_id):
            # An id is taken in once. Money that really came is found by the reconciler under an id of its own.
            log.warning(
                "a payment event's id was used for another order", event_id=event.event_id, order_id=order_id
            )
            kept = _kept(row, event_id=f"sha256_{hashlib.sha256(command.body).hexdigest()}")
            return OrderTurn(OrderHeard(order, "duplicate"), rows=(kept,))
        return await self._take(order, step, state, event=row)

    async def _pay_sandbox(self, command: PaySandboxOrder, order: Order, state: AccountState) -> OrderTurn:
        now, request = self._now(), order.request
        step = on_sandbox_callback(order, command.values, now)
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
        return await self._take(order, step, state, event=event)

    async def _expire(self, _command: ExpireOrder, order: Order, state: AccountState) -> OrderTurn:
        return await self._take(order, on_expiry(order, self._now()), state)

    async def _reconcile(self, command: ReconcileOrder, order: Order, state: AccountState) -> OrderTurn:
        now = self._now()
        snapshot = command.snapshot or ProviderSnapshot(unavailable=command.fault or "no answer")
        step = on_reconciled(order, snapshot, now, new_operation_id=_operation_id)
        return await self._take(
            order, step, state, more=synthetic_event_rows(order, step.order, snapshot.events, now)
        )

    async def _resolve(self, command: ResolveOrder, order: Order, state: AccountState) -> OrderTurn:
        decision: Literal["credit", "cancel"] = "credit" if command.credit else "cancel"
        step = resolve_held(
            order,
            decision,
            self._now(),
            reason=clean_message(command.note) or f"operator_{decision}",
            new_operation_id=_operation_id,
            amount_micro=command.amount_micro,
        )
        return await self._take(order, step, state)

    # ------------------------------------------------------------------------------------------------- the effects

    async def _take(
        self,
        order: Order,
        step: OrderStep | Refusal,
        state: AccountState,
        *,
        event: PaymentEventRow | None = None,
        more: tuple[Row, ...] = (),
    ) -> OrderTurn:
        """Put a step into effect.

        Refuses: 1. what the step itself is; 2. ``provider_event_mismatch`` (the payment stands for another order);
        3. ``amount_too_large`` (the balance would pass the limit). The event is kept then, without effect.
        """
        if isinstance(step, OrderStep):
            if step.order is order:
                return OrderTurn(OrderHeard(order, step.verdict))
            refusal = await self._refusal_of(order, step, state)
        else:
            refusal = step
        if refusal is not None:
            return OrderTurn(refusal, rows=() if event is None else (_kept(event, event_id=event.event_id),))
        assert isinstance(step, OrderStep)
        operations = tuple(_post(order, move, state, step.order.updated_at) for move in step.postings)
        _tell_if_odd(order, step.order)
        self._keep(step.order)
        rows: list[Row] = [changed_order_row(step.order, self._now()), *more]
        if event is not None:
            rows.append(event)
        return OrderTurn(OrderHeard(step.order, step.verdict), moves=True, operations=operations, rows=tuple(rows))

    async def _refusal_of(self, order: Order, step: OrderStep, state: AccountState) -> Refusal | None:
        payment_id = step.order.state.payment_id
        if payment_id is not None and payment_id != order.state.payment_id:
            provider, order_id = order.request.provider, order.order_id
            is_anothers = any(
                each.state.payment_id == payment_id and each.order_id != order_id for each in self._kept.values()
            ) or await self._read(lambda: self._reads.payment_is_anothers(provider, payment_id, order_id))
            if is_anothers:
                return Refusal(
                    code="provider_event_mismatch", message="The payment belongs to another payment order."
                )
        coming = sum(move.amount_micro for move in step.postings if move.kind == "credit")
        if coming and state.balance_micro + coming > AMOUNT_MICRO_MAX:
            return Refusal(code="amount_too_large", message="The balance would pass the largest one allowed.")
        return None

    async def _event_is_anothers(self, order: Order, event_id: str) -> bool:
        """Whether another order has taken in an event with this id; one of this account's may be undurable yet."""
        provider, order_id = order.request.provider, order.order_id
        return any(
            event_id in each.state.event_ids and each.order_id != order_id and each.request.provider == provider
            for each in self._kept.values()
        ) or await self._read(lambda: self._reads.event_is_anothers(provider, event_id, order_id))

    # -------------------------------------------------------------------------------------------------- the memory

    async def _order(self, order_id: str) -> Order | None:
        order = self._kept.get(order_id)
        if order is None:
            order = await self._read(lambda: self._reads.order(self._account_id, order_id))
            if order is not None:
                self._keep(order)
        return order

    async def _read(self, read: Callable[[], Awaitable[T]]) -> T:
        """Read inside a turn; while the database is away the message waits for the next incarnation."""
        try:
            return await read()
        except DatabaseAway as away:
            raise Reload(str(away)) from away

    def _keep(self, order: Order) -> None:
        self._kept[order.order_id] = order
        self._kept.move_to_end(order.order_id)
        if len(self._kept) > self._kept_max:
            durable = [each for each in self._kept if each != order.order_id and each not in self._open]
            for order_id in durable[: len(self._kept) - self._kept_max]:
                del self._kept[order_id]


_Decider = Callable[[AccountOrders, Any, Order, AccountState], Awaitable[OrderTurn]]

_DECIDERS: dict[type[Any], _Decider] = {
    AttachIntent: AccountOrders._attach,
    NoteIntentRefused: AccountOrders._note_refused,
    HearPayment: AccountOrders._hear,
    PaySandboxOrder: AccountOrders._pay_sandbox,
    ExpireOrder: AccountOrders._expire,
    ReconcileOrder: AccountOrders._reconcile,
    ResolveOrder: AccountOrders._resolve,
}

ORDER_COMMANDS: tuple[type[Any], ...] = (CreateOrder, *_DECIDERS)


def _speaks_of(command: Any, order: Order) -> bool:
    """Whether the order is of the kind that the command is about."""
    if isinstance(command, ExpireOrder | ResolveOrder):
        return True
    return order.request.provider == ("sandbox" if isinstance(command, PaySandboxOrder) else "cardprovider")


def _operation_id() -> str:
    return new_id("op")


def _post(order: Order, move: LedgerMove, state: AccountState, at: datetime) -> Operation:
    """One ledger move of an order as an operation, which cannot be refused any more."""
    decide = decide_credit if move.kind == "credit" else decide_reversal
    operation = decide(
        state,
        operation_id=move.operation_id,
        amount_micro=move.amount_micro,
        source=order.request.provider,
        reference=order.order_id,
        reason=move.reason,
        at=at,
    )
    assert isinstance(operation, Operation)
    state.apply(operation)
    return operation


def _kept(event: PaymentEventRow, *, event_id: str) -> PaymentEventKeptRow:
    return PaymentEventKeptRow(*event._replace(event_id=event_id, verdict="refused"))


def _tell_if_odd(before: Order, after: Order) -> None:
    if after.statuses.risk_status == "mismatch" != before.statuses.risk_status:
        log.warning("a payment does not fit its order", order_id=after.order_id, status=after.status)
