"""The closing of accounts: its refusals, its grace by the test's clock, and its end, whatever breaks on the way."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import trio
from sqlalchemy import text
from tests.actors.actor_system import create_task
from tests.actors.leaving_setup import Clock, Member, rows_of, start_member
from tests.actors.order_checks import deliver, new_order
from tests.actors.test_email_change import CutWriter
from tests.receipt_books import TERMS, audit_receipts

from holdfast.actors.account.leaving import GRACE
from holdfast.actors.account.messages import (
    CloseAccount,
    ClosingEnded,
    ClosingSet,
    CreateApiKey,
    CreateOrder,
    FinishClosing,
    GrantCredit,
    Recharge,
    SetAlerts,
)
from holdfast.actors.runtime.messages import IdempotencyKey
from holdfast.actors.sign_in.messages import SignedIn
from holdfast.actors.workers.closings import ClosingWorker
from holdfast.actors.workers.receipts import ReceiptsWorker
from holdfast.ledger.api_keys import KeyTerms
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import new_id
from holdfast.persistence.audit.audit import run_audit
from holdfast.persistence.claims.closings import SETTLED_AFTER
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.database import Database

from .actor_system import Payments

EMAIL = "ada@example.com"


@pytest.fixture
async def member(database: Database, nursery: trio.Nursery) -> Member:
    return await start_member(database, nursery, Clock())


def worker_of(member: Member, database: Database) -> ClosingWorker:
    return ClosingWorker(
        database=database,
        journal=member.system.journal,
        accounts=member.system.accounts,
        card=None,
        now=member.clock,
        member_id="proc_1",
    )


async def new_key(member: Member, account_id: str) -> str:
    key_id = new_id("key")
    terms = KeyTerms("k", ("tasks:write",))
    reply = await member.ask(account_id, CreateApiKey(key_id, key_id.encode(), "hk_test_abcd", terms))
    assert not isinstance(reply, Refusal), reply
    return key_id


async def closing(member: Member, owner: SignedIn) -> ClosingSet:
    done = await member.ask(owner.account_id, CloseAccount(forfeits_credit=True))
    assert isinstance(done, ClosingSet), done
    return done


async def state_of(database: Database, account_id: str) -> tuple[Any, ...]:
    [row] = await rows_of(
        database,
        "select email, closes_at is not null as closes, closed_at is not null as closed, "
        "erased_at is not null as erased, balance_micro from accounts where id = :id",
        id=account_id,
    )
    return tuple(row)


async def changes_of(database: Database, account_id: str) -> list[str]:
    found = await rows_of(
        database, "select what from account_changes where account_id = :id order by at, change_id", id=account_id
    )
    return [row.what for row in found]


async def test_each_open_matter_refuses_the_closing_with_its_reason(member: Member, payments: Payments) -> None:
    owner = await member.sign_in(EMAIL)
    key_id = await new_key(member, owner.account_id)
    await member.ask(owner.account_id, Recharge(5_000_000))
    refusal = await member.ask(owner.account_id, CloseAccount(forfeits_credit=False))
    assert (refusal.code, refusal.available_micro, refusal.param) == ("credit_remains", 5_000_000, "forfeit_credit")
    order = payments.request(owner.account_id)
    await member.ask(owner.account_id, CreateOrder(order))
    assert (await member.ask(owner.account_id, CloseAccount(True))).code == "payment_in_progress"
    task = await member.ask(owner.account_id, create_task(key_id, hold_micro=1_000_000))
    assert not isinstance(task, Refusal)
    assert (await member.ask(owner.account_id, CloseAccount(True))).code == "tasks_not_ended"


async def test_what_costs_is_refused_until_the_owner_signs_in(member: Member, database: Database) -> None:
    owner = await member.sign_in(EMAIL)
    key_id = await new_key(member, owner.account_id)
    await member.ask(owner.account_id, Recharge(5_000_000))
    done = await closing(member, owner)
    assert done == ClosingSet(member.clock() + GRACE, 5_000_000)
    # Asked again, as after a lost reply, it says the same.
    member.clock.forward(hours=1)
    assert await closing(member, owner) == done
    for command in (create_task(key_id), Recharge(1_000_000), CreateApiKey("key_2", b"2", "p", KeyTerms("k", ()))):
        assert (await member.ask(owner.account_id, command)).code == "account_closing"
    assert await rows_of(database, "select from sessions where revoked_at is null") == []
    [mail] = await rows_of(database, "select url, kind from outbox")
    assert tuple(mail) == (f"mailto:{EMAIL}", "account.closing")

    member.clock.forward(days=6, hours=22, minutes=59)
    assert await member.ask(owner.account_id, FinishClosing()) == ClosingEnded("kept")
    again = await member.sign_in(EMAIL)
    assert again.account_id == owner.account_id
    assert not isinstance(await member.ask(owner.account_id, create_task(key_id)), Refusal)
    member.clock.forward(days=8)
    await worker_of(member, database).sweep()
    assert await state_of(database, owner.account_id) == (EMAIL, False, False, False, 5_000_000)
    assert await changes_of(database, owner.account_id) == ["closing", "kept"]


async def test_an_account_is_closed_and_erased_and_its_address_is_free(
    member: Member, database: Database, database_url: str
) -> None:
    owner, other = await member.sign_in(EMAIL), await member.sign_in("bob@example.com")
    await new_key(member, owner.account_id)
    other_key = await new_key(member, other.account_id)
    for credit in (5_000_000, 2_500_000):
        await member.ask(owner.account_id, Recharge(credit))
    given = GrantCredit(1_000_000, None, "act_1", "", IdempotencyKey("grant", "act_1", b"1"))
    await rows_written(database, owner.account_id)
    assert not isinstance(await member.ask(owner.account_id, given), Refusal)
    await member.ask(owner.account_id, SetAlerts(balance_below_micro=1_000_000, limit_share=1.0, email=True))
    await closing(member, owner)
    worker = worker_of(member, database)
    member.clock.forward(days=7)
    await worker.sweep()
    free = f"closed:{owner.account_id}"
    assert await state_of(database, owner.account_id) == (free, True, True, False, 0)
    kinds = await rows_of(
        database,
        "select o.kind, o.reason, p.ledger_account, p.amount_micro from operations o join postings p "
        "using (account_id, number) where o.kind = 'expiry' and p.ledger_account <> 'available' "
        "order by o.number",
    )
    assert [tuple(row) for row in kinds] == [
        ("expiry", "promotional credit forfeited", "promotions", 1_000_000),
        ("expiry", "paid credit forfeited", "breakage", 5_000_000),
        ("expiry", "paid credit forfeited", "breakage", 2_500_000),
    ]
    with connected(database_url) as rows:
        assert run_audit(rows) == {}
    # Nothing is deleted before what was under way has ended.
    await worker.sweep()
    assert (await state_of(database, owner.account_id))[3] is False
    member.clock.forward(seconds=SETTLED_AFTER.total_seconds())
    await worker.sweep()
    assert await state_of(database, owner.account_id) == (free, True, True, True, 0)
    assert await changes_of(database, owner.account_id) == ["closing", "closed", "erased"]
    with connected(database_url) as rows:
        assert run_audit(rows) == {}
    # Nothing more is due, nothing is given to it, and others are as they were.
    await worker.sweep()
    assert (await member.ask(owner.account_id, Recharge(1))).code == "account_closing"
    given = GrantCredit(1_000_000, None, "act_2", "", IdempotencyKey("grant", "act_2", b"1"))
    assert (await member.ask(owner.account_id, given)).code == "account_closing"
    await member.ask(other.account_id, Recharge(1_000_000))
    assert not isinstance(await member.ask(other.account_id, create_task(other_key)), Refusal)
    new = await member.sign_in(EMAIL)
    assert new.account_id != owner.account_id


async def rows_written(database: Database, account_id: str) -> None:
    """Record the operator's actions that the grants of this test name."""

    def write(rows: Any) -> None:
        for action_id in ("act_1", "act_2"):
            rows.execute(
                text(
                    "insert into operator_actions (action_id, at, operator, credential, origin, action, target, "
                    "account_id, trace_id) values (:id, now(), 'o', 'token', 'here', 'grant', 't', :account, 't')"
                ),
                {"id": action_id, "account": account_id},
            )

    await database.work(write)


