"""Load the rows of an actor when it starts, in one short transaction."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, select

from holdfast.ledger.credit.account import AccountState
from holdfast.ledger.public_types import Role
from holdfast.ledger.tasks.task import Task
from holdfast.persistence.queries.tasks import task_by_id
from holdfast.persistence.records import tables


class LoadedAccount(NamedTuple):
    """An account's credit, its live API keys (scopes by key id), and since when it is disabled."""

    state: AccountState
    live_keys: dict[str, frozenset[str]]
    disabled_at: datetime | None


class LoadedSignIn(msgspec.Struct, frozen=True):
    """A sign-in's version and state (a JSON object), and the account that has its e-mail address."""

    version: int
    state: dict[str, Any]
    account_id: str | None
    role: Role | None
    is_disabled: bool


class RowMissing(Exception):
    """The row of an actor does not exist."""


def load_account(connection: Connection, account_id: str) -> LoadedAccount:
    """Load an account. Raises :class:`RowMissing`.

    The head is read first: if the account changes between the statements, the version is older than the rows read
    after it, so the fence rejects a decision based on both. In the other order it would not.
    """
    accounts, holds, keys = tables.accounts, tables.holds, tables.api_keys
    head = connection.execute(
        select(
            accounts.c.version,
            accounts.c.operation_count,
            accounts.c.balance_micro,
            accounts.c.held_micro,
            accounts.c.chain_head,
            accounts.c.disabled_at,
        ).where(accounts.c.id == account_id)
    ).one_or_none()
    if head is None:
        raise RowMissing(f"account {account_id}")
    open_holds = connection.execute(
        select(holds.c.hold_id, holds.c.amount_micro).where(
            holds.c.account_id == account_id, holds.c.settled_number.is_(None)
        )
    ).all()
    live_keys = connection.execute(
        select(keys.c.key_id, keys.c.scopes).where(keys.c.account_id == account_id, keys.c.revoked_at.is_(None))
    ).all()
    state = AccountState(
        account_id,
        version=head.version,
        number=head.operation_count,
        balance_micro=head.balance_micro,
        held_micro=head.held_micro,
        holds={row.hold_id: row.amount_micro for row in open_holds},
        chain_head=bytes(head.chain_head),
    )
    return LoadedAccount(state, {row.key_id: frozenset(row.scopes) for row in live_keys}, head.disabled_at)


def load_task_and_events(connection: Connection, request_id: str) -> tuple[Task, frozenset[tuple[str, str]]]:
    """Load a task and the provider events it has already received, as (provider, event id).

    Raises like :func:`load_task`.
    """
    task = load_task(connection, request_id)
    events = tables.task_events
    received = connection.execute(
        select(events.c.provider, events.c.event_id).where(
            events.c.account_id == task.account_id, events.c.request_id == request_id
        )
    )
    return task, frozenset((event.provider, event.event_id) for event in received)


def load_task(connection: Connection, request_id: str) -> Task:
    """Load a task.

    Raises :class:`RowMissing` and :class:`~holdfast.persistence.records.unreadable.UnreadableRow`.
    """
    task = task_by_id(connection, request_id)
    if task is None:
        raise RowMissing(f"task {request_id}")
    return task


def load_sign_in(connection: Connection, key: str) -> LoadedSignIn:
    """Load the sign-in state of ``email:…`` or ``origin:…``; a new one is at version 0 and empty."""
    row = connection.execute(
        select(tables.sign_ins.c.version, tables.sign_ins.c.state).where(tables.sign_ins.c.key == key)
    ).one_or_none()
    version, state = (row.version, row.state) if row is not None else (0, {})
    account = None
    if key.startswith("email:"):
        account = connection.execute(
            select(tables.accounts.c.id, tables.accounts.c.role, tables.accounts.c.disabled_at).where(
                tables.accounts.c.email == key.removeprefix("email:")
            )
        ).one_or_none()
    if account is None:
        return LoadedSignIn(version, state, None, None, is_disabled=False)
    return LoadedSignIn(version, state, account.id, account.role, is_disabled=account.disabled_at is not None)
