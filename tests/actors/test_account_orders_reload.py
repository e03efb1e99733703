"""Payment orders in the account actor: void decisions, reloads, and its cache."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from sqlalchemy import text

from holdfast.actors.account.messages import Recharge
from holdfast.persistence.queries.orders import read_for_event
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway

from .account_checks import CREDIT, assert_audit_clean, in_parallel, read_totals
from .order_checks import deliver, new_order, received, stored


async def test_a_message_waits_until_its_order_can_be_read(
    system: Any, payments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, failures = Database.read, 3

    async def away_at_first(self: Database, query: Any, *values: Any) -> Any:
        nonlocal failures
        failures -= query is read_for_event
        if query is read_for_event and failures >= 0:
            raise DatabaseAway("gone for a moment")
        return await read(self, query, *values)

    account_id, _ = await system.open_account()
    order = await new_order(system, payments, account_id)
    # Another incarnation, which does not remember the order.
    bump = text("update accounts set version = version + 1 where id = :id")
    await system.database.work(lambda connection: connection.execute(bump, {"id": account_id}))
    await system.ask(account_id, Recharge(CREDIT))
    monkeypatch.setattr(Database, "read", away_at_first)
    after = await deliver(system, order, payments.paid(order.order_id))
    assert failures < 0
    assert after.status == "credited"
    assert await read_totals(system.database, account_id) == (11 * CREDIT, 0, 2)
    assert system.reporter.recent() == ()


async def test_an_event_of_an_unreadable_order_fails_alone(system: Any, payments: Any) -> None:
    account_id, _ = await system.open_account()
    order = await new_order(system, payments, account_id)
    # Another incarnation, which does not remember the order.
    change = text("update accounts set version = version + 1 where id = :id")
    damage = text("update orders set state = '[]' where order_id = :order_id")
    await system.database.work(lambda connection: connection.execute(change, {"id": account_id}))
    await system.database.work(lambda connection: connection.execute(damage, {"order_id": order.order_id}))
    await system.ask(account_id, Recharge(CREDIT))
    for _ in range(10):  # The provider sends it again and again.
        with pytest.raises(UnreadableRow, match="orders"):
            await system.ask(account_id, received(payments.paid(order.order_id), order.order_id))
    await system.ask(account_id, Recharge(CREDIT))
    assert await read_totals(system.database, account_id) == (2 * CREDIT, 0, 2)
    assert system.reporter.recent() == ()


async def test_undurable_orders_are_not_evicted_from_the_cache(system: Any, payments: Any) -> None:
    account_id, _ = await system.open_account()
    orders = [await new_order(system, payments, account_id) for _ in range(80)]
    calls = []
    for order in orders:
        calls.append(partial(system.ask, account_id, received(payments.attempt("processing"), order.order_id)))
        calls.append(partial(system.ask, account_id, received(payments.paid(order.order_id), order.order_id)))
    # Every order twice, the second telling when many others have been decided in between.
    calls = calls[::2] + calls[1::2]
    await in_parallel(calls)
    rows = [await stored(system.database, order.order_id) for order in orders]
    assert {(len(row.state.event_ids), row.status, row.version) for row in rows} == {(2, "credited", 3)}
    assert await read_totals(system.database, account_id) == (800 * CREDIT, 0, 80)
    assert_audit_clean(system.database)
