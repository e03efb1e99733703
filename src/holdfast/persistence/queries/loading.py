"""Load the rows of an actor when it starts, in one short transaction."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, Text, and_, bindparam, cast, literal, literal_column, select

from holdfast.ledger.alerts.alerts import Alerts
from holdfast.ledger.api_keys import KeyTerms
from holdfast.ledger.credit.account import AccountState
from holdfast.ledger.credit.limits import AccountSpending
from holdfast.ledger.credit.operations import Lot, LotKind, LotPart, Lots, LotSource
from holdfast.ledger.orders.top_ups import AutoTopUp
from holdfast.ledger.public_types import Role
from holdfast.ledger.tasks.task import Task
from holdfast.persistence.queries.credentials import live_api_keys
from holdfast.persistence.queries.lots import read_lot_amounts
from holdfast.persistence.queries.moves import is_email_elsewhere
from holdfast.persistence.queries.spending import (
    GROUPS_OF_ACCOUNT,
    LIMITS_OF_ACCOUNT,
    account_spending,
    groups_of,
    limits_of,
)
from holdfast.persistence.queries.tasks import task_by_id
from holdfast.persistence.queries.webhooks import read_alerts, webhooks_of_account
from holdfast.persistence.records import tables
from holdfast.persistence.records.event_rows import WebhookRow
from holdfast.persistence.records.key_rows import KeyGroupRow
from holdfast.persistence.records.reading import TOP_UP_STATE, top_up_of
from holdfast.persistence.records.unreadable import UnreadableRow, read_row


class LoadedAccount(NamedTuple):
    """An account's credit, the terms of its live API keys by their ids, and since when it is disabled or closed.

    ``makers`` has the keys that have made one, in their order, of each live one that a key has made; ``key_groups``
    the groups by their ids, ``groups_of_keys`` the group of each live key that is in one.
    ``spending`` is None if neither the account nor a key or group of it has a limit. ``webhooks`` are by their ids.
    ``top_up`` is None if the account has never saved a card or set one.
    """

    state: AccountState
    live_keys: dict[str, KeyTerms]
    makers: dict[str, tuple[str, ...]]
    key_groups: dict[str, KeyGroupRow]
    groups_of_keys: dict[str, str]
    disabled_at: datetime | None
    spending: AccountSpending | None
    webhooks: dict[str, WebhookRow]
    alerts: Alerts
    top_up: AutoTopUp | None
    closes_at: datetime | None = None
    closed_at: datetime | None = None


class LoadedSignIn(msgspec.Struct, frozen=True):
    """A sign-in's version and state (a JSON object), and the account that has its e-mail address, if one has."""

    version: int
    state: dict[str, Any]
    account_id: str | None
    role: Role | None
    is_disabled: bool
    account_version: int = 0
    closes_at: datetime | None = None
    is_away: bool = False
    """The account with the address is in another cell, or would be."""


class RowMissing(Exception):
    """The row of an actor does not exist."""


# Read with the head of every account: most have neither.
_ALERTS = (
    select(cast(tables.alerts.c.alerts, Text))
    .where(tables.alerts.c.account_id == tables.accounts.c.id)
    .scalar_subquery()
    .label("alerts")
)
_HAS_WEBHOOKS = (
    select(tables.webhooks.c.webhook_id)
    .where(tables.webhooks.c.account_id == tables.accounts.c.id)
    .exists()
    .label("has_webhooks")
)
_LOT_COLUMNS = ("number", "kind", "source", "reference", "amount_micro", "expires_at", "announced_days")
_OPEN_LOTS: ColumnElement[str | None] = literal_column(
    f"""
    (select cast(json_agg(json_build_array({", ".join(_LOT_COLUMNS)})) as text)
     from credit_lots where account_id = accounts.id and closed_number is null)
    """
)
_OPEN_HOLDS: ColumnElement[str | None] = literal_column(
    """
    (select cast(json_agg(json_build_array(h.hold_id, h.amount_micro, p.lot, p.amount_micro)
                          order by h.opened_number, p.line) as text)
     from holds h cross join lateral (
         -- The offset has each hold's postings found by their key.
         select lot, line, amount_micro from postings
         where account_id = h.account_id and number = h.opened_number and ledger_account = 'held' offset 0
     ) p
     where h.account_id = accounts.id and h.settled_number is null)
    """
)
_CREDIT = select(
    *(
        tables.accounts.c[name]
        for name in (
            "version", "operation_count", "balance_micro", "held_micro", "chain_head", "disabled_at", "lots",
            "closes_at", "closed_at",
        )
    ),
    _OPEN_LOTS.label("open_lots"),
    _OPEN_HOLDS.label("open_holds"),
    LIMITS_OF_ACCOUNT.label("limits"),
    GROUPS_OF_ACCOUNT.label("key_groups"),
    _ALERTS,
    _HAS_WEBHOOKS,
    TOP_UP_STATE,
).outerjoin(tables.auto_top_ups, tables.auto_top_ups.c.account_id == tables.accounts.c.id).where(
    tables.accounts.c.id == bindparam("account_id")
)  # fmt: skip
_LOTS = msgspec.json.Decoder(list[tuple[int, LotKind, LotSource, str, int, datetime | None, int | None]])
_HOLDS = msgspec.json.Decoder(list[tuple[str, int, int | None, int]])


