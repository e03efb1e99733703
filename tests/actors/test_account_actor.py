"""Account actors on a real database: credit, keys, settling and stored replies."""

from __future__ import annotations

from functools import partial
from typing import Any, get_args

import msgspec
import pytest
import trio
from msgspec.structs import replace
from sqlalchemy import text

from holdfast.actors.account.actor import AccountCommand
from holdfast.actors.account.by_keys import by_key
from holdfast.actors.account.limits import AccountLimits
from holdfast.actors.account.messages import (
    AdjustCredit,
    CreateApiKey,
    CreateOrder,
    CreditChanged,
    GrantCredit,
    Recharge,
    RecordKeyUse,
    RefuseTask,
    RevokeApiKey,
    TaskAccepted,
    VoidLot,
    redeem_coupon,
)
from holdfast.actors.account.replies import RecentReplies
from holdfast.actors.runtime.faults import StaleFence
from holdfast.actors.runtime.messages import IdempotencyKey, Replayed
from holdfast.ledger.api_keys import KeyTerms
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.transitions import Settlement
from holdfast.ledger.values import AMOUNT_MICRO_MAX, utc_now
from holdfast.persistence.records.credit_tables import CouponClaim
from holdfast.persistence.records.key_rows import ApiKeyRecord, ApiKeyRevokedRow
from holdfast.persistence.records.rows import IdempotencyProbe, StoredReply
from holdfast.persistence.server.database import Database
from holdfast.supervision.keyed_group import KeyedLimits

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
    unwrapped,
)


async def count(database: Database, table: str) -> int:
    sql = text(f"select count(*) from {table}")
    return await database.read(lambda connection: int(connection.execute(sql).scalar_one()))


async def read_version(database: Database, account_id: str) -> int:
    sql = text("select version from accounts where id = :id")
    return await database.read(lambda rows: int(rows.execute(sql, {"id": account_id}).scalar_one()))


async def passivated(system: Any) -> None:
    while system.accounts.active_count:  # noqa: ASYNC110 - passivation has no event
        await trio.sleep(0.01)


# ------------------------------------------------------------------------------------------------- credit and keys


async def test_of_200_parallel_tasks_those_the_credit_covers_are_accepted(system: Any, new_task: NewTask) -> None:
    account_id, key_id = await system.open_account(7 * CREDIT)
    replies = await in_parallel([lambda: system.ask(account_id, new_task(key_id))] * 200)
    accepted = [reply for reply in replies if isinstance(reply, TaskAccepted)]
    refused = [reply for reply in replies if isinstance(reply, Refusal)]
    assert (len(accepted), len(refused)) == (7, 193)
    assert {refusal.code for refusal in refused} == {"insufficient_credit"}
    assert await read_totals(system.database, account_id) == (7 * CREDIT, 7 * CREDIT, 8)
    assert sorted(system.announced) == sorted(reply.request_id for reply in accepted)
    assert_audit_clean(system.database)


async def test_50_parallel_calls_with_one_key_create_one_task(system: Any, new_task: NewTask) -> None:
    account_id, key_id = await system.open_account(7 * CREDIT)
    replies = await in_parallel([lambda: system.ask(account_id, new_task(key_id, key="k"))] * 50)
    answers = [unwrapped(reply) for reply in replies]
    assert sum(isinstance(reply, Replayed) for reply in replies) == 49
    assert all(answer == answers[0] for answer in answers)
    assert isinstance(answers[0], TaskAccepted)
    assert await count(system.database, "tasks") == 1
    assert await read_totals(system.database, account_id) == (7 * CREDIT, CREDIT, 2)
    assert len(system.announced) == 1


async def test_a_key_used_for_another_request_is_refused(system: Any) -> None:
    account_id, _ = await system.open_account()
    first = await system.ask(account_id, Recharge(CREDIT, keyed("k")))
    other = await system.ask(account_id, Recharge(2 * CREDIT, keyed("k", b"other body")))
    assert isinstance(first, CreditChanged)
    assert isinstance(other, Refusal)
    assert other.code == "idempotency_key_reused"
    assert other.final
    assert await read_totals(system.database, account_id) == (CREDIT, 0, 1)


