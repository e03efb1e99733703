"""Checks and helpers for tests of account actors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import trio
from msgspec.structs import replace
from sqlalchemy import Connection, text

from holdfast.actors.account.messages import (
    CreateTask,
    SettleTask,
)
from holdfast.actors.runtime.messages import IdempotencyKey, Replayed
from holdfast.ledger.tasks.transitions import Settlement
from holdfast.ledger.values import new_id, utc_now
from holdfast.persistence.audit.audit import run_audit
from holdfast.persistence.claims.outbox import Capacity, Share
from holdfast.persistence.operators.records import write_action
from holdfast.persistence.queries.loading import load_task
from holdfast.persistence.records.operator_tables import OperatorAction
from holdfast.persistence.records.resulting_rows import usage_counted_row
from holdfast.persistence.records.rows import TaskChangedRow
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.database import Database

CREDIT = 1_000_000


NewTask = Callable[..., CreateTask]


StartSystem = Callable[..., Awaitable[Any]]


def capacity_of(
    to_silent: int,
    quick: int,
    per_receiver: int,
    busy: dict[str, int],
    *,
    to_mail: int = 100,
    per_account: int = 100,
    accounts_busy: dict[tuple[str, Share], int] | None = None,
) -> Capacity:
    """How many deliveries a claim may begin, with room for those that a test is not about."""
    return Capacity(to_mail, to_silent, quick, per_receiver, busy, per_account, accounts_busy or {})


def keyed(key: str, fingerprint: bytes = b"same body") -> IdempotencyKey:
    return IdempotencyKey("POST /v2/control/sandbox/recharge", key, fingerprint)


async def settle_command(
    database: Database, request_id: str, charge_micro: int | None, *, version: int | None = None
) -> SettleTask:
    """What a task's actor would ask of its account to end the task."""
    task = await database.read(lambda connection: load_task(connection, request_id))
    operation_id, at = new_id("op"), utc_now()
    after = replace(
        task,
        version=task.version + 1,
        status="canceled" if charge_micro is None else "succeeded",
        wake_at=None,
        updated_at=at,
        state=replace(task.state, cost_micro=charge_micro or 0, operation_id=operation_id),
    )
    return SettleTask(
        request_id,
        task.version if version is None else version,
        Settlement(
            kind="release" if charge_micro is None else "capture",
            hold_id=task.request.hold_id,
            charge_micro=charge_micro or 0,
            operation_id=operation_id,
            reason="because",
            at=at,
        ),
        (TaskChangedRow(after, "proc_1", has_new_usage=True), usage_counted_row(after)),
    )


async def acted_on(database: Database, account_id: str) -> str:
    """Record an action of an operator on the account, and return its id."""
    action_id, at = new_id("act"), utc_now()
    action = OperatorAction(
        action_id, at, "ada", "token", "unknown", "adjust_credit", account_id, account_id, None, "why", "req_1"
    )
    await database.work(write_action, action)
    return action_id


def totals(connection: Connection, account_id: str) -> tuple[int, int, int]:
    row = connection.execute(
        text("select balance_micro, held_micro, operation_count from accounts where id = :id"), {"id": account_id}
    ).one()
    return row.balance_micro, row.held_micro, row.operation_count


async def read_totals(database: Database, account_id: str) -> tuple[int, int, int]:
    return await database.read(lambda connection: totals(connection, account_id))


async def in_parallel(calls: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
    replies: list[Any] = [None] * len(calls)

    async def call(index: int) -> None:
        replies[index] = await calls[index]()

    async with trio.open_nursery() as nursery:
        for index in range(len(calls)):
            nursery.start_soon(call, index)
    return replies


def unwrapped(reply: Any) -> Any:
    """The answer itself, first-hand or replayed."""
    return reply.reply if isinstance(reply, Replayed) else reply


@dataclass
class Clock:
    """Service time, as a test moves it on."""

    at: datetime

    def __call__(self) -> datetime:
        return self.at


def assert_audit_clean(database: Database) -> None:
    with connected(database.url) as connection:
        assert run_audit(connection) == {}
