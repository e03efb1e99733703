"""Keys that make, change and revoke keys, and what else a key may do instead of its account's owner.

What a key asks for is compared with what it has when the account decides it: also if another process has just
paused it. None of it adds up to more than the key has.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import msgspec
import pytest
from sqlalchemy import select
from tests.made_requests import make_order_request

from holdfast.actors.account.by_keys import ByKey, NoteChange, by_key
from holdfast.actors.account.group_messages import ChangeKeyGroup, CreateKeyGroup, DeleteKeyGroup
from holdfast.actors.account.limits import AccountLimits
from holdfast.actors.account.messages import (
    ChangeApiKey,
    CreateApiKey,
    CreateOrder,
    DeleteWebhook,
    PutWebhook,
    RevokeApiKey,
    RevokedKeys,
    RevokeWithMade,
    SetAccess,
    SetLimits,
)
from holdfast.ledger.api_keys import ALL_SCOPES, MAKERS_MAX, KeyChanges, KeyTerms
from holdfast.ledger.credit.limits import Limit
from holdfast.ledger.orders.order import OrderResult
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import new_id, new_id_of_account
from holdfast.persistence.queries.loading import load_account
from holdfast.persistence.records import tables
from holdfast.persistence.records.key_rows import ApiKeyRecord

from .account_checks import CREDIT, Clock, NewTask, StartSystem, assert_audit_clean, in_parallel
from .test_account_limits import created, day, in_rows

NOON = datetime(2026, 11, 25, 12, tzinfo=UTC)
SCOPES = ("tasks:read", "tasks:write", "keys:write")


@pytest.fixture
def clock() -> Clock:
    return Clock(NOON)


@pytest.fixture
async def system(start_system: StartSystem, clock: Clock) -> Any:
    return await start_system(now=clock)


def new_key(limit: Limit | None = None, **terms: Any) -> CreateApiKey:
    """A command that creates a key."""
    key_id = new_id("key")
    of_key = KeyTerms(**{"name": "made", "scopes": SCOPES, **terms})
    return CreateApiKey(key_id, key_id.encode(), "hk_test_m", of_key, limit)


async def made(system: Any, account_id: str, command: CreateApiKey, by: str = "") -> str:
    """Have a key created by its owner, or by a key; its id, or the code of the refusal with what it is about."""
    reply = await system.ask(account_id, by_key(command, by, "keys:write") if by else command)
    if isinstance(reply, Refusal):
        return f"{reply.code} {reply.param}" if reply.param else reply.code
    assert isinstance(reply, ApiKeyRecord)
    return reply.key_id


async def asked(system: Any, account_id: str, command: Any, by: str, scope: str = "keys:write") -> str:
    """Have a key ask for something: what became of it."""
    reply = await system.ask(account_id, by_key(command, by, scope))
    return reply.code if isinstance(reply, Refusal) else "done"


async def history(system: Any, account_id: str) -> list[tuple[str, str | None, str | None]]:
    changes = tables.account_changes.c
    query = select(changes.what, changes.api_key_id, changes.subject).where(changes.account_id == account_id)
    rows = await system.database.read(
        lambda rows: rows.execute(query.order_by(changes.at, changes.change_id)).all()
    )
    return sorted(tuple(row) for row in rows)


async def test_a_key_gives_no_more_than_it_has(system: Any) -> None:
    account_id, _ = await system.open_account()
    bounds: dict[str, Any] = {"models": ("studio/*",), "expires_at": NOON + timedelta(days=2)}
    by = await made(system, account_id, new_key(**bounds))
    for terms, refused in (
        ({"scopes": (*SCOPES, "usage:read")}, "insufficient_scope scopes"),
        ({"scopes": ALL_SCOPES}, "insufficient_scope scopes"),
        ({"models": ()}, "exceeds_calling_key models"),
        ({"models": ("studio/a", "other/*")}, "exceeds_calling_key models"),
        ({"expires_at": None}, "exceeds_calling_key expires_at"),
        ({"expires_at": NOON + timedelta(days=3)}, "exceeds_calling_key expires_at"),
    ):
        assert await made(system, account_id, new_key(**{**bounds, **terms}), by) == refused
    same = await made(system, account_id, new_key(**bounds), by)
    assert same.startswith("key_")
    less: dict[str, Any] = {
        "scopes": ("tasks:read",),
        "models": ("studio/a",),
        "expires_at": NOON + timedelta(days=1),
    }
    assert (await made(system, account_id, new_key(**less), by)).startswith("key_")
    # A change is bound by the same; a change that gives nothing is not.
    narrowings: list[tuple[KeyChanges, str]] = [
        ({"models": ()}, "exceeds_calling_key"),
        ({"models": ("other/a",)}, "exceeds_calling_key"),
        ({"expires_at": None}, "exceeds_calling_key"),
        ({"models": ("studio/a",), "name": "narrow"}, "done"),
        ({"models": ("studio/*",)}, "done"),
        ({"is_paused": True}, "done"),
        ({"is_paused": False}, "done"),
    ]
    for changes, done in narrowings:
        assert await asked(system, account_id, ChangeApiKey(same, changes), by) == done
    # What the owner has widened or was not the key's to give, it does not resume, but pauses.
    await system.ask(account_id, ChangeApiKey(same, {"expires_at": None}))
    assert await asked(system, account_id, ChangeApiKey(same, {"is_paused": True, "name": "off"}), by) == "done"
    assert await asked(system, account_id, ChangeApiKey(same, {"is_paused": False}), by) == "exceeds_calling_key"
    assert await asked(system, account_id, RevokeApiKey(same), by) == "done"


async def test_a_key_touches_neither_itself_nor_its_makers_nor_keys_of_others(system: Any) -> None:
    account_id, owners = await system.open_account()
    other_account, foreign = await system.open_account()
    first = await made(system, account_id, new_key())
    second = await made(system, account_id, new_key(), first)
    third = await made(system, account_id, new_key(), second)
    sibling = await made(system, account_id, new_key(), first)
    for target in (second, first, owners, sibling):
        for command in (
            ChangeApiKey(target, {"name": "mine"}),
            ChangeApiKey(target, {"is_paused": False}),
            ChangeApiKey(target, {}, None),
            RevokeApiKey(target),
            RevokeWithMade(target),
        ):
            assert await asked(system, account_id, command, second) == "not_made_by_key"
    for abroad in (ChangeApiKey(foreign, {}), RevokeApiKey(foreign), RevokeWithMade(foreign)):
        assert await asked(system, account_id, abroad, second) == "api_key_not_found"
    # A key of another account is no key of this one.
    for here in (new_key(), ChangeApiKey(third, {}), RevokeApiKey(third)):
        assert await asked(system, account_id, here, foreign) == "invalid_api_key"
    assert (await system.database.read(load_account, other_account)).makers == {}
    # What it has made, it and its makers may touch.
    assert await asked(system, account_id, ChangeApiKey(third, {"name": "theirs"}), first) == "done"
    assert await asked(system, account_id, RevokeApiKey(third), second) == "done"
    loaded = await system.database.read(load_account, account_id)
    assert loaded.makers == {second: (first,), sibling: (first,)}
    assert loaded.live_keys.keys() == {owners, first, second, sibling}


COMMANDS: list[tuple[Any, str]] = [
    (new_key(), "keys:write"),
    (ChangeApiKey("key_1", {}), "keys:write"),
    (RevokeApiKey("key_1"), "keys:write"),
    (RevokeWithMade("key_1"), "keys:write"),
    (SetLimits(()), "limits:write"),
    (CreateKeyGroup("grp_1", "group", ()), "limits:write"),
    (ChangeKeyGroup("grp_1", "group"), "limits:write"),
    (DeleteKeyGroup("grp_1"), "limits:write"),
    (PutWebhook("wh_1", is_new=True, url="https://a.example/", events=("*",)), "webhooks:write"),
    (DeleteWebhook("wh_1"), "webhooks:write"),
]


async def test_only_a_key_that_is_usable_now_and_has_the_scope_does_anything(system: Any, clock: Clock) -> None:
    account_id, _ = await system.open_account()
    every = await made(system, account_id, new_key(scopes=ALL_SCOPES, expires_at=NOON + timedelta(hours=1)))
    order = CreateOrder(make_order_request(new_id_of_account("ord", account_id), account_id, NOON))
    commands: list[Any] = [by_key(each, every, scope) for each, scope in COMMANDS]
    commands.append(by_key(order, every, "orders:write"))
    commands.append(NoteChange("webhook_tested", "wh_1", every, "webhooks:write"))
    assert {type(each) for each in commands} == set(ByKey.__args__)

    async def codes() -> set[str]:
        replies = [await system.ask(account_id, each) for each in commands]
        return {each.code if isinstance(each, Refusal) else "done" for each in replies}

    await system.ask(account_id, ChangeApiKey(every, {"is_paused": True}))
    assert await codes() == {"api_key_paused"}
    await system.ask(account_id, ChangeApiKey(every, {"is_paused": False}))
    await system.ask(account_id, SetAccess(is_disabled=True))
    assert await codes() == {"account_disabled"}
    await system.ask(account_id, SetAccess(is_disabled=False))
    clock.at += timedelta(hours=1)
    assert await codes() == {"api_key_expired"}
    clock.at -= timedelta(hours=1)
    for left_out in {scope for _, scope in COMMANDS} | {"orders:write"}:
        scopes = tuple(scope for scope in ALL_SCOPES if scope != left_out)
        narrow = await made(system, account_id, new_key(scopes=scopes))
        for command in commands:
            if command.scope == left_out:
                fields = {name: getattr(command, name) for name in command.__struct_fields__}
                reply = await system.ask(account_id, type(command)(**{**fields, "by": narrow}))
                assert reply.code == "insufficient_scope"
                assert reply.message == f"The API key does not have the scope {left_out}."
    await system.ask(account_id, RevokeApiKey(every))
    assert await codes() == {"invalid_api_key"}
    assert await history(system, account_id) == []


async def test_what_a_key_gives_of_its_limit_it_has_no_longer(
    system: Any, new_task: NewTask, start_system: StartSystem, clock: Clock
) -> None:
    """All keys of a tree together spend what the first might have: whatever they make, revoke and make again."""
    account_id, _ = await system.open_account(500 * CREDIT)
    first = await made(system, account_id, new_key(day(10)))
    for limit, refused in (
        (None, "exceeds_calling_key limit"),
        (day(11), "exceeds_calling_key limit"),
        (Limit(10 * CREDIT, "month"), "key_"),
    ):
        found = await made(system, account_id, new_key(limit), first)
        assert found.startswith(refused)
        if found.startswith("key_"):
            assert await asked(system, account_id, RevokeApiKey(found), first) == "done"
    # That is not given back: it could have been spent.
    assert await made(system, account_id, new_key(day(1)), first) == "exceeds_calling_key limit"
    await system.ask(account_id, ChangeApiKey(first, {}, day(10)))
    assert (await created(system, account_id, new_task(first))).startswith("task_")
    # One is spent, so that nine are left to give.
    assert await made(system, account_id, new_key(day(10)), first) == "exceeds_calling_key limit"
    second = await made(system, account_id, new_key(day(6)), first)
    third = await made(system, account_id, new_key(day(2)), second)
    unspending = await made(system, account_id, new_key(scopes=("tasks:read",)), first)
    assert {third[:4], unspending[:4]} == {"key_"}
    # A raise is taken, too; a rise of what was made of it is not possible beyond.
    assert await asked(system, account_id, ChangeApiKey(third, {}, day(4)), second) == "done"
    assert await asked(system, account_id, ChangeApiKey(third, {}, day(3)), second) == "done"
    assert await asked(system, account_id, ChangeApiKey(third, {}, day(6)), second) == "exceeds_calling_key"
    assert await asked(system, account_id, ChangeApiKey(third, {}, None), second) == "exceeds_calling_key"
    assert await asked(system, account_id, ChangeApiKey(third, {}, day(7)), first) == "exceeds_calling_key"
    # An actor that starts now knows the same.
    other = await start_system(now=clock)
    limits = {key_id: each.limit_micro for (key_id, _), each in (await in_rows(other.database, account_id)).items()}
    assert limits == {first: 4 * CREDIT, second: 2 * CREDIT, third: 3 * CREDIT}
    spent = 1
    for key_id in (first, second, third):
        for _ in range(10):
            spent += (await created(other, account_id, new_task(key_id))).startswith("task_")
    assert spent == 9
    assert_audit_clean(system.database)


async def test_windows_of_another_kind_count_as_often_as_they_fit(system: Any) -> None:
    account_id, _ = await system.open_account()
    first = await made(system, account_id, new_key(Limit(310 * CREDIT, "month")))
    assert await made(system, account_id, new_key(day(11)), first) == "exceeds_calling_key limit"
    assert (await made(system, account_id, new_key(day(9)), first)).startswith("key_")
    assert (await in_rows(system.database, account_id))[first, "month"].limit_micro == 31 * CREDIT
    assert (await made(system, account_id, new_key(Limit(31 * CREDIT, "total")), first)).startswith("key_")
    whole = await made(system, account_id, new_key(Limit(10 * CREDIT, "total")))
    assert await made(system, account_id, new_key(day(1)), whole) == "exceeds_calling_key limit"


async def test_what_a_key_gives_is_taken_from_each_of_its_limits(system: Any, new_task: NewTask) -> None:
    account_id, _ = await system.open_account(500 * CREDIT)
    model = new_task("key").request.terms.model
    wide = msgspec.structs.replace(new_key(Limit(40 * CREDIT, "month")), more_limits=(day(3),))
    first = await made(system, account_id, wide)
    # One limit of the new key may bound it in both windows; each of its own must have as much left.
    assert (
        await made(system, account_id, new_key(Limit(20 * CREDIT, "month")), first) == "exceeds_calling_key limit"
    )
    assert await made(system, account_id, new_key(day(2)), first) == "exceeds_calling_key limit"
    of_model = msgspec.structs.replace(new_key(), more_limits=(Limit(CREDIT, "day", (model,)),))
    assert await made(system, account_id, of_model, first) == "exceeds_calling_key limit"
    narrow = msgspec.structs.replace(new_key(Limit(10 * CREDIT, "month")), more_limits=(day(2),))
    child = await made(system, account_id, narrow, first)
    found = {
        (each.limited_id, each.window): each.limit_micro for each in (await loaded(system, account_id)).spending
    }
    assert found == {
        (first, "month"): 30 * CREDIT,
        (first, "day"): CREDIT,
        (child, "month"): 10 * CREDIT,
        (child, "day"): 2 * CREDIT,
    }
    # Without the limit of the month, the one of the day would bound it no more tightly than 62.00 a month.
    more = ChangeApiKey(child, {}, Limit(10 * CREDIT, "month"), (day(3),))
    assert await asked(system, account_id, ChangeApiKey(child, {}, day(2)), first) == "exceeds_calling_key"
    assert await asked(system, account_id, more, first) == "exceeds_calling_key"
    assert await asked(system, account_id, ChangeApiKey(first, {}, None, ()), first) == "not_made_by_key"
    less = ChangeApiKey(child, {}, Limit(9 * CREDIT, "month"), (day(1), Limit(CREDIT, "week")))
    assert await asked(system, account_id, less, first) == "done"
    assert_audit_clean(system.database)


async def loaded(system: Any, account_id: str) -> Any:
    return await system.database.read(load_account, account_id)


async def test_a_key_with_a_limit_raises_none_of_the_account_above_it(system: Any) -> None:
    account_id, _ = await system.open_account()
    of_limits = ("limits:write",)
    free = await made(system, account_id, new_key(scopes=of_limits))
    bound = await made(system, account_id, new_key(day(5), scopes=of_limits))
    month = Limit(1000 * CREDIT, "month")
    for by, limits, done in (
        (bound, (day(50), month), "done"),  # there were none
        (bound, (day(40), month), "done"),
        (bound, (day(41), month), "exceeds_calling_key"),
        (bound, (day(40),), "exceeds_calling_key"),
        (bound, (), "exceeds_calling_key"),
        (bound, (day(2), month), "done"),
        (bound, (day(5), month), "done"),
        (bound, (day(6), month), "exceeds_calling_key"),
        (free, (day(6),), "done"),
        (free, (), "done"),
    ):
        assert await asked(system, account_id, SetLimits(limits), by, "limits:write") == done
    assert {what for what, _, _ in await history(system, account_id)} == {"limits_set"}


async def test_keys_make_one_another_only_so_often(start_system: StartSystem) -> None:
    system = await start_system(account_limits=AccountLimits(live_keys_max=MAKERS_MAX + 3))
    account_id, _ = await system.open_account()
    by = await made(system, account_id, new_key())
    for _ in range(MAKERS_MAX):
        by = await made(system, account_id, new_key(), by)
    assert await made(system, account_id, new_key(), by) == "api_key_limit_reached"
    first, *_ = (await system.database.read(load_account, account_id)).makers[by]
    assert (await made(system, account_id, new_key(), first)).startswith("key_")
    assert await made(system, account_id, new_key(), first) == "api_key_limit_reached"


async def test_a_key_is_revoked_with_all_that_it_has_made(system: Any, start_system: StartSystem) -> None:
    account_id, owners = await system.open_account()
    first = await made(system, account_id, new_key())
    second = await made(system, account_id, new_key(), first)
    third = await made(system, account_id, new_key(), second)
    aside = await made(system, account_id, new_key())
    # Without more the others stay.
    await system.ask(account_id, RevokeApiKey(second))
    assert (await system.database.read(load_account, account_id)).live_keys.keys() == {owners, first, third, aside}
    # Another process, which has only the rows, still knows who has made whom; also after the row is deleted.
    await system.database.work(
        lambda rows: rows.execute(tables.api_keys.delete().where(tables.api_keys.c.key_id == second))
    )
    other = await start_system()
    reply = await other.ask(account_id, RevokeWithMade(first))
    assert isinstance(reply, RevokedKeys)
    assert {row.key_id for row in reply.rows} == {first, third}
    assert (await system.database.read(load_account, account_id)).live_keys.keys() == {owners, aside}
    assert (await other.ask(account_id, RevokeWithMade(first))).code == "api_key_not_found"
    # A key that is revoked already may be named for those that it has made.
    maker = await made(other, account_id, new_key())
    child = await made(other, account_id, new_key(), maker)
    await other.ask(account_id, RevokeApiKey(maker))
    reply = await other.ask(account_id, RevokeWithMade(maker))
    assert [row.key_id for row in reply.rows] == [child]


async def test_a_webhook_gets_only_what_its_key_may_read(system: Any) -> None:
    account_id, _ = await system.open_account()
    keys = {
        scopes: await made(system, account_id, new_key(scopes=("webhooks:write", *scopes)))
        for scopes in ((), ("tasks:read",), ("account:read",), ("tasks:read", "account:read"))
    }
    for events, needed in (
        (("task.succeeded",), {"tasks:read"}),
        (("task.*",), {"tasks:read"}),
        (("balance.below",), {"account:read"}),
        (("payment.credited", "task.failed"), {"tasks:read", "account:read"}),
        (("*",), {"tasks:read", "account:read"}),
    ):
        for scopes, by in keys.items():
            command = PutWebhook(new_id("wh"), is_new=True, url="https://a.example/", events=events)
            done = await asked(system, account_id, command, by, "webhooks:write")
            assert done == ("done" if needed <= set(scopes) else "insufficient_scope")
            if done == "done":
                await system.ask(account_id, DeleteWebhook(command.webhook_id))
    # Nor does it turn what the owner subscribed to towards itself, or on.
    owners = new_id("wh")
    await system.ask(account_id, PutWebhook(owners, is_new=True, url="https://a.example/", events=("*",)))
    blind, half = keys[()], keys["tasks:read",]
    for by in (blind, half):
        turned = PutWebhook(owners, is_new=False, url="https://evil.example/")
        assert await asked(system, account_id, turned, by, "webhooks:write") == "insufficient_scope"
        off = PutWebhook(owners, is_new=False, enabled=False)
        assert await asked(system, account_id, off, by, "webhooks:write") == "done"
        # One that is off may be turned, and then not on again.
        assert await asked(system, account_id, turned, by, "webhooks:write") == "done"
        on = PutWebhook(owners, is_new=False, enabled=True)
        assert await asked(system, account_id, on, by, "webhooks:write") == "insufficient_scope"
        await system.ask(account_id, PutWebhook(owners, is_new=False, url="https://a.example/", enabled=True))
    assert await asked(system, account_id, DeleteWebhook(owners), blind, "webhooks:write") == "done"


async def test_the_history_names_the_key_that_did_it(system: Any) -> None:
    account_id, _ = await system.open_account()
    by = await made(system, account_id, new_key(scopes=ALL_SCOPES))
    child = await made(system, account_id, new_key(), by)
    refused = await made(system, account_id, new_key(), child)
    assert refused.startswith("key_")
    order = make_order_request(new_id_of_account("ord", account_id), account_id, NOON)
    assert isinstance(await system.ask(account_id, by_key(CreateOrder(order), by, "orders:write")), OrderResult)
    put = PutWebhook("wh_1", is_new=True, url="https://a.example/", events=("*",))
    assert await asked(system, account_id, put, by, "webhooks:write") == "done"
    change = PutWebhook("wh_1", is_new=False, enabled=False)
    assert await asked(system, account_id, change, by, "webhooks:write") == "done"
    assert await asked(system, account_id, DeleteWebhook("wh_1"), by, "webhooks:write") == "done"
    assert await asked(system, account_id, SetLimits((day(1),)), by, "limits:write") == "done"
    assert await asked(system, account_id, ChangeApiKey(child, {"name": "x"}), by) == "done"
    assert await asked(system, account_id, RevokeWithMade(child), by) == "done"
    note = NoteChange("webhook_secret_rotated", account_id, by, "webhooks:write")
    assert await system.ask(account_id, note) is None
    # What is refused, and what the owner does, is not in it.
    assert await asked(system, account_id, RevokeApiKey(by), by) == "not_made_by_key"
    await system.ask(account_id, RevokeApiKey(by))
    assert await history(system, account_id) == sorted(
        [
            ("api_key_created", by, child),
            ("api_key_created", child, refused),
            ("order_created", by, order.order_id),
            ("webhook_created", by, "wh_1"),
            ("webhook_changed", by, "wh_1"),
            ("webhook_deleted", by, "wh_1"),
            ("limits_set", by, account_id),
            ("api_key_changed", by, child),
            ("api_key_revoked", by, child),
            ("api_key_revoked", by, refused),
            ("webhook_secret_rotated", by, account_id),
        ]
    )
    assert_audit_clean(system.database)


@pytest.mark.parametrize("narrowing", ["pause", "revoke", "models", "expiry", "limit"])
async def test_a_narrowing_that_commits_first_wins(start_system: StartSystem, narrowing: str, clock: Clock) -> None:
    """The second process has decided on the key as it was, and its unit of work is refused by the fence."""
    here, there = [await start_system(now=clock) for _ in range(2)]
    account_id, _ = await here.open_account()
    limit = day(9) if narrowing == "limit" else None
    by = await made(here, account_id, new_key(limit))
    small = day(1) if limit else None
    assert (await made(there, account_id, new_key(small), by)).startswith("key_")  # so that it is loaded there
    command, refused = {
        "pause": (ChangeApiKey(by, {"is_paused": True}), "api_key_paused"),
        "revoke": (RevokeApiKey(by), "invalid_api_key"),
        "models": (ChangeApiKey(by, {"models": ("studio/*",)}), "exceeds_calling_key models"),
        "expiry": (ChangeApiKey(by, {"expires_at": NOON + timedelta(days=1)}), "exceeds_calling_key expires_at"),
        "limit": (ChangeApiKey(by, {}, day(2)), "exceeds_calling_key limit"),
    }[narrowing]
    assert not isinstance(await here.ask(account_id, command), Refusal)
    wanted = new_key(day(3) if limit else None)
    assert await made(there, account_id, wanted, by) == refused
    assert wanted.key_id not in (await here.database.read(load_account, account_id)).live_keys


async def test_keys_that_are_made_while_their_maker_is_narrowed_have_what_it_had(
    start_system: StartSystem, clock: Clock
) -> None:
    """Of parallel requests over two processes each is decided before the narrowing or after it, and so answered."""
    here, there = [await start_system(now=clock) for _ in range(2)]
    account_id, _ = await here.open_account()
    by = await made(here, account_id, new_key())
    wide = [new_key() for _ in range(12)]

    async def narrow() -> str:
        await here.ask(account_id, ChangeApiKey(by, {"models": ("studio/*",)}))
        return "narrowed"

    tries = [partial(made, (here, there)[number % 2], account_id, each, by) for number, each in enumerate(wide)]
    replies = await in_parallel([*tries[:6], narrow, *tries[6:]])
    loaded = await here.database.read(load_account, account_id)
    accepted = {reply for reply in replies if reply.startswith("key_")}
    assert accepted == {each.key_id for each in wide} & loaded.live_keys.keys()
    assert set(replies) - accepted - {"narrowed"} <= {"exceeds_calling_key models"}
    # In the order of the account's versions none of them follows the narrowing.
    assert [await made(system, account_id, new_key(), by) for system in (here, there)] == [
        "exceeds_calling_key models"
    ] * 2
    entries = [each for each in await history(here, account_id) if each[0] == "api_key_created"]
    assert {subject for _, _, subject in entries} == accepted
    assert_audit_clean(here.database)
