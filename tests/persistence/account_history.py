"""Accounts with every kind of row, written as the service would."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import Connection, Table, insert, literal, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert
from tests.made_requests import make_order_request
from tests.persistence.values import columns_of_order
from tests.receipt_books import issue_all

from holdfast.ledger.credit.account import (
    AccountState,
    decide_adjustment,
    decide_bonus,
    decide_capture,
    decide_credit,
    decide_expiry,
    decide_grant,
    decide_hold,
    decide_release,
    decide_reversal,
)
from holdfast.ledger.credit.operations import Operation
from holdfast.ledger.orders.decisions import create_order, on_event
from holdfast.ledger.orders.facts import OrderFacts, PaymentEvent, PaymentFacts, RefundFacts, StatedPayment
from holdfast.ledger.orders.order import BonusMove, Order, OrderBonus
from holdfast.ledger.orders.top_ups import AutoTopUp, TopUpAttempts, utc_day
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.usage_totals import SPANS_S
from holdfast.persistence.records import tables
from holdfast.persistence.records.resulting_rows import payment_rows
from holdfast.persistence.records.rows import AutoTopUpRow

START = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


class AccountHistory:
    """Writes one account's history as the service would, from its first operation."""

    def __init__(self, connection: Connection, account_id: str) -> None:
        self.connection = connection
        self.state = AccountState(account_id)
        self.tasks: dict[str, str] = {}
        connection.execute(
            insert(tables.accounts).values(
                id=account_id,
                email=f"{account_id}@example.com",
                role="User",
                brand_id="holdfast",
                created_at=START,
                version=0,
                operation_count=0,
                balance_micro=0,
                held_micro=0,
                chain_head=self.state.chain_head,
            )
        )

    @property
    def next_id(self) -> str:
        return f"op_{self.state.account_id}_{self.state.number + 1}"

    @property
    def next_at(self) -> datetime:
        return START + timedelta(milliseconds=7 * self.state.number)

    def add(self, table: Table, **values: Any) -> None:
        self.connection.execute(insert(table).values(values))

    def decide(self, decision: Callable[..., Operation | Refusal | None], **about: Any) -> Operation:
        """Take a decision as the next operation, and write it."""
        usual: dict[str, Any] = {"operation_id": self.next_id, "at": self.next_at}
        return self.write(decision(self.state, **usual | about))

    def write(self, decided: Operation | Refusal | None) -> Operation:
        assert isinstance(decided, Operation)
        self.state.apply(decided)
        self.add(
            tables.operations,
            **{column.name: getattr(decided, column.name) for column in tables.operations.columns},
        )
        for line, posting in enumerate(decided.postings):
            self.add(
                tables.postings,
                account_id=decided.account_id,
                number=decided.number,
                line=line,
                ledger_account=posting.ledger_account,
                amount_micro=posting.amount_micro,
                lot=posting.lot,
            )
        if decided.lot is not None:
            self.add(
                tables.credit_lots,
                account_id=decided.account_id,
                number=decided.number,
                reference=decided.reference,
                amount_micro=decided.amount_micro,
                created_at=decided.at,
                **decided.lot._asdict(),
            )
        lots = tables.credit_lots
        self.connection.execute(
            update(lots)
            .where(lots.c.account_id == decided.account_id, lots.c.number.in_(decided.emptied))
            .values(closed_number=decided.number)
        )
        self.connection.execute(
            update(tables.accounts)
            .where(tables.accounts.c.id == decided.account_id)
            .values(
                version=decided.number,
                operation_count=decided.number,
                balance_micro=decided.balance_after_micro,
                held_micro=decided.held_after_micro,
                chain_head=decided.chain_hash,
                lots=self.state.lots.encoded(),
            )
        )
        return decided

    def credit(self, amount_micro: int) -> None:
        self.decide(
            decide_credit, amount_micro=amount_micro, source="sandbox", reference=self.next_id, reason="recharge"
        )

    def reverse(self, amount_micro: int) -> None:
        self.decide(
            decide_reversal,
            amount_micro=amount_micro,
            source="sandbox",
            reference=self.next_id,
            reason="chargeback",
        )

    def adjust(self, amount_micro: int) -> None:
        """Adjust the credit by an operator's action, which is written too."""
        self.decide(decide_adjustment, amount_micro=amount_micro, reference=self.act(), reason="adjusted")

    def act(self) -> str:
        """Write an operator's action on the account, and return its id."""
        action_id = f"act_{self.next_id}"
        values = dict.fromkeys(("operator", "credential", "origin", "action", "target", "trace_id"), "x")
        account_id = self.state.account_id
        self.add(tables.operator_actions, action_id=action_id, at=START, account_id=account_id, **values)
        return action_id

    def grant(self, amount_micro: int, expires_at: datetime | None = None) -> None:
        """Grant credit by an operator's action, which is written too."""
        self.decide(
            decide_grant,
            amount_micro=amount_micro,
            lot_source="grant",
            expires_at=expires_at,
            reference=self.act(),
            reason="granted",
        )

    def expire(self, at: datetime) -> None:
        for lot in self.state.lots.expired(at):
            self.write(decide_expiry(self.state, lot, operation_id=self.next_id, at=at))

    def task(self, name: str, amount_micro: int) -> None:
        request_id, hold_id = f"task_{name}", f"hold_{name}"
        opened = self.decide(decide_hold, hold_id=hold_id, amount_micro=amount_micro, reference=request_id)
        owner = self.state.account_id
        self.add(
            tables.holds,
            account_id=owner,
            hold_id=hold_id,
            amount_micro=amount_micro,
            reference=request_id,
            opened_number=opened.number,
        )
        self.add(
            tables.tasks,
            account_id=owner,
            request_id=request_id,
            version=1,
            status="queued",
            model="studio/still",
            provider="studio",
            created_at=opened.at,
            updated_at=opened.at,
            dispatched=False,
            request={"hold_id": hold_id},
            input={},
            state={},
            overall_deadline_at=opened.at,
            dispatch_s=60,
            run_s=900,
        )
        self.add(
            tables.usage_entries,
            account_id=owner,
            request_id=request_id,
            ts=opened.at,
            model="studio/still",
            modality="image",
            status="queued",
            billable_units=0,
            tokens_in=0,
            tokens_out=0,
            cost_micro=0,
            status_history=[],
        )

    def end(self, name: str, status: str, charge_micro: int | None) -> None:
        request_id, hold_id = f"task_{name}", f"hold_{name}"
        about = {"hold_id": hold_id, "reference": request_id, "reason": status}
        if charge_micro is None:
            settled = self.decide(decide_release, **about)
        else:
            settled = self.decide(decide_capture, charge_micro=charge_micro, **about)
        key = {"hold_id": hold_id, "number": settled.number, "request_id": request_id, "status": status}
        self.connection.execute(text("update holds set settled_number = :number where hold_id = :hold_id"), key)
        self.connection.execute(text("update tasks set status = :status where request_id = :request_id"), key)
        self.connection.execute(
            text(
                "update usage_entries set status = :status, cost_micro = :cost_micro, operation_id = :operation_id"
                " where request_id = :request_id"
            ),
            {**key, "cost_micro": charge_micro or 0, "operation_id": settled.operation_id},
        )
        values = {"model": "studio/still", "status": status, "cost_micro": charge_micro or 0}
        for span_s in SPANS_S:
            start_s = START.timestamp() // span_s * span_s
            row = {
                **dict.fromkeys(("end_user_by", "api_key_id", "end_user"), ""),
                **values,
                "account_id": self.state.account_id,
                "span_s": span_s,
                "start_at": datetime.fromtimestamp(start_s, UTC),
                "count": 1,
            }
            added = upsert(tables.usage_totals).values(row)
            totals = tables.usage_totals.c
            self.connection.execute(
                added.on_conflict_do_update(
                    constraint=tables.usage_totals.primary_key,
                    set_={name: totals[name] + added.excluded[name] for name in ("count", "cost_micro")},
                )
            )

    def store(self, name: str) -> None:
        """Write an asset of a task, and its content."""
        content = {"sha256": "0" * 64, "content_type": "image/png"}
        self.add(
            tables.assets,
            account_id=self.state.account_id,
            request_id=f"task_{name}",
            position=0,
            asset_id=f"asset_{name}",
            bytes=1,
            created_at=START,
            expires_at=START + timedelta(days=7),
            **content,
        )
        self.add(tables.contents, claimed_until=START, **content)

    def announce(self, name: str, *kinds: str, status: str = "delivered") -> None:
        """Subscribe a task's webhook to these kinds, and write their events."""
        request_id = f"task_{name}"
        request = {"hold_id": f"hold_{name}", "webhook_url": "https://example.com", "webhook_events": [*kinds]}
        state = {
            "completed_at": datetime.now(UTC).isoformat(),
            "hosting": {"assets_ready_event": "sent" if status == "delivered" else "failed"},
        }
        self.connection.execute(
            update(tables.tasks).where(tables.tasks.c.request_id == request_id).values(request=request, state=state)
        )
        for kind in kinds:
            event = {"account_id": self.state.account_id, "event_id": f"evt_{name}_{kind}"}
            self.add(
                tables.outbox,
                **event,
                receiver=self.state.account_id,
                request_id=request_id,
                kind=kind,
                url="https://example.com",
                created_at=START,
                status=status,
                attempts=1,
                round_at=START,
                tries=1,
                done_at=START,
                snapshot={},
            )
            self.add(tables.outbox_attempts, **event, number=1, at=START, duration_ms=7)

    def top_up(self, *counted: Order, open_order_id: str | None = None) -> None:
        """Write an automatic top-up that counts these attempts, all of one day."""
        attempts = TopUpAttempts(on=utc_day(START), today=len(counted), this_month=len(counted))
        state = AutoTopUp(account_id=self.state.account_id, attempts=attempts, open_order_id=open_order_id)
        row = AutoTopUpRow.of(state)
        self.add(
            tables.auto_top_ups,
            account_id=row.account_id,
            open_order_id=row.open_order_id,
            wake_at=row.wake_at,
            state=msgspec.to_builtins(state),
        )

    def order(self, name: str, *events: PaymentEvent, **fields: Any) -> Order:
        """Write a card order of ten credits to which these events were applied."""
        order_id = f"ord_{name}"
        operation_id = f"op_reserved_{name}"
        request = make_order_request(order_id, self.state.account_id, START, operation_id=operation_id, **fields)
        order = create_order(request)
        for event in events:
            step = on_event(order, event, self.next_at, new_operation_id=lambda: f"{self.next_id}_back")
            for move in step.order.state.moves[len(order.state.moves) :]:
                self.decide(
                    decide_credit if move.kind == "credit" else decide_reversal,
                    operation_id=move.operation_id,
                    amount_micro=move.amount_micro,
                    source=request.provider,
                    reference=order_id,
                    reason=move.reason,
                )
            self.add(
                tables.payment_events,
                provider=request.provider,
                event_id=event.event_id,
                account_id=self.state.account_id,
                order_id=order_id,
                type=event.type,
                received_at=START,
                verdict=step.verdict,
                body=b"{}",
            )
            order = step.order
        if request.bonus is not None and order.net_micro:
            expires_at = order.bonus_expires_at
            credit_micro, about = request.bonus.credit_micro, {"reference": order_id, "reason": "bonus"}
            given = self.decide(decide_bonus, amount_micro=credit_micro, expires_at=expires_at, **about)
            moves = (BonusMove(amount_micro=given.amount_micro, operation_id=given.operation_id),)
            order = msgspec.structs.replace(order, state=msgspec.structs.replace(order.state, bonus_moves=moves))
        self.add(tables.orders, **columns_of_order(order))
        for row in payment_rows(create_order(request), order):
            self.add(tables.order_payments, **msgspec.structs.asdict(row))
        return order