async def test_what_is_not_settled_at_the_end_of_the_grace_postpones_it(
    member: Member, database: Database, payments: Payments
) -> None:
    owner = await member.sign_in(EMAIL)
    await closing(member, owner)
    # A payment order that a process of the release before has let in.
    order = payments.request(owner.account_id)
    await database.work(
        lambda rows: rows.exec_driver_sql("update accounts set closes_at = null, version = version + 1")
    )
    await member.ask(owner.account_id, CreateOrder(order))
    due = member.clock() + timedelta(days=7)
    await database.work(
        lambda rows: rows.exec_driver_sql("update accounts set closes_at = %s, version = version + 1", (due,))
    )
    member.clock.forward(days=7)
    worker = worker_of(member, database)
    await worker.sweep()
    assert (await state_of(database, owner.account_id))[:3] == (EMAIL, True, False)
    assert (await member.ask(owner.account_id, FinishClosing())).code == "payment_in_progress"


async def test_receipts_are_kept_whole_and_name_the_buyer(
    member: Member, database: Database, database_url: str, payments: Payments
) -> None:
    owner = await member.sign_in(EMAIL)
    order = await new_order(member, payments, owner.account_id)
    await deliver(member, order, payments.paid(order.order_id))
    await closing(member, owner)
    member.clock.forward(days=7)
    worker = worker_of(member, database)
    receipts = ReceiptsWorker(database=database, terms=TERMS, now=member.clock)
    # The address stays until the payment has its receipt, which is made out to it.
    await worker.sweep()
    assert (await member.ask(owner.account_id, FinishClosing())).code == "payment_in_progress"
    await receipts.issue()
    await worker.sweep()
    assert (await state_of(database, owner.account_id))[:3] == (f"closed:{owner.account_id}", True, True)
    # So is a credit note of later.
    await deliver(member, order, payments.disputed(order.order_id, "lost"))
    await receipts.issue()
    member.clock.forward(days=1)
    await worker.sweep()
    assert (await state_of(database, owner.account_id))[3] is True
    found = await rows_of(database, "select kind, email, credit_micro from receipts order by sequence")
    assert [tuple(row) for row in found] == [
        ("receipt", EMAIL, 10_000_000), ("credit_note", EMAIL, 10_000_000)
    ]  # fmt: skip
    assert audit_receipts(database_url).faults == []
    with connected(database_url) as rows:
        assert run_audit(rows) == {}


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_a_connection_that_breaks_around_the_closing_closes_once(
    database: Database, nursery: trio.Nursery, database_url: str, cut: str
) -> None:
    clock = Clock()
    writer = CutWriter(database.keep_writer(), now=clock)
    member = await start_member(database, nursery, clock, writer=writer)
    owner = await member.sign_in(EMAIL)
    await member.ask(owner.account_id, Recharge(5_000_000))
    await closing(member, owner)
    clock.forward(days=7)
    writer.cut = cut
    worker = worker_of(member, database)
    await worker.sweep()
    await database.gate.wait_open()
    await worker.sweep()
    assert (await state_of(database, owner.account_id))[1:] == (True, True, False, 0)
    clock.forward(days=1)
    writer.cut = cut
    await worker.sweep()
    await database.gate.wait_open()
    await worker.sweep()
    assert (await state_of(database, owner.account_id))[3] is True
    changes = await changes_of(database, owner.account_id)
    assert set(changes) == {"closing", "closed", "erased"}
    assert len(await rows_of(database, "select from operations where kind = 'expiry'")) == 1
    with connected(database_url) as rows:
        assert run_audit(rows) == {}