async def test_the_same_key_on_another_route_is_another_key(system: Any) -> None:
    account_id, _ = await system.open_account()
    for route in ("POST /a", "POST /b"):
        reply = await system.ask(account_id, Recharge(CREDIT, IdempotencyKey(route, "k", b"body")))
        assert isinstance(reply, CreditChanged)
    assert await read_totals(system.database, account_id) == (2 * CREDIT, 0, 2)


@pytest.mark.parametrize("fingerprint", [b"same body", b"other body"])
async def test_a_key_is_found_in_rows_after_passivation(start_system: StartSystem, fingerprint: bytes) -> None:
    system = await start_system(limits=KeyedLimits(idle_s=0.02))
    account_id, _ = await system.open_account()
    first = await system.ask(account_id, Recharge(CREDIT, keyed("k")))
    await passivated(system)
    again = await system.ask(account_id, Recharge(CREDIT, keyed("k", fingerprint)))
    if fingerprint == b"same body":
        assert again == Replayed(first)
    else:
        assert isinstance(again, Refusal)
        assert again.code == "idempotency_key_reused"
    assert await read_totals(system.database, account_id) == (CREDIT, 0, 1)


async def test_every_command_with_a_key_is_done_once_and_replayed(
    start_system: StartSystem, new_task: NewTask, payments: Any
) -> None:
    """A new command with an Idempotency-Key needs a sample here."""
    system, other_process = await start_system(), await start_system()
    account_id, key_id = await system.open_account()
    account = system.accounts.ref(account_id)
    await account.ask(Recharge(7 * CREDIT))
    create = new_task(key_id, key="create")
    buyer = CreateApiKey("key_buyer", b"b" * 32, "hk_test_b", KeyTerms("buyer", ("orders:write",)))
    await account.ask(buyer)
    samples: list[Any] = [
        Recharge(CREDIT, keyed("recharge")),
        AdjustCredit(CREDIT, await acted_on(system.database, account_id), "goodwill", keyed("adjust")),
        GrantCredit(CREDIT, None, await acted_on(system.database, account_id), "a present", keyed("grant")),
        VoidLot(4, await acted_on(system.database, account_id), "a mistake", keyed("void")),
        redeem_coupon(CouponClaim(account_id, "cpn_1", "cpu_1", CREDIT, None)),
        create,
        RefuseTask(Refusal(code="task_not_terminal", message="It runs."), key_id, create.scope, keyed("refuse")),
        CreateOrder(payments.request(account_id, "sandbox"), keyed("order")),
        by_key(CreateOrder(payments.request(account_id, "sandbox"), keyed("orders")), buyer.key_id, "orders:write"),
    ]
    with_key = {each for each in get_args(AccountCommand) if "idempotency" in each.__struct_fields__}
    assert {type(each) for each in samples} == with_key
    for command in samples:
        first = await account.ask(command)
        version = await read_version(system.database, account_id)
        again = [await account.ask(command), await other_process.accounts.ref(account_id).ask(command)]
        another = replace(command, idempotency=replace(command.idempotency, fingerprint=b"another body"))
        reused = await account.ask(another)
        assert again == [Replayed(first)] * 2, command
        assert reused.code == "idempotency_key_reused"
        assert await read_version(system.database, account_id) == version