def payment(name: str) -> PaymentEvent:
    stated = StatedPayment(amount_micro=10_000_000, currency="USD")
    paid = PaymentFacts(at=1, stated=(stated,), charge_ids=(f"ch_{name}",))
    facts = OrderFacts(payments={f"pi_{name}": paid}, charges={f"ch_{name}": f"pi_{name}"})
    return PaymentEvent(event_id=f"evt_{name}_1", type="payment_intent.succeeded", at=1, reason="paid", facts=facts)


def refund(name: str) -> PaymentEvent:
    sent = RefundFacts(status="succeeded", seen=("succeeded",), amount_micro=4_000_000, charge_id=f"ch_{name}")
    facts = OrderFacts(refunds={f"re_{name}": sent})
    return PaymentEvent(event_id=f"evt_{name}_2", type="refund.created", at=2, reason="refund", facts=facts)


def write_books(connection: Connection) -> None:
    """Two accounts with every kind of operation and every kind of task."""
    ada = AccountHistory(connection, "acct_ada")
    ada.credit(10_000_000)
    ada.task("done", 3_000_000)
    ada.task("open", 1_000_000)
    ada.end("done", "succeeded", 2_500_000)
    connection.execute(
        insert(tables.checkpoints).from_select(
            [column.name for column in tables.checkpoints.columns],
            select(
                tables.accounts.c.id,
                tables.accounts.c.operation_count,
                tables.accounts.c.balance_micro,
                tables.accounts.c.held_micro,
                tables.accounts.c.chain_head,
                literal(START),
            ),
        )
    )
    ada.announce("done", "task.succeeded", "task.assets_ready")
    ada.store("done")
    ada.task("gone", 2_000_000)
    ada.end("gone", "canceled", None)
    ada.announce("gone", "task.canceled", status="given_up")
    ada.task("free", 0)
    ada.end("free", "succeeded", 0)
    ada.reverse(9_000_000)
    ada.credit(100_000)
    bob = AccountHistory(connection, "acct_bob")
    bob.credit(5_000_000)
    bob.task("failed", 5_000_000)
    bob.end("failed", "failed", None)
    AccountHistory(connection, "acct_new")
    dan = AccountHistory(connection, "acct_dan")
    dan.adjust(2_000_000)
    dan.adjust(-500_000)
    eva = AccountHistory(connection, "acct_eva")
    eva.credit(1_000_000)
    eva.grant(2_000_000, START + timedelta(hours=1))
    eva.grant(3_000_000)
    eva.task("split", 2_500_000)
    eva.task("kept", 500_000)
    eva.end("split", "succeeded", 1_000_000)
    eva.expire(START + timedelta(hours=2))
    cho = AccountHistory(connection, "acct_cho")
    cho.order("paid", payment("paid"))
    cho.order("back", payment("back"), refund("back"))
    cho.order("new")
    opened = cho.order("open", origin="top_up", customer_id="cus_1", card_id="pm_1")
    cho.top_up(opened, open_order_id=opened.order_id)
    gus = AccountHistory(connection, "acct_gus")
    for _ in range(5):
        gus.credit(1_000_000)
    gus.order("gift", payment("gift"), bonus=OrderBonus(credit_micro=2_000_000, expires_days=30))
    assert issue_all(connection) == 4
    connection.commit()
