"""Account actors with limits: what a key or the whole account may spend, and what a key may be used for."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Connection, event, select

from holdfast.actors.account.messages import (
    ChangeApiKey,
    CreateApiKey,
    CreateTask,
    PutWebhook,
    RefuseTask,
    RevokeApiKey,
    SetAlerts,
    SetCeiling,
    SetLimits,
    TaskAccepted,
)
from holdfast.actors.runtime.messages import IdempotencyKey, Replayed
from holdfast.ledger.api_keys import KeyTerms
from holdfast.ledger.credit.limits import Limit, Spending
from holdfast.ledger.public_types import LimitWindow
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import new_id
from holdfast.persistence.journal.statements import draft_of
from holdfast.persistence.queries.loading import load_account
from holdfast.persistence.queries.spending import keys_with_spending, spending_of_account
from holdfast.persistence.records import tables
from holdfast.persistence.records.key_rows import ApiKeyRecord
from holdfast.persistence.server.database import Database

from .account_checks import (
    CREDIT,
    Clock,
    NewTask,
    StartSystem,
    assert_audit_clean,
    in_parallel,
    settle_command,
    unwrapped,
)

NOON = datetime(2026, 11, 25, 12, tzinfo=UTC)
"""A Wednesday."""
EVENING = NOON.replace(hour=23, minute=59)


@pytest.fixture
def clock() -> Clock:
    return Clock(NOON)


@pytest.fixture
async def system(start_system: StartSystem, clock: Clock) -> Any:
    return await start_system(now=clock)


def day(amount: int) -> Limit:
    return Limit(amount * CREDIT, "day")


async def limited_key(system: Any, account_id: str, limit: Limit, **terms: Any) -> str:
    """Create a key with a limit."""
    key_id = new_id("key")
    of_key = KeyTerms("limited", ("tasks:write",), **terms)
    command = CreateApiKey(key_id, key_id.encode(), "hk_test_l", of_key, limit)
    assert isinstance(await system.ask(account_id, command), ApiKeyRecord)
    return key_id


async def created(system: Any, account_id: str, command: CreateTask) -> str:
    """Create a task; its id, or the code of its refusal."""
    reply = unwrapped(await system.ask(account_id, command))
    return reply.request_id if isinstance(reply, TaskAccepted) else reply.code


async def settled(system: Any, account_id: str, request_id: str, charge_micro: int | None) -> None:
    reply = await system.ask(account_id, await settle_command(system.database, request_id, charge_micro))
    assert not isinstance(reply, Refusal)


async def in_rows(database: Database, account_id: str) -> dict[tuple[str, LimitWindow], Spending]:
    """What an actor that starts now finds of the limits."""
    spending = (await database.read(load_account, account_id)).spending
    return {(each.limited_id, each.window): each for each in spending or ()}


async def test_of_100_parallel_tasks_those_the_keys_limit_covers_are_accepted(
    start_system: StartSystem, new_task: NewTask, clock: Clock
) -> None:
    """Also over two processes, neither of which knows of the other."""
    systems = [await start_system(now=clock) for _ in range(2)]
    account_id, free_key = await systems[0].open_account(500 * CREDIT)
    key_id = await limited_key(systems[0], account_id, day(7))
    replies = await in_parallel(
        [partial(created, systems[number % 2], account_id, new_task(key_id)) for number in range(100)]
    )
    accepted = [reply for reply in replies if reply.startswith("task_")]
    assert Counter(replies)["key_limit_exceeded"] == 93
    assert len(accepted) == 7
    # A release and the rest of a capture give room again, which one that is captured in full does not.
    for request_id, charge_micro in zip(accepted, (None, 0, CREDIT // 2, CREDIT // 2, CREDIT), strict=False):
        await settled(systems[1], account_id, request_id, charge_micro)
    again = await in_parallel(
        [partial(created, systems[number % 2], account_id, new_task(key_id)) for number in range(10)]
    )
    assert Counter(again)["key_limit_exceeded"] == 7
    # The account's other key is not limited.
    assert (await created(systems[0], account_id, new_task(free_key))).startswith("task_")
    [limit] = (await in_rows(systems[0].database, account_id)).values()
    assert (limit.captured_micro, limit.held_micro) == (2 * CREDIT, 5 * CREDIT)
    assert_audit_clean(systems[0].database)


async def test_no_task_of_a_key_costs_more_than_each_may(
    start_system: StartSystem, new_task: NewTask, clock: Clock
) -> None:
    """Whichever process decides it, and before anything is held; a change counts for the next task."""
    systems = [await start_system(now=clock) for _ in range(2)]
    account_id, free_key = await systems[0].open_account(100 * CREDIT)
    key_id = await limited_key(systems[0], account_id, day(50), max_credits_per_task_micro=2 * CREDIT)
    for system in systems:
        reply = await system.ask(account_id, new_task(key_id, hold_micro=2 * CREDIT + 1))
        assert isinstance(reply, Refusal)
        assert (reply.code, reply.required_micro) == ("max_credits_exceeded", 2 * CREDIT + 1)
        assert reply.message == "The task can cost 2.000001 credits; a task of this API key may cost 2.00 at most."
        assert (await created(system, account_id, new_task(key_id, hold_micro=2 * CREDIT))).startswith("task_")
        assert (await created(system, account_id, new_task(free_key, hold_micro=3 * CREDIT))).startswith("task_")
    await systems[0].ask(account_id, ChangeApiKey(key_id, {"max_credits_per_task_micro": None}))
    assert (await created(systems[1], account_id, new_task(key_id, hold_micro=3 * CREDIT))).startswith("task_")
    await systems[1].ask(account_id, ChangeApiKey(key_id, {"max_credits_per_task_micro": CREDIT}))
    keyed = new_task(key_id, hold_micro=2 * CREDIT, key="mine")
    assert await created(systems[0], account_id, keyed) == "max_credits_exceeded"
    found = (await in_rows(systems[0].database, account_id))[key_id, "day"]
    assert found.held_micro == 7 * CREDIT
    assert_audit_clean(systems[0].database)


async def test_the_next_window_is_empty_and_yesterdays_holds_are_not_in_it(
    system: Any, new_task: NewTask, clock: Clock
) -> None:
    account_id, _ = await system.open_account(500 * CREDIT)
    key_id = await limited_key(system, account_id, day(3))
    clock.at = EVENING
    evening = [await created(system, account_id, new_task(key_id)) for _ in range(4)]
    assert evening[3] == "key_limit_exceeded"
    clock.at += timedelta(minutes=1)
    morning = [await created(system, account_id, new_task(key_id)) for _ in range(4)]
    assert morning[3] == "key_limit_exceeded"
    # A review that takes long settles in the window of its hold, and makes no room in another.
    await settled(system, account_id, evening[0], CREDIT)
    assert_audit_clean(system.database)
    await settled(system, account_id, evening[1], None)
    assert await created(system, account_id, new_task(key_id)) == "key_limit_exceeded"
    await settled(system, account_id, morning[0], CREDIT // 4)
    found = (await in_rows(system.database, account_id))[key_id, "day"]
    assert found.starts_at == NOON.replace(hour=0) + timedelta(days=1)
    assert (found.captured_micro, found.held_micro) == (CREDIT // 4, 2 * CREDIT)
    assert_audit_clean(system.database)


async def test_a_hold_of_yesterday_is_captured_after_a_refusal_of_today(
    system: Any, new_task: NewTask, clock: Clock
) -> None:
    """The refusal writes nothing of the new window, which is begun all the same."""
    account_id, _ = await system.open_account(500 * CREDIT)
    await system.ask(account_id, SetLimits((Limit(9 * CREDIT, "day"),)))
    key_id, other_id = [await limited_key(system, account_id, day(3)) for _ in range(2)]
    clock.at = EVENING
    evening = await created(system, account_id, new_task(key_id))
    clock.at += timedelta(minutes=1)
    assert await created(system, account_id, new_task(other_id, hold_micro=4 * CREDIT)) == "key_limit_exceeded"
    await settled(system, account_id, evening, CREDIT)
    assert_audit_clean(system.database)
    captured = {key: each.captured_micro for (key, _), each in (await in_rows(system.database, account_id)).items()}
    assert captured == {key_id: CREDIT, other_id: 0, "": 0}


async def test_a_limit_that_is_changed_counts_what_was_spent_before(
    system: Any, new_task: NewTask, clock: Clock
) -> None:
    account_id, key_id = await system.open_account(500 * CREDIT)
    clock.at = NOON - timedelta(days=3)  # last Sunday
    sunday = await created(system, account_id, new_task(key_id, hold_micro=5 * CREDIT))
    await settled(system, account_id, sunday, 4 * CREDIT)
    clock.at = NOON - timedelta(days=1)
    tuesday = await created(system, account_id, new_task(key_id, hold_micro=2 * CREDIT))
    await settled(system, account_id, tuesday, 2 * CREDIT)
    clock.at = NOON
    today = await created(system, account_id, new_task(key_id, hold_micro=CREDIT))
    # What was captured and is still held, in each kind of window; the second of a kind keeps its count.
    for limit, spent in (
        (day(50), 1),
        (Limit(50 * CREDIT, "week"), 3),
        (Limit(9 * CREDIT, "week"), 3),
        (Limit(50 * CREDIT, "month"), 7),
        (Limit(50 * CREDIT, "total"), 7),
    ):
        assert await system.ask(account_id, ChangeApiKey(key_id, {}, limit=limit)) is None
        [found] = (await in_rows(system.database, account_id)).values()
        assert (found.window, found.limit_micro, found.spent_micro) == (
            limit.window,
            limit.credits_micro,
            spent * CREDIT,
        )
        assert_audit_clean(system.database)
    # Lowered below what is spent, it refuses from then on.
    await system.ask(account_id, ChangeApiKey(key_id, {}, limit=Limit(2 * CREDIT, "total")))
    assert await created(system, account_id, new_task(key_id)) == "key_limit_exceeded"
    await settled(system, account_id, today, CREDIT)
    await system.ask(account_id, ChangeApiKey(key_id, {}, limit=None))
    assert await in_rows(system.database, account_id) == {}
    assert (await created(system, account_id, new_task(key_id))).startswith("task_")
    assert_audit_clean(system.database)


async def test_a_key_has_limits_of_several_windows_and_models(
    start_system: StartSystem, new_task: NewTask, clock: Clock
) -> None:
    """Each hold counts in all that are for its model, also in a process that reads them again from the rows."""
    here, there = [await start_system(now=clock) for _ in range(2)]
    account_id, _ = await here.open_account(500 * CREDIT)
    model, key_id = new_task("key").request.terms.model, new_id("key")
    month, of_model = Limit(5 * CREDIT, "month"), Limit(4 * CREDIT, "total", (model,))
    more = (day(2), of_model, Limit(CREDIT, "day", ("other/*",)))
    terms = KeyTerms("limited", ("tasks:write",))
    command = CreateApiKey(key_id, key_id.encode(), "hk_test_l", terms, month, more)
    assert isinstance(await here.ask(account_id, command), ApiKeyRecord)

    async def exceeded(system: Any) -> tuple[str, tuple[str, ...]]:
        reply = await system.ask(account_id, new_task(key_id))
        assert isinstance(reply, Refusal)
        assert reply.limit is not None
        return reply.limit.window, reply.limit.models

    first, second = [await created(system, account_id, new_task(key_id)) for system in (here, there)]
    assert await exceeded(here) == await exceeded(there) == ("day", ())
    await settled(there, account_id, first, CREDIT)
    await settled(here, account_id, second, CREDIT // 2)
    clock.at += timedelta(days=1)
    # A day later half of the month's and of the total is spent; what is released today counts no more today.
    for system in (there, here):
        released = await created(system, account_id, new_task(key_id))
        await settled(here, account_id, released, None)
    for system in (here, there):
        await settled(here, account_id, await created(system, account_id, new_task(key_id)), CREDIT)
    clock.at += timedelta(days=1)
    for system in (here, there):
        assert await exceeded(system) == ("total", (model,))
    found = {each.kind: each for each in (await here.database.read(load_account, account_id)).spending or ()}
    assert {kind: (each.spent_micro, each.is_in_row) for kind, each in found.items()} == {
        ("month", ()): (7 * CREDIT // 2, True),
        ("day", ()): (2 * CREDIT, False),
        ("total", (model,)): (7 * CREDIT // 2, False),
        ("day", ("other/*",)): (0, False),
    }
    # Others count what was spent before; the one that the row counted is counted from the totals now.
    await there.ask(account_id, ChangeApiKey(key_id, {}, Limit(4 * CREDIT, "week"), (month,)))
    assert await exceeded(here) == ("week", ())
    found = {each.kind: each for each in (await here.database.read(load_account, account_id)).spending or ()}
    assert [(each.spent_micro, each.is_in_row) for each in found.values()] == [
        (7 * CREDIT // 2, True), (7 * CREDIT // 2, False),
    ]  # fmt: skip
    assert_audit_clean(here.database)
    # One limit alone replaces all, as it does for a process that knows no other.
    await here.ask(account_id, ChangeApiKey(key_id, {}, limit=day(1)))
    assert set(await in_rows(here.database, account_id)) == {(key_id, "day")}
    assert (await created(there, account_id, new_task(key_id))).startswith("task_")
    assert await exceeded(there) == ("day", ())
    assert_audit_clean(here.database)


async def test_the_account_has_a_limit_and_an_operators_ceiling_for_each_window(
    system: Any, new_task: NewTask
) -> None:
    account_id, key_id = await system.open_account(500 * CREDIT)
    first = await created(system, account_id, new_task(key_id, hold_micro=3 * CREDIT))
    limited = await limited_key(system, account_id, day(2))
    await system.ask(account_id, SetLimits((day(5), Limit(20 * CREDIT, "month"))))
    assert await created(system, account_id, new_task(limited, hold_micro=3 * CREDIT)) == "key_limit_exceeded"
    assert await created(system, account_id, new_task(key_id, hold_micro=3 * CREDIT)) == "account_limit_exceeded"
    assert (await created(system, account_id, new_task(limited, hold_micro=2 * CREDIT))).startswith("task_")
    # The ceiling counts beside the limit, also without one, and the owner cannot go above it.
    await system.ask(account_id, SetCeiling("day", 6 * CREDIT))
    refused = await system.ask(account_id, SetLimits((day(7),)))
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.param) == ("limit_above_ceiling", "limits")
    await system.ask(account_id, SetLimits(()))
    assert await created(system, account_id, new_task(key_id, hold_micro=2 * CREDIT)) == "account_limit_exceeded"
    last = await created(system, account_id, new_task(key_id, hold_micro=CREDIT))
    for request_id in (first, last):
        await settled(system, account_id, request_id, CREDIT)
    found = (await in_rows(system.database, account_id))["", "day"]
    assert (found.limit_micro, found.ceiling_micro) == (None, 6 * CREDIT)
    assert (found.captured_micro, found.held_micro) == (2 * CREDIT, 2 * CREDIT)
    assert_audit_clean(system.database)
    await system.ask(account_id, SetCeiling("day", None))
    assert (await created(system, account_id, new_task(key_id, hold_micro=90 * CREDIT))).startswith("task_")
    assert set(await in_rows(system.database, account_id)) == {(limited, "day")}
    # Set again, a limit counts what was spent while there was none.
    await system.ask(account_id, SetLimits((Limit(100 * CREDIT, "total"),)))
    assert (await in_rows(system.database, account_id))["", "total"].spent_micro == 94 * CREDIT
    assert_audit_clean(system.database)


async def test_a_task_of_the_owners_session_counts_for_the_account_alone(system: Any, new_task: NewTask) -> None:
    account_id, key_id = await system.open_account(500 * CREDIT)
    limited = await limited_key(system, account_id, day(2), models=("gpu/*",))
    await system.ask(account_id, SetLimits((day(5),)))

    def by_session(hold_micro: int) -> CreateTask:
        command = new_task(key_id, hold_micro=hold_micro)
        return replace(command, request=replace(command.request, api_key_id=None))

    first = await created(system, account_id, by_session(4 * CREDIT))
    assert first.startswith("task_")
    assert await created(system, account_id, by_session(2 * CREDIT)) == "account_limit_exceeded"
    await settled(system, account_id, first, 3 * CREDIT)
    assert (await created(system, account_id, by_session(2 * CREDIT))).startswith("task_")
    found = await in_rows(system.database, account_id)
    assert found[limited, "day"].spent_micro == 0
    assert found["", "day"].spent_micro == 5 * CREDIT
    # No key stands for it: an empty id of one that creates is refused.
    command = new_task("", hold_micro=CREDIT)
    assert await created(system, account_id, command) == "invalid_api_key"
    assert_audit_clean(system.database)


async def test_the_refusal_of_a_sessions_task_is_replayed(system: Any) -> None:
    account_id, _ = await system.open_account(CREDIT)
    refusal = Refusal(code="quote_expired", message="Too old.")
    idempotency = IdempotencyKey("POST /v2/control/tasks", "k", b"same body")
    command = RefuseTask(refusal, "", "tasks:write", idempotency)
    assert await system.ask(account_id, command) == refusal
    assert await system.ask(account_id, command) == Replayed(refusal)


async def test_a_resend_is_answered_as_before_whatever_the_limit_is_now(system: Any, new_task: NewTask) -> None:
    account_id, _ = await system.open_account(500 * CREDIT)
    key_id = await limited_key(system, account_id, day(1))
    command, other = new_task(key_id, key="k"), new_task(key_id, key="l")
    first = await system.ask(account_id, command)
    refused = await system.ask(account_id, other)
    assert isinstance(refused, Refusal)
    assert refused.code == "key_limit_exceeded"
    await system.ask(account_id, ChangeApiKey(key_id, {"models": ("other/model",)}))
    assert await system.ask(account_id, command) == Replayed(first)
    # A refusal for credit is remembered, as another one of 402 is; one for the model is decided again.
    assert await system.ask(account_id, other) == Replayed(refused)
    not_allowed = await system.ask(account_id, new_task(key_id, key="m"))
    assert (not_allowed.code, not_allowed.param) == ("model_not_allowed", "model")
    await system.ask(account_id, ChangeApiKey(key_id, {"models": ()}, day(2)))
    assert (await created(system, account_id, new_task(key_id, key="m"))).startswith("task_")


@pytest.mark.parametrize("is_rival", [False, True])
async def test_a_change_of_a_key_counts_from_the_next_task_on_in_every_process(
    start_system: StartSystem, new_task: NewTask, clock: Clock, *, is_rival: bool
) -> None:
    """Also in a process whose actor has read the key before."""
    system = await start_system(now=clock)
    other = await start_system(now=clock) if is_rival else system
    account_id, key_id = await system.open_account(500 * CREDIT)
    model = new_task(key_id).request.terms.model

    async def outcome() -> str:
        return (await created(other, account_id, new_task(key_id))).partition("_")[0]

    assert await outcome() == "task"
    changes: list[tuple[ChangeApiKey, ChangeApiKey, str]] = [
        (ChangeApiKey(key_id, {"is_paused": True}), ChangeApiKey(key_id, {"is_paused": False}), "api"),
        (
            ChangeApiKey(key_id, {"expires_at": NOON}),
            ChangeApiKey(key_id, {"expires_at": NOON + timedelta(hours=1)}),
            "api",
        ),
        (
            ChangeApiKey(key_id, {"models": ("other/*",)}),
            ChangeApiKey(key_id, {"models": ("other/*", model)}),
            "model",
        ),
        (ChangeApiKey(key_id, {}, day(1)), ChangeApiKey(key_id, {}, day(100)), "key"),
    ]
    for change, back, code in changes:
        assert await system.ask(account_id, change) is None
        assert await outcome() == code
        assert await system.ask(account_id, back) is None
        assert await outcome() == "task"
    # What was not named stays.
    await system.ask(account_id, ChangeApiKey(key_id, {"name": "renamed"}))
    clock.at += timedelta(hours=1)
    assert await created(other, account_id, new_task(key_id)) == "api_key_expired"
    loaded = await system.database.read(load_account, account_id)
    assert loaded.live_keys[key_id].models == ("other/*", model)
    await system.ask(account_id, RevokeApiKey(key_id))
    assert await in_rows(system.database, account_id) == {}
    gone = await system.ask(account_id, ChangeApiKey(key_id, {"is_paused": False}))
    assert gone.code == "api_key_not_found"
    assert_audit_clean(system.database)


async def test_a_retry_counts_as_any_task_and_no_capture_exceeds_the_limit(system: Any, new_task: NewTask) -> None:
    account_id, _ = await system.open_account(500 * CREDIT)
    key_id = await limited_key(system, account_id, day(2))
    first = await created(system, account_id, new_task(key_id, hold_micro=2 * CREDIT))
    command = new_task(key_id, hold_micro=CREDIT)
    retry = replace(command, request=replace(command.request, retry_of=first))
    assert await created(system, account_id, retry) == "key_limit_exceeded"
    too_much = await system.ask(account_id, await settle_command(system.database, first, 2 * CREDIT + 1))
    assert too_much.code == "capture_exceeds_hold"
    await settled(system, account_id, first, CREDIT)
    assert (await created(system, account_id, retry)).startswith("task_")
    assert_audit_clean(system.database)


async def announced(system: Any, account_id: str) -> list[tuple[str | None, str, str, str]]:
    """What was announced of limits: the key, the window, the limit and what is spent, the oldest first."""
    outbox = tables.outbox
    query = select(outbox.c.snapshot).where(outbox.c.account_id == account_id).order_by(outbox.c.event_id)
    found = await system.database.read(lambda rows: rows.execute(query).scalars().all())
    return [(each["api_key_id"], each["window"], each["limit"], each["spent"]) for each in found]


async def test_what_is_spent_is_read_with_its_limits_in_one_statement(system: Any, new_task: NewTask) -> None:
    """Between two, a hold could end: it would be open in neither."""
    account_id, _ = await system.open_account(100 * CREDIT)
    key_id = await limited_key(system, account_id, day(7))
    await system.ask(account_id, SetLimits((day(9),)))
    held, captured = [await created(system, account_id, new_task(key_id)) for _ in range(2)]
    await settled(system, account_id, captured, CREDIT // 4)

    def read(rows: Connection) -> tuple[list[Spending], int]:
        statements: list[str] = []
        event.listen(rows, "before_cursor_execute", lambda *args: statements.append(args[2]))
        _, of_keys = keys_with_spending(rows, account_id)
        return [*of_keys, *spending_of_account(rows, account_id)], len(statements)

    found, statements = await system.database.read(read)
    assert [(each.captured_micro, each.held_micro) for each in found] == [(CREDIT // 4, CREDIT)] * 2
    assert statements == 2, "one for the keys, one for the account"
    await settled(system, account_id, held, None)


async def test_a_reached_limit_is_announced_once_in_a_window(system: Any, new_task: NewTask, clock: Clock) -> None:
    account_id, _ = await system.open_account(500 * CREDIT)
    events, url = ("key.limit_reached",), "https://a.example/"
    await system.ask(account_id, PutWebhook(new_id("wh"), is_new=True, url=url, events=events))
    await system.ask(account_id, SetAlerts(balance_below_micro=None, limit_share=0.5, email=False))
    key_id = await limited_key(system, account_id, day(4))
    await system.ask(account_id, SetLimits((Limit(10 * CREDIT, "total"),)))
    first, second, third = [await created(system, account_id, new_task(key_id)) for _ in range(3)]
    # The second reaches half of the limit; the third is no further crossing.
    crossing = (key_id, "day", "4.00", "2.00")
    assert await announced(system, account_id) == [crossing]
    await settled(system, account_id, first, CREDIT)
    for request_id in (second, third):
        await settled(system, account_id, request_id, None)
    await created(system, account_id, new_task(key_id))
    # The releases have made room, so it is reached again, and its owner knows that.
    assert await announced(system, account_id) == [crossing]
    # Another share is another alert, announced by the next hold that is beyond it.
    await system.ask(account_id, SetAlerts(balance_below_micro=None, limit_share=0.75, email=False))
    await created(system, account_id, new_task(key_id))
    assert await announced(system, account_id) == [crossing, (key_id, "day", "4.00", "3.00")]
    await system.ask(account_id, SetAlerts(balance_below_micro=None, limit_share=0.5, email=False))
    # Another window and another amount are crossings of their own; the account's limit is announced without a key.
    clock.at += timedelta(days=1)
    await created(system, account_id, new_task(key_id, hold_micro=3 * CREDIT))
    await system.ask(account_id, ChangeApiKey(key_id, {}, limit=day(3)))
    assert (await announced(system, account_id))[2:] == [
        (key_id, "day", "4.00", "3.00"),
        (None, "total", "10.00", "6.00"),
        (key_id, "day", "3.00", "3.00"),
    ]
    # What was spent yesterday is beyond no limit of today.
    clock.at += timedelta(days=1)
    await system.ask(account_id, ChangeApiKey(key_id, {}, limit=day(2)))
    assert len(await announced(system, account_id)) == 5
    await system.ask(account_id, RevokeApiKey(key_id))
    await system.ask(account_id, SetLimits(()))
    alerts = (await system.database.read(load_account, account_id)).alerts
    assert alerts.announced == {}
    assert_audit_clean(system.database)


@pytest.mark.parametrize("is_resendable", [False, True])
async def test_a_refusal_before_the_share_is_spent_is_announced_once_in_a_window(
    system: Any, new_task: NewTask, clock: Clock, *, is_resendable: bool
) -> None:
    account_id, _ = await system.open_account(500 * CREDIT)
    events, url = ("key.limit_reached",), "https://a.example/"
    await system.ask(account_id, PutWebhook(new_id("wh"), is_new=True, url=url, events=events))
    await system.ask(account_id, SetAlerts(balance_below_micro=None, limit_share=1.0, email=False))
    key_id = await limited_key(system, account_id, day(2))
    open_ = await created(system, account_id, new_task(key_id))
    for number in range(3):
        task = new_task(key_id, hold_micro=2 * CREDIT, key=f"k{number}" if is_resendable else None)
        assert await created(system, account_id, task) == "key_limit_exceeded"
    await settled(system, account_id, open_, None)
    await created(system, account_id, new_task(key_id, hold_micro=2 * CREDIT))
    assert await announced(system, account_id) == [(key_id, "day", "2.00", "1.00")]
    clock.at += timedelta(days=1)
    await created(system, account_id, new_task(key_id, hold_micro=2 * CREDIT))
    assert len(await announced(system, account_id)) == 2
    assert_audit_clean(system.database)


async def test_what_an_account_without_limits_writes_and_reads_is_what_it_was(
    system: Any, new_task: NewTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit, one more statement settles a task; none more creates one."""
    drafts: list[int] = []

    def drafted(*given: Any) -> Any:
        draft = draft_of(*given)
        drafts.append(len(draft.statements))
        return draft

    monkeypatch.setattr("holdfast.persistence.journal.writer.draft_of", drafted)
    account_id, free_key = await system.open_account(500 * CREDIT)
    lengths = {}
    for key_id in (free_key, await limited_key(system, account_id, day(5))):
        before = len(drafts)
        request_id = await created(system, account_id, new_task(key_id))
        await settled(system, account_id, request_id, CREDIT)
        lengths[key_id] = drafts[before:]
    [free, limited] = lengths.values()
    assert [free[0], free[1] + 1] == limited