async def test_a_used_key_is_replayed_although_a_limit_is_reached(
    start_system: StartSystem, new_task: NewTask, payments: Any
) -> None:
    limits = AccountLimits(tasks_in_flight_max=1, orders_pending_max=1)
    first, second = await start_system(account_limits=limits), await start_system(account_limits=limits)
    account_id, key_id = await first.open_account()
    commands = [
        Recharge(AMOUNT_MICRO_MAX, keyed("k")),
        new_task(key_id, key="k"),
        CreateOrder(payments.request(account_id, "sandbox"), keyed("order")),
    ]
    created = [await first.ask(account_id, command) for command in commands]
    # The other process remembers no answer, and could accept none of them by now.
    again = [await second.ask(account_id, command) for command in commands]
    fresh = [
        await second.ask(account_id, command)
        for command in (
            Recharge(AMOUNT_MICRO_MAX, keyed("other")),
            new_task(key_id, key="other"),
            CreateOrder(payments.request(account_id, "sandbox"), keyed("other order")),
        )
    ]
    assert again == [Replayed(reply) for reply in created]
    assert [refusal.code for refusal in fresh] == [
        "amount_too_large",
        "concurrency_limit_exceeded",
        "too_many_open_orders",
    ]


async def test_hundreds_of_replies_found_in_rows_are_no_crash_loop(start_system: StartSystem) -> None:
    keys = AccountLimits().replies_max + 150
    first, second = await start_system(), await start_system()
    account_id, _ = await first.open_account()
    created = await in_parallel(
        [partial(first.ask, account_id, Recharge(CREDIT, keyed(f"k{i}"))) for i in range(keys)]
    )
    for i in range(keys):
        found = await second.ask(account_id, Recharge(CREDIT, keyed(f"k{i}")))
        assert found == Replayed(created[i])
    assert second.reporter.recent() == ()
    assert await read_totals(first.database, account_id) == (keys * CREDIT, 0, keys)


async def test_more_replies_found_at_once_than_are_remembered(start_system: StartSystem) -> None:
    first = await start_system()
    second = await start_system(account_limits=AccountLimits(replies_max=4))
    account_id, _ = await first.open_account()
    commands = [Recharge(CREDIT, keyed(f"k{i}")) for i in range(30)]
    created = await in_parallel([partial(first.ask, account_id, each) for each in commands])
    again = await in_parallel([partial(second.ask, account_id, each) for each in commands])
    assert again == [Replayed(reply) for reply in created]
    assert second.reporter.recent() == ()
    assert await read_totals(first.database, account_id) == (30 * CREDIT, 0, 30)


def test_replies_found_in_rows_are_bounded() -> None:
    replies = RecentReplies("acct_1", replies_max=3, ttl_s=60)
    refusal = Refusal(code="insufficient_credit", message="No.")
    stored = StoredReply(b"same body", msgspec.json.encode(refusal))
    replies.learn([(IdempotencyProbe("acct_1", "POST /r", f"k{i}"), stored) for i in range(5)])

    def remembered() -> list[str]:
        keys = [IdempotencyKey("POST /r", f"k{i}", b"same body") for i in range(7)]
        return [key.key for key in keys if replies.find(key, CreditChanged) is not None]

    assert remembered() == ["k0", "k1", "k2"]
    for name in ("k5", "k6"):
        replies.add(IdempotencyKey("POST /r", name, b"same body"), refusal, utc_now())
    assert remembered() == ["k2", "k5", "k6"]


async def test_a_refusal_for_insufficient_credit_is_replayed(system: Any, new_task: NewTask) -> None:
    account_id, key_id = await system.open_account()
    refused = await system.ask(account_id, new_task(key_id, key="k"))
    await system.ask(account_id, Recharge(7 * CREDIT))
    again = await system.ask(account_id, new_task(key_id, key="k"))
    fresh = await system.ask(account_id, new_task(key_id, key="another"))
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.required_micro, refused.available_micro) == ("insufficient_credit", CREDIT, 0)
    assert again == Replayed(refused)
    assert isinstance(fresh, TaskAccepted)