async def test_a_sign_in_elsewhere_and_the_end_exclude_each_other(
    database: Database, nursery: trio.Nursery
) -> None:
    """Either the account is kept with its session, or it is closed and the sign-in makes a new one."""
    clock = Clock()
    here, there = [await start_member(database, nursery, clock) for _ in range(2)]
    for number in range(6):
        email = f"ada-{number}@example.com"
        owner = await here.sign_in(email)
        await closing(here, owner)
        clock.forward(days=7)
        issued = await there.code(email)
        results: dict[str, Any] = {}

        async def finish(account_id: str = owner.account_id, results: dict[str, Any] = results) -> None:
            results["finish"] = await here.ask(account_id, FinishClosing())

        async def verify(email: str = email, issued: Any = issued, results: dict[str, Any] = results) -> None:
            results["verify"] = await there.verify(email, issued)

        async with trio.open_nursery() as racing:
            for each in (finish, verify) if number % 2 else (verify, finish):
                racing.start_soon(each)
        state = await state_of(database, owner.account_id)
        if results["finish"] == ClosingEnded("kept"):
            assert state[:3] == (email, False, False)
            assert results["verify"].account_id == owner.account_id
        else:
            assert results["finish"] == ClosingEnded("closed")
            assert state[:3] == (f"closed:{owner.account_id}", True, True)
            # The code went with the address; or it was redeemed afterwards, for a new account.
            verified = results["verify"]
            assert isinstance(verified, Refusal) or verified.account_id != owner.account_id
        again = await there.sign_in(email)
        kept = results["finish"] == ClosingEnded("kept")
        assert (again.account_id == owner.account_id) is kept
