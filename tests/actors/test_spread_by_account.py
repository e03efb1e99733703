"""What belongs to an account, on tables partitioned by account: units, look-ups, pages, claims and sweeps."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
import trio
from sqlalchemy import Connection, MetaData, Table, text

from holdfast.actors.account.messages import Recharge, TaskAccepted
from holdfast.actors.runtime.messages import Replayed
from holdfast.ledger.clock import utc_now
from holdfast.ledger.ids import new_id
from holdfast.persistence.claims.expired import delete_expired
from holdfast.persistence.claims.tasks import FIRST, claim_waiting
from holdfast.persistence.journal.units import Broken, Committed, Unit
from holdfast.persistence.queries.credentials import session_by_token
from holdfast.persistence.queries.ledger import statement_of_account
from holdfast.persistence.queries.loading import load_account, load_sign_in
from holdfast.persistence.queries.orders import order_by_id, orders_of_account
from holdfast.persistence.queries.tasks import task_of_account, tasks_of_account, usage_of_account
from holdfast.persistence.records import operator_tables, process_tables, shared_tables
from holdfast.persistence.records.accounts import AccountHead, AccountRow
from holdfast.persistence.records.orders import OrderChangedRow
from holdfast.persistence.records.row_types import SessionRow
from holdfast.persistence.records.tables import metadata
from holdfast.persistence.server.connections import connected

from .account_checks import CREDIT, NewTask, assert_audit_clean, keyed, settle_command
from .actor_system import ActorSystem
from .asset_setup import Setup, picture
from .order_checks import deliver, new_order

PARTITIONS = 3
SHARED = {
    found.name
    for module in (shared_tables, process_tables, operator_tables)
    for found in vars(module).values()
    if isinstance(found, Table)
}


def spread(connection: Connection) -> None:
    """Replace every table of accounts by one that is partitioned by account, in a schema of its own."""
    definitions = text("select pg_get_triggerdef(oid) from pg_trigger where not tgisinternal order by oid")
    triggers = connection.execute(definitions).scalars().all()
    connection.execute(text("create schema spread"))
    connection.execute(text("set search_path = spread, public"))
    tables = MetaData(naming_convention=metadata.naming_convention)
    for table in metadata.tables.values():
        copy = table.to_metadata(tables)
        if copy.name not in SHARED:
            copy.dialect_options["postgresql"]["with"] = {}
            account = "id" if copy.name == "accounts" else "account_id"
            copy.dialect_options["postgresql"]["partition_by"] = f"hash ({account})"
        copy.create(connection)
        for remainder in range(0 if copy.name in SHARED else PARTITIONS):
            values = f"with (modulus {PARTITIONS}, remainder {remainder})"
            statement = f"create table {copy.name}_{remainder} partition of {copy.name} for values {values}"
            connection.execute(text(statement))
    for trigger in triggers:
        connection.execute(text(trigger.replace(" ON public.", " ON spread.")))
    for name in metadata.tables:
        connection.execute(text(f"drop table public.{name}"))
    database = connection.execute(text("select current_database()")).scalar_one()
    connection.execute(text(f"alter database {database} set search_path = spread, public"))
    connection.commit()


@pytest.fixture
def database_url(database_url: str) -> str:
    """A database whose tables are partitioned by account; it is not reused."""
    with connected(database_url) as connection:
        spread(connection)
    return database_url


async def test_tasks_are_created_settled_found_and_listed(
    system: ActorSystem, new_task: NewTask, database_url: str
) -> None:
    with trio.fail_after(60):
        created = {}
        for _ in range(2 * PARTITIONS):
            account_id, key_id = await system.open_account()
            actor = system.accounts.ref(account_id)
            await actor.ask(Recharge(3 * CREDIT, keyed("k")))
            assert isinstance(await actor.ask(Recharge(3 * CREDIT, keyed("k"))), Replayed)
            accepted = [await actor.ask(new_task(key_id)) for _ in range(3)]
            created[account_id] = [reply.request_id for reply in accepted if isinstance(reply, TaskAccepted)]
            captured, released, _ = created[account_id]
            await actor.ask(await settle_command(system.database, captured, 700_000))
            await actor.ask(await settle_command(system.database, released, None))
        for account_id, request_ids in created.items():
            await _check_reads(system, account_id, request_ids)
        claimed, _ = await system.database.work(
            lambda rows: claim_waiting(rows, "studio", slots=100, after=FIRST, now=utc_now())
        )
    assert sorted(claimed) == sorted(request_ids[2] for request_ids in created.values())
    assert_audit_clean(system.database)
    with connected(database_url) as connection:
        used = connection.execute(text("select count(distinct tableoid) from operations")).scalar_one()
    assert used > 1, "all accounts are in one partition, so this test shows nothing"


async def _check_reads(system: ActorSystem, account_id: str, request_ids: list[str]) -> None:
    """Check what is read of an account that has captured its first task and released its second."""

    async def read(query: Any, *arguments: Any, **options: Any) -> Any:
        return await system.database.read(lambda rows: query(rows, *arguments, **options))

    found = await read(tasks_of_account, account_id, limit=2)
    rest = await read(tasks_of_account, account_id, limit=2, after=(found[1].created_at, found[1].request_id))
    assert [task.request_id for task in (*found, *rest)] == request_ids[::-1]
    assert await read(task_of_account, account_id, request_ids[0]) == rest[0]
    assert await read(task_of_account, "acct_other", request_ids[0]) is None
    operations = await read(statement_of_account, account_id, limit=9)
    assert [operation.number for operation in operations] == [6, 5, 4, 3, 2, 1]
    assert [entry.cost_micro for entry in await read(usage_of_account, account_id, limit=9)] == [0, 0, 700_000]
    state, keys, _ = await read(load_account, account_id)
    assert (state.balance_micro, state.held_micro, state.number) == (2_300_000, CREDIT, 6)
    assert len(keys) == 1
    assert (await read(load_sign_in, f"email:{account_id}@example.com")).account_id == account_id


async def test_orders_are_paid_found_and_listed(system: ActorSystem, payments: Any) -> None:
    with trio.fail_after(60):
        account_id, _ = await system.open_account()
        order = await new_order(system, payments, account_id)
        paid = await deliver(system, order, payments.paid(order.order_id))
        assert await system.database.read(lambda rows: order_by_id(rows, order.order_id)) == paid
        assert await system.database.read(lambda rows: orders_of_account(rows, account_id, limit=9)) == [paid]
    assert paid.status == "credited"
    assert_audit_clean(system.database)


async def test_a_task_runs_with_its_outputs(setup: Setup) -> None:
    with trio.fail_after(60):
        request_id = await setup.storing(picture(1))
        await setup.tasks.ref(request_id).ask(await setup.stored(1, picture(2)))
        assert (await setup.row(request_id)).status == "succeeded"
    assert await setup.count("assets") == 2
    assert_audit_clean(setup.system.database)


async def test_an_email_address_and_a_payment_have_one_owner_across_accounts(
    system: ActorSystem, payments: Any
) -> None:
    with trio.fail_after(60):
        first, second = [(await system.open_account())[0] for _ in range(2)]
        same_email = AccountRow(AccountHead(new_id("acct")), f"{first}@example.com", "User", "b", utc_now())
        assert isinstance(await system.journal.write(Unit(rows=(same_email,))), Broken)
        order = await new_order(system, payments, first)
        paid = await deliver(system, order, payments.paid(order.order_id))
        assert paid.state.payment_id is not None
        other = await new_order(system, payments, second)
        with_its_payment = msgspec.structs.replace(
            other, state=msgspec.structs.replace(other.state, payment_id=paid.state.payment_id)
        )
        stolen = OrderChangedRow(with_its_payment)
        assert isinstance(await system.journal.write(Unit(rows=(stolen,))), Broken)
    assert_audit_clean(system.database)


async def test_a_sweep_deletes_only_what_has_expired(system: ActorSystem) -> None:
    now = utc_now()
    with trio.fail_after(60):
        accounts = [(await system.open_account())[0] for _ in range(2 * PARTITIONS)]
        rows = [
            SessionRow(account_id, name, f"{name} of {account_id}".encode(), now, until)
            for account_id in accounts
            for name, until in (("ended", now - timedelta(days=2)), ("live", now + timedelta(days=2)))
        ]
        assert isinstance(await system.journal.write(Unit(rows=tuple(rows))), Committed)
        counts = [
            await system.database.work(delete_expired, "sessions", retention_s=3600, most=len(accounts) - 1)
            for _ in range(3)
        ]
        for account_id in accounts:
            found = await system.database.read(session_by_token, f"live of {account_id}".encode())
            assert found is not None
            assert await system.database.read(session_by_token, f"ended of {account_id}".encode()) is None
    assert counts == [len(accounts) - 1, 1, 0]
