"""Payment orders without webhooks: the workers alone bring each to its end, against the in-tree card provider."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from sqlalchemy import text
from tests.running_bank import RunningBank
from tests.sweepers import sweeper_of

from holdfast.actors.account.messages import (
    AttachIntent,
    CreateOrder,
    ExpireOrder,
    ReceivePaymentEvent,
)
from holdfast.actors.runtime.faults import OutcomeUnknown, Unavailable
from holdfast.actors.unfenced import UnmatchedEventStore
from holdfast.actors.workers.order_checks import OrderChecks
from holdfast.actors.workers.reconciler import OrderSweeper, OrderWorker, Reconciler
from holdfast.ledger.orders.facts import OrderFacts, PaymentAttempt
from holdfast.ledger.orders.order import Order, OrderResult
from holdfast.ledger.values import utc_now
from holdfast.persistence.journal.units import NotWritten, Unit, UnitResult, Unknown
from holdfast.persistence.queries.orders import order_by_id
from holdfast.providers.card.base import CardProvider
from holdfast.supervision.tree import RunningChild

from .order_checks import BankSetup, silent_bank

CREDIT = 1_000_000


@pytest.fixture
async def bank(tmp_path: Path) -> AsyncIterator[RunningBank]:
    """A card emulator whose webhooks go nowhere."""
    async with silent_bank(tmp_path / "card") as bank:
        yield bank


@dataclass
class Setup(BankSetup):
    """An account with its orders, the card emulator, and workers that are run step by step."""

    payments: Any

    def order_checks(self, card: CardProvider | None) -> OrderChecks:
        return OrderChecks(
            database=self.database, accounts=self.system.accounts, card=card, env="development", now=utc_now
        )

    def worker(self, kind: type[OrderWorker], *, card: bool = True) -> OrderWorker:
        order_checks = self.order_checks(self.bank.provider if card else None)
        return kind(database=self.database, order_checks=order_checks)

    async def order(self, provider: str = "cardprovider", *, intent: bool = True, **fields: Any) -> Order:
        """Create an order; a card order gets an intent unless ``intent`` is False."""
        create = CreateOrder(self.payments.request(self.account_id, provider, **fields))
        created = await self.system.ask(self.account_id, create)
        assert isinstance(created, OrderResult)
        request = created.order.request
        if intent and provider == "cardprovider":
            asked = await self.bank.provider.create_intent(
                request.order_id, request.account_id, request.amount_micro // 10_000, "USD", env="development"
            )
            attach = AttachIntent(request.order_id, asked.provider_payment_id)
            created = await self.system.ask(self.account_id, attach)
        order: Order = created.order
        return order

    async def run(self, kind: type[OrderWorker], *, card: bool = True) -> int:
        """Make all orders due and run one round of a worker."""
        await self.change("update orders set wake_at = now() - interval '1 second' where wake_at is not null")
        return await self.worker(kind, card=card).poll_due()

    async def change(self, sql: str) -> None:
        await self.database.work(lambda connection: connection.execute(text(sql)))

    async def read(self, order: Order) -> Order:
        found = await self.database.read(lambda connection: order_by_id(connection, order.order_id))
        assert found is not None
        return found

    async def pay(self, order: Order, **body: Any) -> str:
        assert order.state.payment_id is not None
        return await self.bank.press("payment_intents", order.state.payment_id, "pay", **body)


@pytest.fixture
async def setup(system: Any, payments: Any, bank: RunningBank) -> Setup:
    account_id, _ = await system.open_account()
    return Setup(system, bank, account_id, payments)


async def test_a_paid_order_is_credited_and_later_reconciled_without_webhooks(setup: Setup) -> None:
    order = await setup.order()
    await setup.pay(order)
    first = await setup.run(Reconciler)
    credited = await setup.read(order)
    await setup.run(Reconciler)
    after = await setup.read(order)
    assert first == 1
    assert (credited.status, after.statuses.reconcile_status) == ("credited", "reconciled")
    assert after.state.reconciled_at is not None
    assert len(after.balance_transaction_ids) == 1
    assert after.state.real_event_id is None
    assert await setup.balance() == 10 * CREDIT
    setup.assert_audit_clean()


async def test_an_intent_whose_create_call_was_lost_is_found_and_not_duplicated(setup: Setup) -> None:
    order = await setup.order(intent=False)
    asked = await setup.bank.provider.create_intent(
        order.order_id, order.account_id, 1000, "USD", env="development"
    )
    await setup.run(Reconciler)
    after = await setup.read(order)
    assert after.state.intent_id == asked.provider_payment_id
    assert after.status == "pending"


async def test_an_intent_that_is_refused_fails_the_order(setup: Setup) -> None:
    # Below what the provider takes.
    order = await setup.order(intent=False, amount_micro=100_000)
    await setup.run(Reconciler)
    after = await setup.read(order)
    assert after.status == "failed"
    assert "create_refused" in after.state.history[-1].reason


async def test_a_provider_that_is_away_is_an_error_that_passes(setup: Setup) -> None:
    order = await setup.order()
    await setup.pay(order)
    await setup.bank.outage("error", call="payment_intents.retrieve", times=1)
    await setup.run(Reconciler)
    away = await setup.read(order)
    for _ in range(2):
        await setup.run(Reconciler)
    after = await setup.read(order)
    assert (away.status, away.statuses.reconcile_status) == ("pending", "error")
    assert (after.status, after.statuses.reconcile_status) == ("credited", "reconciled")


# --------------------------------------------------------------------------------------------------------- expiry


PAST = timedelta(minutes=1)


async def test_an_unpaid_card_order_is_ended_with_its_intent(setup: Setup) -> None:
    order = await setup.order(expires_at=utc_now() - PAST)
    assert await setup.run(Reconciler) == 0
    assert await setup.run(OrderSweeper) == 1
    after = await setup.read(order)
    assert order.state.payment_id is not None
    seen = await setup.bank.provider.retrieve(order.state.payment_id, as_of=0)
    assert (after.status, after.statuses.processing_status) == ("expired", "canceled")
    assert seen.state == "canceled"
    setup.assert_audit_clean()


async def test_an_early_cancellation_webhook_still_leaves_the_order_expired(
    setup: Setup,
) -> None:
    orders = [await setup.order(expires_at=utc_now() - PAST) for _ in range(2)]
    canceled, after = [], []
    for order, late_s in zip(orders, (1, -10), strict=True):
        at = int(order.request.expires_at.timestamp()) + late_s
        facts = OrderFacts(attempt=PaymentAttempt(status="canceled", at=at, reason="abandoned"))
        event = ReceivePaymentEvent(order.order_id, setup.payments.event("payment_intent.canceled", facts), b"{}")
        canceled.append(await setup.system.ask(setup.account_id, event))
        after.append(await setup.system.ask(setup.account_id, ExpireOrder(order.order_id)))
    assert [reply.order.status for reply in canceled] == ["canceled", "canceled"]
    # The second one was cancelled while it could still be paid: so it was cancelled on purpose, not by expiry.
    assert [(reply.verdict, reply.order.status) for reply in after] == [
        ("applied", "expired"),
        ("ignored", "canceled"),
    ]


async def test_an_order_that_turns_out_paid_is_credited_instead_of_ended(setup: Setup) -> None:
    order = await setup.order(expires_at=utc_now() - PAST)
    await setup.pay(order)
    await setup.run(OrderSweeper)
    after = await setup.read(order)
    assert after.status == "credited"
    assert after.state.moves[0].reason == "late_payment"
    assert await setup.balance() == 10 * CREDIT


async def test_an_order_whose_payment_is_processing_does_not_expire(setup: Setup) -> None:
    order = await setup.order(expires_at=utc_now() - PAST)
    assert order.state.payment_id is not None
    await setup.bank.press("payment_intents", order.state.payment_id, "process")
    await setup.run(OrderSweeper)
    waiting = await setup.read(order)
    again_at_once = await setup.worker(OrderSweeper).poll_due()
    await setup.pay(order)
    await setup.run(OrderSweeper)
    after = await setup.read(order)
    assert (waiting.status, waiting.statuses.processing_status) == ("pending", "processing")
    assert again_at_once == 0
    assert after.status == "credited"


async def test_orders_without_an_intent_expire_without_a_provider_call(setup: Setup) -> None:
    sandbox = await setup.order("sandbox", expires_at=utc_now() - PAST)
    card = await setup.order(intent=False, expires_at=utc_now() - PAST)
    fresh = await setup.order("sandbox")
    assert await setup.run(OrderSweeper) == 2
    ended = [(await setup.read(order)).status for order in (sandbox, card, fresh)]
    kept_due = (await setup.read(sandbox)).wake_at
    assert ended == ["expired", "expired", "pending"]
    assert kept_due is None
    setup.assert_audit_clean()


async def test_without_a_card_provider_card_orders_are_left_alone(setup: Setup) -> None:
    order = await setup.order(expires_at=utc_now() - PAST)
    await setup.run(OrderSweeper, card=False)
    assert (await setup.read(order)).status == "pending"


async def test_a_damaged_order_is_named_and_leaves_the_others_to_the_worker(setup: Setup) -> None:
    with structlog.testing.capture_logs() as logs:
        damaged, sound = [await setup.order("sandbox", expires_at=utc_now() - PAST) for _ in range(2)]
        await setup.change(f"update orders set state = '[]' where order_id = '{damaged.order_id}'")
        assert await setup.run(OrderSweeper) == 2
        assert (await setup.read(sound)).status == "expired"
        # The account serves on.
        assert (await setup.order("sandbox")).status == "pending"
    assert any(damaged.order_id in str(line) and line["log_level"] == "error" for line in logs)
    assert not any(sound.order_id in str(line) for line in logs if line["log_level"] == "error")


# ------------------------------------------------------------------------------------------------------- together


async def test_two_processes_share_the_work_without_duplicates(setup: Setup) -> None:
    orders = [await setup.order("sandbox", expires_at=utc_now() - PAST) for _ in range(12)]
    await setup.change("update orders set wake_at = now() - interval '1 second'")
    counts: list[int] = []

    async def work() -> None:
        worker = setup.worker(OrderSweeper)
        while found := await worker.poll_due():
            counts.append(found)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        nursery.start_soon(work)
    rows = [await setup.read(order) for order in orders]
    assert sum(counts) == 12
    assert {(row.status, row.version) for row in rows} == {("expired", 2)}


async def test_running_workers_find_due_orders(setup: Setup, nursery: trio.Nursery) -> None:
    order = await setup.order()
    await setup.pay(order, amount_received=900)
    await setup.run(Reconciler)
    sandbox = await setup.order("sandbox", expires_at=utc_now() - PAST)
    await setup.change("update orders set wake_at = now() where provider = 'sandbox'")

    async def settled() -> bool:
        return (await setup.read(sandbox)).status != "pending"

    workers = [RunningChild(setup.worker(kind).run) for kind in (Reconciler, OrderSweeper)]
    for worker in workers:
        await nursery.start(worker.run)
    while not await settled():  # noqa: ASYNC110 - rows have no event
        await trio.sleep(0.02)
    for worker in workers:
        await worker.stop()


# --------------------------------------------------------------------------------------------- events of no order


async def test_unmatched_events_are_stored_once_and_deleted_after_ninety_days(setup: Setup) -> None:
    order = await setup.order()
    inbox = UnmatchedEventStore("cardprovider", setup.system.journal, utc_now)
    await inbox.store("evt_old", "charge.succeeded", "unmatched", b"first")
    await inbox.store("evt_old", "charge.succeeded", "unmatched", b"again")
    await inbox.store("evt_new", "customer.created", "ignored", b"{}")
    event = setup.payments.paid(order.order_id)
    await setup.system.ask(setup.account_id, ReceivePaymentEvent(order.order_id, event, b"{}"))
    rows = text("select event_id, body from payment_events order by event_id")
    stored = await setup.database.read(lambda c: {row.event_id: bytes(row.body) for row in c.execute(rows)})
    await setup.change(
        "update payment_events set received_at = now() - interval '91 days' where event_id <> 'evt_new'"
    )
    swept = await sweeper_of(setup.database).sweep()
    left = await setup.database.read(lambda c: {row.event_id for row in c.execute(rows)})
    assert stored == {"evt_old": b"first", "evt_new": b"{}", event.event_id: b"{}"}
    assert swept["payment_events"] == 1
    assert left == {"evt_new", event.event_id}


async def test_an_event_that_cannot_be_stored_is_not_acknowledged() -> None:
    class Refusing:
        verdict: UnitResult = NotWritten("away")

        async def write(self, _unit: Unit) -> UnitResult:
            return self.verdict

    journal = Refusing()
    inbox = UnmatchedEventStore("cardprovider", journal, utc_now)  # type: ignore[arg-type]  # only writes
    with pytest.raises(Unavailable):
        await inbox.store("evt_1", "t", "unmatched", b"")
    journal.verdict = Unknown("lost")
    with pytest.raises(OutcomeUnknown):
        await inbox.store("evt_1", "t", "unmatched", b"")
