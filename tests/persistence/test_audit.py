from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import psycopg
import pytest
from msgspec.structs import replace
from sqlalchemy import Connection, insert, text, update

from holdfast.ledger.credit.account import (
    AccountState,
    decide_capture,
    decide_credit,
    decide_hold,
    decide_release,
    decide_reversal,
)
from holdfast.ledger.credit.operations import Operation, OperationKind
from holdfast.ledger.orders.decisions import create_order, on_event
from holdfast.ledger.orders.facts import Claim, OrderFacts, PaymentEvent, PaymentFacts, RefundFacts
from holdfast.ledger.orders.order import OrderRequest, identity_fx
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.audit.audit import run_audit
from holdfast.persistence.audit.checks import Check
from holdfast.persistence.audit.events import EVENT_RULES
from holdfast.persistence.audit.orders import COLUMNS, HISTORY, NET, ORDER_RULES
from holdfast.persistence.audit.orders import STATUSES as ORDER_STATUSES
from holdfast.persistence.audit.rules import RULES
from holdfast.persistence.records import tables
from holdfast.persistence.server.connections import connected

START = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


class AccountHistory:
    """Writes one account's history as the service would."""

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

    def write(self, decided: Operation | Refusal) -> Operation:
        assert isinstance(decided, Operation)
        self.state.apply(decided)
        row = {name: getattr(decided, name) for name in decided.__struct_fields__ if name != "postings"}
        self.connection.execute(insert(tables.operations).values(row))
        for line, posting in enumerate(decided.postings):
            self.connection.execute(
                insert(tables.postings).values(
                    account_id=decided.account_id,
                    number=decided.number,
                    line=line,
                    ledger_account=posting.ledger_account,
                    amount_micro=posting.amount_micro,
                )
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
            )
        )
        return decided

    def credit(self, amount_micro: int) -> None:
        self.write(
            decide_credit(
                self.state,
                operation_id=self.next_id,
                amount_micro=amount_micro,
                source="sandbox",
                reference=self.next_id,
                reason="recharge",
                at=self.next_at,
            )
        )

    def reverse(self, amount_micro: int) -> None:
        self.write(
            decide_reversal(
                self.state,
                operation_id=self.next_id,
                amount_micro=amount_micro,
                source="sandbox",
                reference=self.next_id,
                reason="chargeback",
                at=self.next_at,
            )
        )

    def task(self, name: str, amount_micro: int) -> None:
        request_id, hold_id = f"task_{name}", f"hold_{name}"
        opened = self.write(
            decide_hold(
                self.state,
                operation_id=self.next_id,
                hold_id=hold_id,
                amount_micro=amount_micro,
                reference=request_id,
                at=self.next_at,
            )
        )
        owner = self.state.account_id
        self.connection.execute(
            insert(tables.holds).values(
                account_id=owner,
                hold_id=hold_id,
                amount_micro=amount_micro,
                reference=request_id,
                opened_number=opened.number,
            )
        )
        self.connection.execute(
            insert(tables.tasks).values(
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
                state={},
            )
        )
        self.connection.execute(
            insert(tables.usage_entries).values(
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
        )

    def end(self, name: str, status: str, charge_micro: int | None) -> None:
        request_id, hold_id = f"task_{name}", f"hold_{name}"
        decided: Operation | Refusal
        if charge_micro is None:
            decided = decide_release(
                self.state,
                operation_id=self.next_id,
                hold_id=hold_id,
                reference=request_id,
                reason=status,
                at=self.next_at,
            )
        else:
            decided = decide_capture(
                self.state,
                operation_id=self.next_id,
                hold_id=hold_id,
                charge_micro=charge_micro,
                reference=request_id,
                reason=status,
                at=self.next_at,
            )
        settled = self.write(decided)
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

    def store(self, name: str) -> None:
        """Write an asset of a task, and its content."""
        content = {"sha256": "0" * 64, "content_type": "image/png"}
        self.connection.execute(
            insert(tables.assets).values(
                account_id=self.state.account_id,
                request_id=f"task_{name}",
                position=0,
                asset_id=f"asset_{name}",
                bytes=1,
                created_at=START,
                expires_at=START + timedelta(days=7),
                **content,
            )
        )
        self.connection.execute(insert(tables.contents).values(claimed_at=START, **content))

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
            self.connection.execute(
                insert(tables.outbox).values(
                    **event,
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
            )
            self.connection.execute(
                insert(tables.outbox_attempts).values(**event, number=1, at=START, duration_ms=7)
            )

    def order(self, name: str, *events: PaymentEvent) -> None:
        """Write a card order of ten credits to which these events were applied."""
        order_id = f"ord_{name}"
        request = OrderRequest(
            order_id=order_id,
            account_id=self.state.account_id,
            provider="cardprovider",
            amount_micro=10_000_000,
            currency="USD",
            operation_id=f"op_reserved_{name}",
            brand_id="holdfast",
            legal_entity_id="holdfast",
            merchant_of_record="Holdfast",
            provider_account_id="holdfast",
            created_at=START,
            expires_at=START + timedelta(days=1),
            fx=identity_fx("USD", START),
        )
        order = create_order(request)
        for event in events:
            step = on_event(order, event, self.next_at, new_operation_id=lambda: f"{self.next_id}_back")
            for move in step.order.state.moves[len(order.state.moves) :]:
                decide = decide_credit if move.kind == "credit" else decide_reversal
                self.write(
                    decide(
                        self.state,
                        operation_id=move.operation_id,
                        amount_micro=move.amount_micro,
                        source="cardprovider",
                        reference=order_id,
                        reason=move.reason,
                        at=self.next_at,
                    )
                )
            self.connection.execute(
                insert(tables.payment_events).values(
                    provider="cardprovider",
                    event_id=event.event_id,
                    account_id=self.state.account_id,
                    order_id=order_id,
                    type=event.type,
                    received_at=START,
                    verdict=step.verdict,
                    body=b"{}",
                )
            )
            order = step.order
        self.connection.execute(
            insert(tables.orders).values(
                account_id=self.state.account_id,
                order_id=order_id,
                version=order.version,
                provider=request.provider,
                status=order.status,
                reconcile_status=order.statuses.reconcile_status,
                provider_payment_id=order.state.payment_id,
                provider_charge_id=order.state.charge_id,
                created_at=request.created_at,
                updated_at=order.updated_at,
                expires_at=request.expires_at,
                wake_at=order.wake_at,
                request=msgspec.to_builtins(request),
                state=msgspec.to_builtins(order.state),
            )
        )


def payment(name: str) -> PaymentEvent:
    claim = Claim(amount_micro=10_000_000, currency="USD")
    paid = PaymentFacts(at=1, claims=(claim,), charge_ids=(f"ch_{name}",))
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
    cho = AccountHistory(connection, "acct_cho")
    cho.order("paid", payment("paid"))
    cho.order("back", payment("back"), refund("back"))
    cho.order("new")
    connection.commit()


@pytest.fixture
def books_url(database_url: str) -> str:
    """A database with a valid history."""
    with connected(database_url) as connection:
        write_books(connection)
    return database_url


def audit(url: str) -> list[Check]:
    with connected(url) as connection:
        return run_audit(connection)


def broken(url: str) -> dict[str, str]:
    return {check.name: check.detail for check in audit(url) if not check.ok}


def tamper(url: str, *statements: str) -> None:
    """Change rows without the tables' triggers."""
    with psycopg.connect(url) as connection:
        for table in ("operations", "postings", "payment_events"):
            connection.execute(f"alter table {table} disable trigger all")
        for statement in statements:
            assert connection.execute(statement).rowcount > 0, statement


def test_an_empty_database_passes_every_check(database_url: str) -> None:
    checks = audit(database_url)
    assert len(checks) == 6 + 4 + len(RULES) + len(ORDER_RULES) + len(EVENT_RULES)
    assert all(check.ok and check.counted == 0 and check.detail == "" for check in checks)


def test_a_valid_history_passes_every_check(books_url: str) -> None:
    checks = audit(books_url)
    assert [check for check in checks if not check.ok] == []
    counted = {check.name: check.counted for check in checks}
    assert counted["each operation's chain hash covers it and the previous one"] == 16
    assert counted["each account's balance and held total are the sums of its postings"] == 4
    assert counted["each hold was opened by exactly one operation of its amount"] == 5
    assert all(count > 0 for count in counted.values())


def test_the_names_of_the_checks_are_unique(database_url: str) -> None:
    names = [check.name for check in audit(database_url)]
    assert len(set(names)) == len(names)


SUMS = "the postings of each operation sum to zero"
SHAPES = "each operation's postings match its kind and amount"
NUMBERS = "operation numbers run from 1 without gaps"
TOTALS = "running totals follow from the postings, row by row"
CHAINS = "each operation's chain hash covers it and the previous one"
FLOORS = "available credit goes below zero only by reversals"
EVERYTHING = "all postings sum to zero"
BALANCES = "each account's balance and held total are the sums of its postings"
NEWEST = "each account's totals, operation count and chain head match its newest operation"
COUNTS = "each account's operation count is the number of its operations"
OPENINGS = "each hold was opened by exactly one operation of its amount"
OUTCOMES = "each hold has at most one outcome, and its settled number is that outcome's"
LIMITS = "no capture exceeds its hold, and each release returns the whole hold"
OPEN_HOLDS = "each account's held total is the sum of its open holds"
USAGE_SUM = "each account's usage cost is the amount captured"
USAGE = "each usage entry names the operation that settled its request, and costs what it captured"
PAIRS = "each task has exactly one hold, and each hold belongs to a task"
ENDS = "a task has ended if and only if its hold is settled, and succeeded if and only if it was captured"
STATUSES = "each task has one usage entry with its status and model"
CONTENTS = "each stored result's content is known and not marked for deletion"
ORPHANS = "every row belongs to a row that exists"


def in_state(order_id: str, path: str, value: object) -> str:
    """Return SQL that changes one value in an order's state."""
    encoded = msgspec.json.encode(value).decode()
    return f"update orders set state = jsonb_set(state::jsonb, '{path}', '{encoded}') where order_id = '{order_id}'"


ANNOUNCED, RECORDED = (rule.name for rule in EVENT_RULES)
LISTED, RESERVED, CASH, STORED = (rule.name for rule in ORDER_RULES)

ADA = "account_id = 'acct_ada'"


@pytest.mark.parametrize(
    ("statements", "names"),
    [
        (
            [f"update postings set amount_micro = amount_micro + 1 where {ADA} and number = 1 and line = 1"],
            {SUMS, SHAPES, TOTALS, CHAINS, EVERYTHING, BALANCES},
        ),
        (
            # Both postings: the sums still agree, the chain and the totals do not.
            [
                f"update postings set amount_micro = amount_micro + 5 where {ADA} and number = 1 and line = 1",
                f"update postings set amount_micro = amount_micro - 5 where {ADA} and number = 1 and line = 0",
            ],
            {SHAPES, TOTALS, CHAINS, BALANCES},
        ),
        ([f"update operations set reason = 'a gift' where {ADA} and number = 1"], {CHAINS}),
        ([f"update operations set at = at + interval '1 ms' where {ADA} and number = 2"], {CHAINS}),
        (
            ["update accounts set balance_micro = balance_micro + 1 where id = 'acct_bob'"],
            {BALANCES, NEWEST},
        ),
        (["update accounts set chain_head = sha256('') where id = 'acct_ada'"], {NEWEST}),
        (["update accounts set chain_head = sha256('') where id = 'acct_new'"], {NEWEST}),
        (["update accounts set operation_count = 11 where id = 'acct_ada'"], {NEWEST, COUNTS}),
        (
            # The last operations deleted and the totals reset to match: the chain head differs.
            [
                f"delete from postings where {ADA} and number = 10",
                f"delete from operations where {ADA} and number = 10",
                "update accounts set operation_count = 9, balance_micro = balance_micro - 100000"
                " where id = 'acct_ada'",
            ],
            {NEWEST},
        ),
        (
            [
                f"delete from postings where {ADA} and number = 1",
                f"delete from operations where {ADA} and number = 1",
            ],
            {NUMBERS, TOTALS, CHAINS, BALANCES, COUNTS},
        ),
        (
            [f"update operations set kind = 'credit' where {ADA} and kind = 'reversal'"],
            {SHAPES, CHAINS, FLOORS},
        ),
        (["update holds set amount_micro = 4000000 where hold_id = 'hold_done'"], {OPENINGS}),
        (["update holds set amount_micro = 2000000 where hold_id = 'hold_done'"], {OPENINGS, LIMITS}),
        (["update holds set amount_micro = 4000000 where hold_id = 'hold_failed'"], {OPENINGS, LIMITS}),
        (["update holds set settled_number = null where hold_id = 'hold_done'"], {OUTCOMES, OPEN_HOLDS, ENDS}),
        (["update holds set settled_number = 9 where hold_id = 'hold_open'"], {OUTCOMES, OPEN_HOLDS, ENDS}),
        (["delete from holds where hold_id = 'hold_open'"], {OPENINGS, OPEN_HOLDS, PAIRS}),
        (["delete from holds where hold_id = 'hold_free'"], {OPENINGS, OUTCOMES, PAIRS}),
        (
            [
                "drop index uq_operations_settled_hold",
                "insert into operations select account_id, 4, 'op_again', kind, amount_micro, balance_after_micro,"
                " held_after_micro, hold_id, reference, reason, at, chain_hash from operations"
                " where account_id = 'acct_bob' and number = 3",
            ],
            {OUTCOMES, SHAPES, CHAINS, NEWEST, COUNTS, USAGE},
        ),
        (
            ["update usage_entries set cost_micro = 0 where request_id = 'task_done'"],
            {USAGE_SUM, USAGE},
        ),
        (["update usage_entries set operation_id = 'op_x' where request_id = 'task_gone'"], {USAGE}),
        (["update usage_entries set operation_id = 'op_x' where request_id = 'task_open'"], {USAGE}),
        (["delete from usage_entries where request_id = 'task_gone'"], {USAGE, STATUSES}),
        (["update usage_entries set status = 'queued' where request_id = 'task_gone'"], {STATUSES}),
        (["update tasks set status = 'failed' where request_id = 'task_done'"], {ENDS, STATUSES, ANNOUNCED}),
        (
            ["update tasks set status = 'processing' where request_id = 'task_gone'"],
            {ENDS, STATUSES, ANNOUNCED},
        ),
        (["update tasks set status = 'canceled' where request_id = 'task_open'"], {ENDS, STATUSES}),
        (["update tasks set request = '{}' where request_id = 'task_open'"], {PAIRS}),
        (["delete from tasks where request_id = 'task_open'"], {PAIRS, ORPHANS}),
        (["delete from accounts where id = 'acct_bob'"], {ORPHANS}),
        (["insert into sessions values ('acct_x', 'ses_1', '', now(), now(), null)"], {ORPHANS}),
        (["update orders set status = 'failed' where order_id = 'ord_paid'"], {COLUMNS}),
        (["update orders set provider_payment_id = 'pi_x' where order_id = 'ord_paid'"], {COLUMNS}),
        (["update orders set expires_at = expires_at + interval '1 day' where order_id = 'ord_new'"], {COLUMNS}),
        (["update orders set state = '{\"moves\": 1}' where order_id = 'ord_new'"], {COLUMNS}),
        ([in_state("ord_paid", "{statuses,processing_status}", "failed")], {ORDER_STATUSES, HISTORY}),
        ([in_state("ord_back", "{statuses,reconcile_status}", "reconciled")], {HISTORY, COLUMNS}),
        ([in_state("ord_back", "{history,1,operation_id}", "op_x")], {HISTORY}),
        ([in_state("ord_back", "{moves,1,amount_micro}", 3_000_000)], {NET, LISTED}),
        ([in_state("ord_back", "{facts,refunds,re_back,amount_micro}", 1)], {NET}),
        ([in_state("ord_back", "{moves,1,operation_id}", "op_x")], {LISTED, HISTORY}),
        ([in_state("ord_paid", "{event_ids}", [])], {STORED}),
        ([in_state("ord_new", "{event_ids}", ["evt_unknown"])], {STORED}),
        (
            [
                "update orders set request = jsonb_set(request::jsonb, '{operation_id}', '\"op_y\"')"
                " where order_id = 'ord_paid'"
            ],
            {RESERVED},
        ),
        (["delete from payment_events where event_id = 'evt_back_2'"], {STORED}),
        (["update payment_events set verdict = 'refused' where event_id = 'evt_paid_1'"], {STORED}),
        (["update payment_events set order_id = 'ord_new' where event_id = 'evt_paid_1'"], {STORED}),
        (["update payment_events set order_id = 'ord_x' where event_id = 'evt_paid_1'"], {STORED, ORPHANS}),
        (["delete from orders where order_id = 'ord_paid'"], {LISTED, STORED, ORPHANS}),
        (
            ["update operations set amount_micro = 1 where operation_id = 'op_reserved_paid'"],
            {LISTED, SHAPES, CHAINS},
        ),
        (["update operations set reference = 'ord_new' where operation_id = 'op_reserved_paid'"], {LISTED, CHAINS}),
        (
            [
                "update postings set ledger_account = 'cash:sandbox'"
                " where account_id = 'acct_cho' and number = 1 and amount_micro < 0"
            ],
            {CASH, CHAINS},
        ),
        (["insert into postings values ('acct_ada', 99, 0, 'revenue', 0)"], {ORPHANS}),
        (["update contents set doomed_at = now()"], {CONTENTS}),
        (["update contents set content_type = 'image/gif'"], {CONTENTS}),
        (["update assets set request_id = 'task_x'"], {ORPHANS}),
        (["delete from outbox where kind = 'task.canceled'"], {ANNOUNCED, ORPHANS}),
        (["update outbox set kind = 'task.failed' where kind = 'task.canceled'"], {ANNOUNCED}),
        (["update outbox set kind = 'task.succeeded' where kind = 'task.assets_ready'"], {ANNOUNCED}),
        (["update tasks set request = '{\"hold_id\": \"hold_gone\"}' where request_id = 'task_gone'"], {ANNOUNCED}),
        (["update outbox set request_id = 'task_x' where kind = 'task.succeeded'"], {ANNOUNCED, ORPHANS}),
        (["update tasks set state = '{}' where request_id = 'task_done'"], {RECORDED}),
        (["update outbox set status = 'given_up', request_id = 'task_gone'"], {ANNOUNCED}),
    ],
)
def test_each_broken_promise_is_found(books_url: str, statements: list[str], names: set[str]) -> None:
    drops = [statement for statement in statements if statement.startswith("drop")]
    with psycopg.connect(books_url) as connection:
        for statement in drops:
            connection.execute(statement)
    tamper(books_url, *[statement for statement in statements if statement not in drops])
    assert set(broken(books_url)) == names


def test_a_fault_names_its_rows_and_counts_the_rest(books_url: str) -> None:
    tamper(
        books_url,
        "insert into sessions select 'acct_x', 'ses_' || n, int4send(n), now(), now(), null"
        " from generate_series(1, 12) n",
    )
    detail = broken(books_url)[ORPHANS]
    assert detail.startswith("session ses_")
    assert detail.count("session ses_") == 10
    assert detail.endswith(" and 2 more")


def test_a_fault_of_the_history_names_its_operation(books_url: str) -> None:
    tamper(books_url, "update operations set reason = '' where account_id = 'acct_bob' and number = 2")
    assert broken(books_url) == {CHAINS: "acct_bob operation 2: its hash does not match"}


def test_overspending_is_found_even_when_all_sums_agree(database_url: str) -> None:
    with connected(database_url) as connection:
        history = AccountHistory(connection, "acct_eve")
        history.credit(1_000_000)
        overdrawn = AccountState("acct_eve", number=1, balance_micro=9_000_000, chain_head=history.state.chain_head)
        decided = decide_hold(
            overdrawn,
            operation_id="op_eve",
            hold_id="hold_eve",
            amount_micro=2_000_000,
            reference="task_eve",
            at=START,
        )
        assert isinstance(decided, Operation)
        forged = replace(decided, balance_after_micro=1_000_000)
        forged = replace(forged, chain_hash=forged.hash_after(history.state.chain_head))
        history.write(forged)
        connection.commit()
    found = broken(database_url)
    assert FLOORS in found
    assert not {SUMS, SHAPES, NUMBERS, TOTALS, CHAINS, EVERYTHING, BALANCES, NEWEST, COUNTS} & set(found)


def test_the_audit_reads_one_snapshot_and_writes_nothing(books_url: str) -> None:
    with connected(books_url) as connection:
        run_audit(connection)
        assert not connection.in_transaction()
        with connection.begin(), pytest.raises(Exception, match="read-only"):
            connection.execute(text("delete from sessions"))


def test_the_valid_history_has_every_kind_of_operation(books_url: str) -> None:
    with connected(books_url) as connection:
        kinds = set(connection.execute(text("select distinct kind from operations")).scalars())
    assert kinds == {str(kind) for kind in OperationKind}
