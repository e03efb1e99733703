"""Account actors with key groups: one budget of several keys, and what a key that manages others does with it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast.actors.account.by_keys import by_key
from holdfast.actors.account.group_messages import ChangeKeyGroup, CreateKeyGroup, DeleteKeyGroup
from holdfast.actors.account.messages import ChangeApiKey, PutWebhook, RevokeApiKey, SetLimits
from holdfast.ledger.api_keys import KEY_GROUPS_MAX
from holdfast.ledger.credit.limits import Limit, Spending
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import new_id
from holdfast.persistence.queries.loading import load_account
from holdfast.persistence.queries.spending import groups_with_spending
from holdfast.persistence.records.key_rows import KeyGroupRow

from .account_checks import CREDIT, Clock, NewTask, StartSystem, assert_audit_clean, in_parallel
from .test_account_limits import created, day, settled
from .test_keys_by_keys import NOON, asked, history, made, new_key

MANAGER = ("tasks:read", "tasks:write", "keys:write", "limits:write")


@pytest.fixture
def clock() -> Clock:
    return Clock(NOON)


@pytest.fixture
async def system(start_system: StartSystem, clock: Clock) -> Any:
    return await start_system(now=clock)


async def group(system: Any, account_id: str, *limits: Limit, name: str = "team") -> str:
    """Create a group."""
    row = await system.ask(account_id, CreateKeyGroup(new_id("grp"), name, limits))
    assert isinstance(row, KeyGroupRow)
    return row.group_id


async def key_in(
    system: Any, account_id: str, group_id: str | None, limit: Limit | None = None, **terms: Any
) -> str:
    """Have the owner create a key in a group."""
    reply = await system.ask(account_id, in_group(new_key(limit, **terms), group_id))
    key_id: str = reply.key_id
    return key_id


def in_group(command: Any, group_id: str | None) -> Any:
    fields = {name: getattr(command, name) for name in command.__struct_fields__}
    return type(command)(**{**fields, "group_id": group_id})


async def spent(system: Any, account_id: str) -> dict[tuple[str, str], int]:
    """What an actor that starts now finds spent of groups' limits, in credits; a list of them says the same."""
    loaded = (await system.database.read(load_account, account_id)).spending or ()
    _, shown = await system.database.read(groups_with_spending, account_id)

    def of_groups(limits: Any) -> dict[tuple[str, str], int]:
        found: list[Spending] = [each for each in limits if each.group_name is not None]
        return {(each.limited_id, each.window): each.spent_micro // CREDIT for each in found}

    assert of_groups(loaded) == of_groups(shown)
    return of_groups(loaded)


async def test_of_parallel_tasks_those_the_groups_limit_covers_are_accepted(
    start_system: StartSystem, new_task: NewTask, clock: Clock
) -> None:
    """Also over two processes, neither of which knows of the other, and beside the limit of a key."""
    systems = [await start_system(now=clock) for _ in range(2)]
    account_id, free_key = await systems[0].open_account(500 * CREDIT)
    group_id = await group(systems[0], account_id, day(10))
    keys = [await key_in(systems[0], account_id, group_id, limit) for limit in (None, None, day(3))]
    tasks = [new_task(key_id) for key_id in keys for _ in range(12)]
    replies = await in_parallel(
        [
            lambda n=n, task=task: created(systems[n % 2], account_id, task)  # type: ignore[misc]
            for n, task in enumerate(tasks)
        ]
    )
    assert sum(each.startswith("task_") for each in replies) == 10
    assert {each for each in replies if not each.startswith("task_")} == {"key_limit_exceeded"}
    assert sum(each.startswith("task_") for each in replies[24:]) <= 3
    assert (await created(systems[0], account_id, new_task(free_key))).startswith("task_")
    assert await spent(systems[1], account_id) == {(group_id, "day"): 10}
    assert_audit_clean(systems[0].database)


async def test_a_refusal_names_the_group_and_is_announced_once(system: Any, new_task: NewTask) -> None:
    account_id, _ = await system.open_account(500 * CREDIT)
    hook = PutWebhook("wh_1", is_new=True, url="https://a.example/", events=("key.limit_reached",))
    assert not isinstance(await system.ask(account_id, hook), Refusal)
    group_id = await group(system, account_id, Limit(2 * CREDIT, "month"), name="render farm")
    first, second = [await key_in(system, account_id, group_id) for _ in range(2)]
    assert (await created(system, account_id, new_task(first))).startswith("task_")
    for _ in range(2):
        refused = await system.ask(account_id, new_task(second, hold_micro=2 * CREDIT))
        assert refused.code == "key_limit_exceeded"
        assert "the limit of the API key's group 'render farm', of 2.00 a month, of which 1.00 is spent" in (
            refused.message
        )
        assert refused.limit.group_id == group_id
    loaded = await system.database.read(load_account, account_id)
    assert [subject for subject in loaded.alerts.announced if subject.startswith("limit:")] == [
        f"limit:{group_id}:month"
    ]


async def test_windows_models_restarts_and_revocations(
    start_system: StartSystem, system: Any, new_task: NewTask, clock: Clock
) -> None:
    account_id, _ = await system.open_account(500 * CREDIT)
    limits = (day(3), Limit(5 * CREDIT, "total"), Limit(CREDIT, "week", ("other/*",)))
    group_id = await group(system, account_id, *limits)
    first, second = [await key_in(system, account_id, group_id) for _ in range(2)]
    tasks = [await created(system, account_id, new_task(key_id)) for key_id in (first, first, second)]
    assert await created(system, account_id, new_task(second)) == "key_limit_exceeded"
    await settled(system, account_id, tasks[0], CREDIT)
    await settled(system, account_id, tasks[2], None)
    # What a revoked key has spent counts on, in its open holds as in what is captured of them later.
    await system.ask(account_id, RevokeApiKey(first))
    assert await spent(system, account_id) == {(group_id, "day"): 2, (group_id, "total"): 2, (group_id, "week"): 0}
    other = await start_system(now=clock)
    await settled(other, account_id, tasks[1], CREDIT)
    assert (await created(other, account_id, new_task(second))).startswith("task_")
    assert await created(other, account_id, new_task(second)) == "key_limit_exceeded"
    assert await created(system, account_id, new_task(second)) == "key_limit_exceeded"
    clock.at += timedelta(days=1)
    assert (await created(system, account_id, new_task(second))).startswith("task_")
    found = [await created(other, account_id, new_task(second)) for _ in range(2)]
    assert [each[:5] for each in found] == ["task_", "key_l"]
    # A limit that is set later counts what was spent before by all that are in the group, revoked ones too.
    await system.ask(account_id, ChangeKeyGroup(group_id, limits=(Limit(6 * CREDIT, "month"),)))
    assert await spent(system, account_id) == {(group_id, "month"): 5}
    found = [await created(system, account_id, new_task(second)) for _ in range(2)]
    assert [each[:5] for each in found] == ["task_", "key_l"]
    assert_audit_clean(system.database)


async def test_a_key_brings_what_it_has_spent_and_takes_it_away(
    start_system: StartSystem, system: Any, new_task: NewTask, clock: Clock
) -> None:
    account_id, key_id = await system.open_account(500 * CREDIT)
    # Held before there is any limit of which it could count.
    held, charged = [await created(system, account_id, new_task(key_id)) for _ in range(2)]
    await settled(system, account_id, charged, CREDIT)
    first, other = await group(system, account_id, day(5)), await group(system, account_id, day(2), name="two")
    member = await key_in(system, account_id, first)
    assert (await created(system, account_id, new_task(member))).startswith("task_")
    await system.ask(account_id, ChangeApiKey(key_id, {}, group_id=first))
    assert await spent(system, account_id) == {(first, "day"): 3, (other, "day"): 0}
    for _ in range(2):
        assert (await created(system, account_id, new_task(member))).startswith("task_")
    assert await created(system, account_id, new_task(key_id)) == "key_limit_exceeded"
    await system.ask(account_id, ChangeApiKey(key_id, {}, group_id=other))
    assert await spent(system, account_id) == {(first, "day"): 3, (other, "day"): 2}
    assert await created(system, account_id, new_task(key_id)) == "key_limit_exceeded"
    await settled(system, account_id, held, None)
    assert (await created(await start_system(now=clock), account_id, new_task(key_id))).startswith("task_")
    assert await created(system, account_id, new_task(key_id)) == "key_limit_exceeded"
    await system.ask(account_id, ChangeApiKey(key_id, {}, group_id=None))
    assert (await created(system, account_id, new_task(key_id))).startswith("task_")
    assert await spent(system, account_id) == {(first, "day"): 3, (other, "day"): 0}
    assert_audit_clean(system.database)


async def test_groups_are_found_counted_and_deleted_without_keys_only(system: Any, new_task: NewTask) -> None:
    account_id, key_id = await system.open_account(500 * CREDIT)

    async def code(command: Any) -> str:
        reply = await system.ask(account_id, command)
        return reply.code if isinstance(reply, Refusal) else "done"

    unknown = new_id("grp")
    for command in (
        ChangeKeyGroup(unknown, "none"),
        DeleteKeyGroup(unknown),
        ChangeApiKey(key_id, {}, group_id=unknown),
        in_group(new_key(), unknown),
    ):
        assert await code(command) == "key_group_not_found"
    group_id = await group(system, account_id, day(1))
    await system.ask(account_id, ChangeApiKey(key_id, {}, group_id=group_id))
    task = await created(system, account_id, new_task(key_id))
    assert await code(DeleteKeyGroup(group_id)) == "key_group_in_use"
    await system.ask(account_id, RevokeApiKey(key_id))
    assert await code(DeleteKeyGroup(group_id)) == "done"
    assert await code(DeleteKeyGroup(group_id)) == "key_group_not_found"
    await settled(system, account_id, task, CREDIT)
    loaded = await system.database.read(load_account, account_id)
    assert (loaded.key_groups, loaded.groups_of_keys, loaded.spending) == ({}, {}, None)
    for _ in range(KEY_GROUPS_MAX):
        await group(system, account_id)
    assert await code(CreateKeyGroup(new_id("grp"), "one more", ())) == "key_group_limit_reached"
    assert_audit_clean(system.database)


async def test_what_a_key_in_a_group_makes_is_in_that_group(system: Any, new_task: NewTask) -> None:
    account_id, _ = await system.open_account(500 * CREDIT)
    own, other = await group(system, account_id, day(4)), await group(system, account_id)
    first = await key_in(system, account_id, own)
    assert await made(system, account_id, in_group(new_key(), other), first) == "exceeds_calling_key group_id"
    second = await made(system, account_id, new_key(), first)
    third = await made(system, account_id, in_group(new_key(), own), second)
    loaded = await system.database.read(load_account, account_id)
    assert loaded.groups_of_keys == dict.fromkeys((first, second, third), own)
    accepted = 0
    for key_id in (third, second, first):
        for _ in range(3):
            accepted += (await created(system, account_id, new_task(key_id))).startswith("task_")
    assert accepted == 4


async def test_a_key_takes_none_out_of_a_group(system: Any) -> None:
    account_id, _ = await system.open_account()
    own, other = await group(system, account_id, day(4)), await group(system, account_id)
    free = await key_in(system, account_id, None)
    before = await made(system, account_id, new_key(), free)
    await system.ask(account_id, ChangeApiKey(free, {}, group_id=own))
    inside = await made(system, account_id, new_key(), free)
    for target, group_id in ((inside, None), (inside, other), (before, other)):
        refused = await asked(system, account_id, ChangeApiKey(target, {}, group_id=group_id), free)
        assert refused == "exceeds_calling_key"
    for group_id in (None, other):
        for target in (free, inside):
            command = ChangeApiKey(target, {}, group_id=group_id)
            assert await asked(system, account_id, command, inside) == "not_made_by_key"
    # What it made before it came into the group is the owner's to bound: it gives that no more, but may lessen it.
    for command in (
        ChangeApiKey(before, {"models": ()}),
        ChangeApiKey(before, {}, day(1)),
        ChangeApiKey(before, {}, None),
    ):
        assert await asked(system, account_id, command, free) == "exceeds_calling_key"
    assert await asked(system, account_id, ChangeApiKey(before, {"is_paused": True}), free) == "done"
    assert (
        await asked(system, account_id, ChangeApiKey(before, {"is_paused": False}), free) == "exceeds_calling_key"
    )
    assert await asked(system, account_id, ChangeApiKey(before, {"is_paused": False}, group_id=own), free) == "done"
    # A key in no group puts what it has made into one, but takes none out that its owner has put there.
    outer = await key_in(system, account_id, None)
    given = await made(system, account_id, in_group(new_key(), other), outer)
    assert await asked(system, account_id, ChangeApiKey(given, {}, group_id=None), outer) == "exceeds_calling_key"
    assert await asked(system, account_id, ChangeApiKey(given, {}, group_id=own), outer) == "exceeds_calling_key"
    assert await asked(system, account_id, ChangeApiKey(given, {}, group_id=other), outer) == "done"
    loaded = await system.database.read(load_account, account_id)
    assert loaded.groups_of_keys == {free: own, inside: own, before: own, given: other}


async def test_a_key_with_a_budget_raises_and_removes_no_limit_of_a_group(system: Any) -> None:
    account_id, _ = await system.open_account()
    own, other = [await group(system, account_id, day(4), Limit(9 * CREDIT, "month")) for _ in range(2)]
    inside = await key_in(system, account_id, own, scopes=MANAGER)
    limited = await key_in(system, account_id, None, day(100), scopes=MANAGER)
    unlimited = await key_in(system, account_id, None, scopes=MANAGER)

    async def ask(command: Any, by: str) -> str:
        return await asked(system, account_id, command, by, "limits:write")

    month = Limit(9 * CREDIT, "month")
    for by in (inside, limited):
        for group_id in (own, other):
            for limits in ((), (day(5), month), (day(4),), (Limit(4 * CREDIT, "day", ("studio/*",)), month)):
                assert await ask(ChangeKeyGroup(group_id, limits=limits), by) == "exceeds_calling_key"
            assert (
                await ask(ChangeKeyGroup(group_id, "named", (day(4), month, Limit(CREDIT, "week"))), by) == "done"
            )
            assert await ask(ChangeKeyGroup(group_id, limits=(day(4), month, Limit(CREDIT, "week"))), by) == "done"
        assert await ask(DeleteKeyGroup(own), by) == "key_group_in_use"
    # Nor does it raise the account's limits beyond its group's.
    assert not isinstance(await system.ask(account_id, SetLimits((day(2),))), Refusal)
    assert await ask(SetLimits((day(5),)), inside) == "exceeds_calling_key"
    assert await ask(SetLimits(()), inside) == "exceeds_calling_key"
    assert await ask(ChangeKeyGroup(own, limits=()), unlimited) == "done"
    assert await ask(ChangeKeyGroup(own, limits=(day(50),)), unlimited) == "done"
    assert await ask(CreateKeyGroup(new_id("grp"), "made", ()), inside) == "done"
    assert await ask(DeleteKeyGroup(other), inside) == "done"
    for narrow in (by_key(ChangeKeyGroup(own, "mine"), await key_in(system, account_id, own), "limits:write"),):
        assert (await system.ask(account_id, narrow)).code == "insufficient_scope"
    changes = [(what, by) for what, by, _ in await history(system, account_id) if what.startswith("key_group")]
    assert set(changes) == {
        *(("key_group_changed", by) for by in (inside, limited, unlimited)),
        ("key_group_created", inside),
        ("key_group_deleted", inside),
    }
