"""What operators change of an account: its credit, and whether it may be used."""

from __future__ import annotations

from typing import Any

from holdfast.actors.account.messages import (
    AdjustCredit,
    CreateApiKey,
    CreateOrder,
    CreditChanged,
    ReceivePaymentEvent,
    Recharge,
    RevokeApiKey,
    SetAccess,
    SignOut,
    TaskAccepted,
)
from holdfast.actors.runtime.messages import Replayed
from holdfast.ledger.api_keys import KeyTerms
from holdfast.ledger.orders.order import OrderResult
from holdfast.ledger.refusals import ACCOUNT_DISABLED, Refusal
from holdfast.ledger.tasks.transitions import Settlement
from holdfast.persistence.queries.ledger import statement_of_account
from holdfast.persistence.records.rows import AccountAccessRow
from holdfast.persistence.server.database import Database

from .account_checks import (
    CREDIT,
    NewTask,
    StartSystem,
    acted_on,
    assert_audit_clean,
    in_parallel,
    keyed,
    read_totals,
    settle_command,
)
from .actor_system import Payments


async def adjust(system: Any, account_id: str, amount_micro: int, key: str) -> Any:
    action_id = await acted_on(system.database, account_id)
    return await system.ask(account_id, AdjustCredit(amount_micro, action_id, "a note", keyed(key)))


async def test_credit_is_given_and_taken_but_not_what_is_held(
    system: Any, database: Database, new_task: NewTask
) -> None:
    account_id, key_id = await system.open_account()
    account = system.accounts.ref(account_id)
    given = await adjust(system, account_id, 3 * CREDIT, "give")
    assert isinstance(given, CreditChanged)
    assert (given.account.balance_micro, given.amount_micro) == (3 * CREDIT, 3 * CREDIT)
    assert isinstance(await account.ask(new_task(key_id)), TaskAccepted)
    too_much = await adjust(system, account_id, -2 * CREDIT - 1, "take more")
    assert isinstance(too_much, Refusal)
    assert (too_much.code, too_much.required_micro, too_much.available_micro) == (
        "insufficient_credit", 2 * CREDIT + 1, 2 * CREDIT
    )  # fmt: skip
    taken = await adjust(system, account_id, -2 * CREDIT, "take")
    assert isinstance(taken, CreditChanged)
    assert await read_totals(database, account_id) == (CREDIT, CREDIT, 3)
    newest, _, oldest = await database.read(statement_of_account, account_id, limit=9)
    assert newest.postings == (("adjustments", 2 * CREDIT, None), ("available", -2 * CREDIT, 1))
    assert (newest.kind, newest.amount_micro, newest.reason) == ("adjustment", -2 * CREDIT, "a note")
    assert oldest.reference.startswith("act_")
    assert_audit_clean(database)


async def test_parallel_adjustments_with_one_key_are_one(system: Any, database: Database) -> None:
    account_id, _ = await system.open_account()
    replies = await in_parallel([lambda: adjust(system, account_id, CREDIT, "k")] * 20)
    other = await adjust(system, account_id, CREDIT, "other")
    fresh = [reply for reply in replies if isinstance(reply, CreditChanged)]
    assert len(fresh) == 1
    assert [reply for reply in replies if not isinstance(reply, CreditChanged)] == [Replayed(fresh[0])] * 19
    assert other.account.balance_micro == 2 * CREDIT
    assert_audit_clean(database)


async def test_a_disabled_account_gets_nothing_new_and_finishes_what_runs(
    system: Any, database: Database, new_task: NewTask, payments: Payments
) -> None:
    account_id, key_id = await system.open_account()
    account = system.accounts.ref(account_id)
    await account.ask(Recharge(5 * CREDIT))
    running = await account.ask(new_task(key_id))
    request = payments.request(account_id)
    assert isinstance(await account.ask(CreateOrder(request)), OrderResult)
    disabled = await account.ask(SetAccess(is_disabled=True))
    assert isinstance(disabled, AccountAccessRow)
    assert disabled.disabled_at is not None
    assert await account.ask(SetAccess(is_disabled=True)) == disabled
    for command in (
        Recharge(CREDIT),
        Recharge(CREDIT, keyed("k")),
        new_task(key_id),
        new_task(key_id, key="k"),
        new_task("key_unknown"),
        CreateApiKey("key_2", b"k" * 32, "hk_test_r", KeyTerms("a key", ("tasks:read",))),
        CreateOrder(payments.request(account_id)),
    ):
        assert await account.ask(command) == ACCOUNT_DISABLED
    settled = await account.ask(await settle_command(database, running.request_id, CREDIT))
    assert isinstance(settled, Settlement)
    paid = await account.ask(ReceivePaymentEvent(request.order_id, payments.paid(request.order_id), b"{}"))
    assert isinstance(paid, OrderResult)
    assert isinstance(await adjust(system, account_id, CREDIT, "gift"), CreditChanged)
    for still_allowed in (SignOut("ses_1"), RevokeApiKey(key_id)):
        assert not isinstance(await account.ask(still_allowed), Refusal)
    totals = await read_totals(database, account_id)
    assert totals == (5 * CREDIT - CREDIT + request.amount_micro + CREDIT, 0, 5)
    assert await account.ask(SetAccess(is_disabled=False)) == AccountAccessRow(account_id, None)
    assert isinstance(await account.ask(Recharge(CREDIT, keyed("k"))), CreditChanged)
    assert_audit_clean(database)


async def test_other_processes_and_restarts_know_that_an_account_is_disabled(
    start_system: StartSystem, new_task: NewTask
) -> None:
    one, other = await start_system(), await start_system()
    account_id, key_id = await one.open_account(5 * CREDIT)
    assert isinstance(await other.ask(account_id, new_task(key_id)), TaskAccepted)
    await one.ask(account_id, SetAccess(is_disabled=True))
    # The other has the account in memory as it was; the fence voids its decision.
    assert await other.ask(account_id, new_task(key_id)) == ACCOUNT_DISABLED
    third = await start_system()
    assert await third.ask(account_id, new_task(key_id)) == ACCOUNT_DISABLED
