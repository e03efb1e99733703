"""Builders of tasks and provider updates, and of payment orders and card events, for the tests of the ledger."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple

import msgspec
import pytest
from tests.made_requests import make_order_request, make_request, make_terms

from holdfast.ledger.catalog.terms import Deadlines, Hosting, PricingMode, Rate, Terms, Units
from holdfast.ledger.orders.decisions import create_order, on_event, resolve_held
from holdfast.ledger.orders.facts import PaymentEvent
from holdfast.ledger.orders.order import (
    LedgerMove,
    Order,
    OrderResult,
    StateEntry,
)
from holdfast.ledger.refusals import Refusal, StepVerdict
from holdfast.ledger.tasks.decisions import on_wake
from holdfast.ledger.tasks.dispatch import on_submitted
from holdfast.ledger.tasks.provider_update import Output, ProviderUpdate, ReportedUsage
from holdfast.ledger.tasks.provider_updates import on_update
from holdfast.ledger.tasks.task import Task, accept_task
from holdfast.ledger.tasks.transitions import Context, ProviderTraits
from holdfast.providers.card.events import parse_card_event

from .task_steps import MakeTask, MakeUpdate, at, task_after

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
ResolvedAs = Literal["credit", "cancel"]
HOSTING = Hosting()
DEADLINES = Deadlines()


def build_terms(
    *,
    mode: PricingMode = "per_image",
    unit: str = "image",
    units: int = 4,
    hold_micro: int | None = None,
    hosting: Hosting = HOSTING,
    deadlines: Deadlines = DEADLINES,
) -> Terms:
    count = Units(tokens_in=units, tokens_out=units) if mode == "per_token" else Units(units=units)
    amount_micro = units * 60_000
    rate = Rate(mode=mode, unit=unit, unit_price="0.06", input_price="0.001", output_price="0.002")
    return make_terms(
        amount_micro,
        units=count,
        rate=rate,
        basis=f"{mode}: {units} x 0.06",
        upstream_model="image-1",
        hold_micro=amount_micro if hold_micro is None else hold_micro,
        hosting=hosting,
        deadlines=deadlines,
    )


@pytest.fixture
def noon() -> datetime:
    return NOON


@pytest.fixture
def traits() -> ProviderTraits:
    """Return a provider that supports everything."""
    return ProviderTraits(idempotent_submit=True, polls=True, cancels=True)


@pytest.fixture
def make_task() -> Callable[..., Task]:
    """Build a queued task accepted at noon; the keywords are those of its terms."""

    def make(*, webhook_url: str | None = None, **terms: Any) -> Task:
        return accept_task(
            "acct_1",
            "task_01",
            make_request(
                build_terms(**terms),
                input={"prompt": "a lighthouse", "n": 4, "size": 1.5, "tags": ["a", None, True]},
                api_key_id="key_1",
                metadata={"order": "7"},
                webhook_url=webhook_url,
            ),
            NOON,
        )

    return make


@pytest.fixture
def make_acked(make_task: Callable[..., Task], traits: ProviderTraits) -> Callable[..., Task]:
    """Build a task whose first attempt the provider accepted a second after noon."""

    def make(**options: Any) -> Task:
        sent = on_wake(make_task(**options), Context(NOON, "op_1"), traits=traits).task
        assert sent is not None
        acked = on_submitted(sent, 1, "job-1", NOON + timedelta(seconds=1)).task
        assert acked is not None
        return acked

    return make


@pytest.fixture
def make_update() -> Callable[..., ProviderUpdate]:
    """Build updates of the first attempt, each with its own event id; ``output_count`` is a number of outputs."""
    numbers = itertools.count(1)

    def make(status: str, *, output_count: int = 0, **fields: Any) -> ProviderUpdate:
        base: dict[str, Any] = {
            "source": "callback",
            "provider": "studio",
            "event_id": f"evt_{next(numbers)}",
            "request_id": "task_01",
            "attempt": 1,
            "status": status,
            "outputs": tuple(Output(index=n, url=f"https://studio.test/{n}.png") for n in range(output_count)),
        }
        update = ProviderUpdate(**(base | fields))
        assert msgspec.json.decode(msgspec.json.encode(update), type=ProviderUpdate) == update
        return update

    return make


class Step(NamedTuple):
    """An order after a decision, and what its state gained."""

    order: Order
    verdict: StepVerdict
    moves: tuple[LedgerMove, ...]
    entries: tuple[StateEntry, ...]


def four(order: Order) -> tuple[str, str, str, str]:
    """Return all statuses but the reconcile status."""
    now = order.statuses
    return (now.status, now.processing_status, now.reversal_status, now.risk_status)


def cents(order: Order) -> list[int]:
    """Return the order's operations, in cents."""
    return [move.signed_micro // 10_000 for move in order.state.moves]


class CardProvider:
    """A card provider with one order: each method returns one webhook as the service reads it.

    Amounts are in cents, as on the wire. The clock advances by a second with each event.
    """

    def __init__(self) -> None:
        self.noon = NOON
        self._events = itertools.count(1)
        self._operations = itertools.count(1)

    def order(self, cents: int = 1000, **request: Any) -> Order:
        """Return a new order of this amount, created at noon and valid for a day."""
        usual: dict[str, Any] = {
            "amount_micro": cents * 10_000,
            "operation_id": "op_credit",
            "provider_account_id": "acct_card",
            "livemode": False,
        }
        return create_order(make_order_request("ord_1", "acct_1", NOON, **usual | request))

    def new_operation_id(self) -> str:
        """Return the next operation id."""
        return f"op_{next(self._operations)}"

    def read(self, kind: str, found: dict[str, Any], **event: Any) -> PaymentEvent:
        """Return the event as the service reads it."""
        number = next(self._events)
        body = {"id": f"evt_{number}", "type": kind, "created": 1_700_000_000 + number, "data": {"object": found}}
        card = parse_card_event(msgspec.json.encode(body | event))
        assert isinstance(card, PaymentEvent)
        return card

    def event(self, kind: str, found: dict[str, Any], **event: Any) -> PaymentEvent:
        """Return the facts of an event."""
        card = self.read(kind, found, **event)
        assert card.is_handled
        return card

    def intent(self, **fields: Any) -> dict[str, Any]:
        """Return an intent of ten dollars, paid by its one charge."""
        return {
            "id": "pi_1",
            "object": "payment_intent",
            "amount": 1000,
            "amount_received": 1000,
            "currency": "usd",
            "status": "succeeded",
            "livemode": False,
            "latest_charge": "ch_1",
            "metadata": {"order_id": "ord_1"},
        } | fields

    def charge(self, **fields: Any) -> dict[str, Any]:
        """Return the charge of that intent."""
        return {
            "id": "ch_1",
            "object": "charge",
            "amount": 1000,
            "amount_captured": 1000,
            "amount_refunded": 0,
            "currency": "usd",
            "paid": True,
            "captured": True,
            "status": "succeeded",
            "livemode": False,
            "payment_intent": "pi_1",
            "metadata": {"order_id": "ord_1"},
        } | fields

    def refund_object(self, name: str, status: str, cents: int, **fields: Any) -> dict[str, Any]:
        """Return a refund of the charge."""
        base = {"id": name, "object": "refund", "status": status, "amount": cents, "currency": "usd"}
        return base | {"charge": "ch_1", "payment_intent": "pi_1"} | fields

    def dispute_object(
        self, status: str, cents: int = 1000, *, moves: tuple[int, ...] = (), **fields: Any
    ) -> dict[str, Any]:
        """Return a dispute of the charge; ``moves`` are the gross cents of its balance transactions."""
        lines = [self.balance(f"txn_dp_{n}", move, kind="dispute") for n, move in enumerate(moves, 1)]
        base = {"id": "dp_1", "object": "dispute", "status": status, "amount": cents, "currency": "usd"}
        return base | {"charge": "ch_1", "payment_intent": "pi_1", "balance_transactions": lines} | fields

    def balance(self, name: str, cents: int, *, fee: int = 0, kind: str = "charge") -> dict[str, Any]:
        """Return a balance transaction."""
        category = "dispute_reversal" if kind == "dispute" and cents > 0 else kind
        base = {"id": name, "object": "balance_transaction", "amount": cents, "fee": fee, "net": cents - fee}
        return base | {
            "currency": "usd",
            "type": "adjustment" if kind == "dispute" else kind,
            "reporting_category": category,
            "available_on": 1_700_100_000,
            "exchange_rate": None,
        }

    def paid(self, **fields: Any) -> PaymentEvent:
        return self.event("payment_intent.succeeded", self.intent(**fields))

    def charged(self, **fields: Any) -> PaymentEvent:
        return self.event("charge.succeeded", self.charge(**fields))

    def attempt(self, what: str, *, created: int | None = None, **fields: Any) -> PaymentEvent:
        """``what``: processing, requires_action, payment_failed or canceled."""
        event = {} if created is None else {"created": created}
        status, error = what, None
        if what == "payment_failed":
            status, error = "requires_payment_method", {"type": "api_error"}
        unpaid = {"status": status, "last_payment_error": error, "amount_received": 0}
        return self.event(f"payment_intent.{what}", self.intent(**unpaid | fields), **event)

    def refund(self, name: str, status: str, cents: int, *, event: str = "created") -> PaymentEvent:
        return self.event(f"refund.{event}", self.refund_object(name, status, cents))

    def charge_refunded(self, total_cents: int, **fields: Any) -> PaymentEvent:
        return self.event("charge.refunded", self.charge(amount_refunded=total_cents, **fields))

    def dispute(self, what: str, status: str, cents: int = 1000, **options: Any) -> PaymentEvent:
        """``what``: created, updated, closed, funds_withdrawn or funds_reinstated."""
        return self.event(f"charge.dispute.{what}", self.dispute_object(status, cents, **options))

    def warning(self) -> PaymentEvent:
        found = {"id": "issfr_1", "object": "radar.early_fraud_warning", "charge": "ch_1", "payment_intent": "pi_1"}
        return self.event("radar.early_fraud_warning.created", found)

    def review(self, what: str, reason: str) -> PaymentEvent:
        found = {"id": "prv_1", "object": "review", "reason": reason, "payment_intent": "pi_1", "charge": None}
        return self.event(f"review.{what}", found)

    def step(self, order: Order, event: PaymentEvent, now: datetime = NOON) -> Step:
        """Apply one event, and check the invariants: net amount, history, operations, JSON form."""
        return self.check(order, on_event(order, event, now, new_operation_id=self.new_operation_id))

    def check(self, before: Order, result: OrderResult) -> Step:
        """Check the invariants of every decision about an order, and return what it changed."""
        after = result.order
        known = before.state
        moves = after.state.moves[len(known.moves) :]
        step = Step(after, result.verdict, moves, after.state.history[len(known.history) :])
        assert 0 <= after.net_micro <= after.request.amount_micro
        assert after.state.history[-1].statuses == after.statuses
        assert after.state.history == (*before.state.history, *step.entries)
        assert after.state.moves == (*before.state.moves, *step.moves)
        assert len(set(after.ledger_operation_refs)) == len(after.state.moves)
        assert len(step.entries) == max(len(step.moves), int(after.statuses != before.statuses))
        assert after.version == before.version + (after is not before)
        assert (after == before) == (after is before)
        assert msgspec.json.decode(msgspec.json.encode(after), type=Order) == after
        return step

    def resolve(
        self, order: Order, decision: ResolvedAs, amount_micro: int | None = None, *, reason: str = "ok"
    ) -> OrderResult | Refusal:
        """Decide about a held order as an operator does."""
        return resolve_held(
            order,
            decision,
            self.noon,
            reason=reason,
            amount_micro=amount_micro,
            new_operation_id=self.new_operation_id,
        )

    def apply(self, order: Order, *events: PaymentEvent) -> Order:
        """Return the order after all these events, applied at noon."""
        for event in events:
            order = self.step(order, event).order
        return order


@pytest.fixture(scope="session")
def provider() -> CardProvider:
    return CardProvider()


@pytest.fixture
def make_hosting(make_acked: MakeTask, make_update: MakeUpdate) -> MakeTask:
    """Build a task whose provider reported ``output_count`` outputs, five seconds after noon."""

    def make(*, output_count: int = 4, usage: ReportedUsage | None = None, **options: Any) -> Task:
        task = make_acked(**options)
        return task_after(
            on_update(
                task, make_update("succeeded", output_count=output_count, usage=usage), Context(at(task, 5), "op_1")
            )
        )

    return make