def load_account(connection: Connection, account_id: str) -> LoadedAccount:
    """Load an account.

    Raises :class:`RowMissing` and :class:`~holdfast.persistence.records.unreadable.UnreadableRow`.

    Its credit is one statement, so that lots, holds and totals agree. If the account changes before the rows read
    after it, its version is older than they are, so the fence rejects a decision based on both.
    """
    head = connection.execute(_CREDIT, {"account_id": account_id}).one_or_none()
    if head is None:
        raise RowMissing(f"account {account_id}")
    keys, makers, groups_of_keys = live_api_keys(connection, account_id)
    webhooks = webhooks_of_account(connection, account_id) if head.has_webhooks else []
    open_lots = read_row(_LOTS.decode, head.open_lots or "[]", "credit_lots", account_id, columns=_LOT_COLUMNS)
    amounts = read_lot_amounts(account_id, [LotPart(lot[0], lot[4]) for lot in open_lots], head)
    state = AccountState(
        account_id,
        version=head.version,
        number=head.operation_count,
        balance_micro=head.balance_micro,
        held_micro=head.held_micro,
        chain_head=bytes(head.chain_head),
        lots=Lots(Lot(*lot[:6], *amounts[lot[0]], announced_days=lot[6]) for lot in open_lots),
    )
    for hold_id, amount_micro, lot, part_micro in _HOLDS.decode(head.open_holds or "[]"):
        state.holds[hold_id] = amount_micro
        if lot is None and part_micro:
            raise UnreadableRow(f"postings.lot {account_id}: the hold {hold_id} has reserved no lot")
        parts = state.reservations.get(hold_id, ())
        state.reservations[hold_id] = parts if lot is None else (*parts, LotPart(lot, part_micro))
    groups = groups_of(account_id, head.key_groups)
    spending = account_spending(connection, account_id, keys, groups, limits_of(account_id, head.limits))
    top_up = None
    if head.top_up is not None:
        top_up = top_up_of(head.top_up, account_id)
    return LoadedAccount(
        state,
        {key.key_id: key.terms for key in keys},
        makers,
        {each.group_id: each for each in groups},
        groups_of_keys,
        head.disabled_at,
        spending if any(spending) else None,
        {each.webhook_id: each for each in webhooks},
        read_alerts(head.alerts, account_id),
        top_up,
        head.closes_at,
        head.closed_at,
    )


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
    if not key.startswith("email:"):
        return LoadedSignIn(version, state, None, None, is_disabled=False)
    email, owner = key.removeprefix("email:"), tables.accounts.c
    # One statement, since a move may end meanwhile.
    account = connection.execute(
        select(
            *(owner[name] for name in ("id", "role", "disabled_at", "version", "closes_at")),
            and_(owner.id.is_(None), is_email_elsewhere(email)).label("is_away"),
        ).select_from(select(literal(1)).subquery().outerjoin(tables.accounts, owner.email == email))
    ).one()
    return LoadedSignIn(
        version,
        state,
        account.id,
        account.role,
        is_disabled=account.disabled_at is not None,
        account_version=account.version or 0,
        closes_at=account.closes_at,
        is_away=account.is_away,
    )