async def test_a_conflict_is_stored_under_an_unused_key_only(system: Any, new_task: NewTask) -> None:
    refusal = Refusal(code="task_not_terminal", message="It runs.", final=True)
    account_id, key_id = await system.open_account()
    account = system.accounts.ref(account_id)
    await account.ask(Recharge(7 * CREDIT))
    create = new_task(key_id, key="used")
    accepted = await account.ask(create)
    assert create.idempotency is not None
    refuse = RefuseTask(refusal, key_id, create.scope, create.idempotency)
    assert await account.ask(refuse) == Replayed(accepted)
    unused = replace(refuse, idempotency=replace(create.idempotency, key="unused"))
    assert [await account.ask(unused) for _ in range(2)] == [refusal, Replayed(refusal)]
    assert await account.ask(replace(create, idempotency=unused.idempotency)) == Replayed(refusal)
    revoked = await account.ask(replace(unused, api_key_id="key_unknown"))
    assert isinstance(revoked, Refusal)
    assert revoked.code == "invalid_api_key"
    assert await read_totals(system.database, account_id) == (7 * CREDIT, CREDIT, 2)


async def test_a_revoked_key_is_refused_by_the_next_command(system: Any, new_task: NewTask) -> None:
    account_id, key_id = await system.open_account(7 * CREDIT)
    revoked, refused, again = await in_parallel(
        [
            lambda: system.ask(account_id, RevokeApiKey(key_id)),
            lambda: system.ask(account_id, new_task(key_id)),
            lambda: system.ask(account_id, RevokeApiKey(key_id)),
        ]
    )
    replies = [revoked, refused, again]
    # The three arrive in any order; what came after the revocation is refused.
    assert any(isinstance(reply, ApiKeyRevokedRow) for reply in replies)
    last = await system.ask(account_id, new_task(key_id))
    assert isinstance(last, Refusal)
    assert last.code == "invalid_api_key"


async def test_a_key_without_the_scope_is_refused(system: Any, new_task: NewTask) -> None:
    account_id, _ = await system.open_account()
    reader = CreateApiKey("key_reader", b"r" * 32, "hk_test_r", KeyTerms('a "name", {b}\\', ("tasks:read",)))
    assert isinstance(await system.ask(account_id, reader), ApiKeyRecord)
    refused = await system.ask(account_id, new_task("key_reader"))
    assert isinstance(refused, Refusal)
    assert refused.code == "insufficient_scope"


async def test_recording_a_keys_use_does_not_change_the_version(system: Any) -> None:
    account_id, key_id = await system.open_account()
    at = utc_now()
    await system.ask(account_id, RecordKeyUse(key_id, at))
    sql = text("select version, last_used_at from accounts a join api_keys k on k.account_id = a.id")
    row = await system.database.read(lambda connection: connection.execute(sql).one())
    assert (row.version, row.last_used_at) == (0, at)


# -------------------------------------------------------------------------------------------------------- settling


async def test_a_hold_is_settled_once(system: Any, new_task: NewTask) -> None:
    account_id, key_id = await system.open_account(2 * CREDIT)
    accepted = await system.ask(account_id, new_task(key_id))
    capture = await settle_command(system.database, accepted.request_id, 400_000)
    release = await settle_command(system.database, accepted.request_id, None)
    settled = await system.ask(account_id, capture)
    refused = await system.ask(account_id, release)
    assert settled == capture.settlement
    assert isinstance(refused, Refusal)
    assert refused.code == "hold_not_open"
    assert await read_totals(system.database, account_id) == (1_600_000, 0, 3)
    assert_audit_clean(system.database)


async def test_a_stale_task_is_refused_and_the_account_is_unchanged(system: Any, new_task: NewTask) -> None:
    account_id, key_id = await system.open_account(2 * CREDIT)
    accepted = await system.ask(account_id, new_task(key_id))
    stale = await settle_command(system.database, accepted.request_id, 400_000, version=7)
    outcomes: list[Any] = []

    async def settle() -> None:
        try:
            outcomes.append(await system.ask(account_id, stale))
        except StaleFence as fault:
            outcomes.append(str(fault))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(settle)
        for _ in range(5):
            nursery.start_soon(system.accounts.ref(account_id).ask, Recharge(CREDIT))
    assert outcomes == [f"task {accepted.request_id}"]
    assert await read_totals(system.database, account_id) == (7 * CREDIT, CREDIT, 7)
    good = await settle_command(system.database, accepted.request_id, 400_000)
    assert isinstance(await system.ask(account_id, good), Settlement)
    assert_audit_clean(system.database)
