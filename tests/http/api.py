"""The API on a real database."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import sqlalchemy
from tests.persistence.values import columns_of_order

from holdfast.http.kit.credentials import MintedKey, mint_api_key
from holdfast.ledger.api_keys import TASKS_READ, TASKS_WRITE, KeyTerms
from holdfast.ledger.orders.decisions import create_order
from holdfast.ledger.orders.order import Order
from holdfast.ledger.tasks.task import Task
from holdfast.persistence.journal.statements import STATEMENTS
from holdfast.persistence.records import tables
from holdfast.persistence.records.key_rows import ApiKeyRecord
from holdfast.persistence.records.resulting_rows import payment_rows
from holdfast.persistence.records.rows import NewTaskRow, UsageEntry
from holdfast.persistence.server.database import Database

from .fake_rows import CountingRows
from .identities import NOW
from .order_stand_ins import OrderRules
from .stage import Stage


@dataclass(kw_only=True)
class Api(Stage):
    """The API on a real database with two accounts, one of them with a session and a key."""

    database: Database
    rows: CountingRows

    async def write(self, statement: sqlalchemy.Executable) -> None:
        """Change rows, as the journal would."""

        def run(rows: sqlalchemy.Connection) -> None:
            rows.execute(statement)

        await self.database.work(run)

    async def add_account(self, account_id: str, *, balance_micro: int = 0, held_micro: int = 0) -> None:
        await self.write(
            tables.accounts.insert().values(
                id=account_id,
                email=f"{account_id}@example.com",
                role="User",
                brand_id="holdfast",
                created_at=NOW,
                version=1,
                operation_count=0,
                balance_micro=balance_micro,
                held_micro=held_micro,
                chain_head=bytes(32),
            )
        )

    async def add_session(self, account_id: str, session_id: str, token: str, **columns: Any) -> None:
        values = {"created_at": NOW, "expires_at": NOW + timedelta(hours=24), "revoked_at": None, **columns}
        await self.write(
            tables.sessions.insert().values(
                account_id=account_id,
                session_id=session_id,
                token_sha256=hashlib.sha256(token.encode()).digest(),
                **values,
            )
        )

    async def add_key(
        self, account_id: str, key_id: str, *, scopes: tuple[str, ...] = (TASKS_READ, TASKS_WRITE), **columns: Any
    ) -> MintedKey:
        minted = mint_api_key(account_id, live=False)
        terms = KeyTerms("a key", scopes)
        key = msgspec.structs.asdict(ApiKeyRecord(account_id, key_id, minted.prefix, terms, NOW))
        del key["terms"]
        values = key | msgspec.structs.asdict(terms) | columns
        await self.write(tables.api_keys.insert().values(secret_sha256=minted.sha256, **values))
        return minted

    async def add_task(self, task: Task) -> None:
        values = {name: getattr(task, name) for name in task.__struct_fields__}
        values["request"] = msgspec.to_builtins(task.request.without_input)
        values["input"] = task.request.input
        values["state"] = msgspec.to_builtins(task.state)
        values["overall_deadline_at"] = task.overall_deadline_at
        values |= {name: getattr(task.request.terms.deadlines, name) for name in ("dispatch_s", "run_s")}
        await self.write(tables.tasks.insert().values(**values))
        await self.add_usage(self.usage_of(task))

    def use_order_rules(self) -> OrderRules:
        """Let the accounts apply the rules of orders and write the rows."""
        rules = super().use_order_rules()
        rules.write = self.add_order
        return rules

    async def add_order(self, order: Order) -> None:
        """Write an order, replacing the one with its id."""
        await self.write(tables.orders.delete().where(tables.orders.c.order_id == order.order_id))
        await self.write(tables.orders.insert().values(columns_of_order(order)))
        owned = tables.order_payments
        await self.write(owned.delete().where(owned.c.order_id == order.order_id))
        for row in payment_rows(create_order(order.request), order):
            await self.write(owned.insert().values(msgspec.structs.asdict(row)))

    def usage_of(self, task: Task) -> UsageEntry:
        """Return the usage entry that is written with a task."""
        usage = tables.usage_entries
        [statement] = [each for each in STATEMENTS if each.kind is NewTaskRow and each.table is usage]
        [cells] = statement.rows_of([NewTaskRow(task)])
        return UsageEntry(**dict(zip(statement.columns, cells, strict=True)))

    async def add_usage(self, entry: UsageEntry) -> None:
        values = {name: getattr(entry, name) for name in entry.__struct_fields__}
        values["status_history"] = msgspec.to_builtins(entry.status_history)
        await self.write(tables.usage_entries.insert().values(**values))
