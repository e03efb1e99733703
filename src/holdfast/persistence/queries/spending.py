"""What is spent of the limits of an account and its API keys, from the rows."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import partial

import msgspec
from sqlalchemy import Connection, Text, TextualSelect, bindparam, case, cast, func, select, text

from holdfast.ledger.credit.limits import (
    WHOLE_ACCOUNT,
    AccountSpending,
    LimitedHold,
    Spending,
    window_start,
)
from holdfast.ledger.public_types import LimitWindow
from holdfast.ledger.tasks.usage_totals import SPANS_S
from holdfast.persistence.queries.credentials import KEYS_OF_ACCOUNT, api_key_of
from holdfast.persistence.records.rows import AccountLimitRow, ApiKeyRecord
from holdfast.persistence.records.tables import account_limits, api_keys, usage_entries, usage_totals
from holdfast.persistence.records.unreadable import read_row

_COLUMNS = AccountLimitRow.__struct_fields__[1:]
LIMITS_OF_ACCOUNT = (
    select(cast(func.json_agg(func.json_build_array(*(account_limits.c[name] for name in _COLUMNS))), Text))
    .where(account_limits.c.account_id == bindparam("account_id"))
    .scalar_subquery()
)
"""The limits of the account in the parameter ``account_id``, for :func:`limits_of`; null without any."""
_window = partial(msgspec.convert, type=LimitWindow)
_limits = msgspec.json.Decoder(list[tuple[LimitWindow, int | None, int | None, datetime, int]])

# A task is found by its id alone: with the account, the plan might read all of its tasks.
_OPEN_HOLDS: TextualSelect = text(
    """
    select cast(json_agg(json_build_array(h.hold_id, json_build_array(
        coalesce(t.request ->> 'api_key_id', ''), h.amount_micro, t.created_at))) as text) as open_holds
    from holds h join tasks t on t.request_id = h.reference
    where h.account_id = :account_id and h.settled_number is null
    """
).columns(open_holds=Text)
_holds = msgspec.json.Decoder(list[tuple[str, LimitedHold]])
_HAS_LIMITS = text(
    "exists (select from api_keys "
    "where account_id = :account_id and limit_window is not null and revoked_at is null) "
    "or exists (select from account_limits where account_id = :account_id)"
)
# Read with the keys or limits themselves, so that no hold is missed that ends between two statements.
_HOLDS = case((_HAS_LIMITS, _OPEN_HOLDS.scalar_subquery())).label("open_holds")
_KEYS_AND_HOLDS = KEYS_OF_ACCOUNT.add_columns(api_keys.c.makers, _HOLDS)
_LIMITS_AND_HOLDS = select(LIMITS_OF_ACCOUNT, _HOLDS)


def limits_of(account_id: str, found: str | None) -> list[AccountLimitRow]:
    """Return the account's limits as :data:`LIMITS_OF_ACCOUNT` found them. Raises ``UnreadableRow``."""
    if found is None:
        return []
    limits = read_row(_limits.decode, found, "account_limits", account_id, columns=_COLUMNS)
    return [AccountLimitRow(account_id, *each) for each in limits]


def keys_with_spending(
    rows: Connection, account_id: str
) -> tuple[list[tuple[ApiKeyRecord, str | None]], AccountSpending]:
    """Return the account's keys, newest first, each with the key that has made it, and what is spent of limits."""
    found = rows.execute(_KEYS_AND_HOLDS, {"account_id": account_id}).all()
    made = [(api_key_of(key), makers[-1] if makers else None) for *key, makers, _ in found]
    keys = [key for key, _ in made]
    return made, AccountSpending(_spendings(keys, ()), _read_holds(found[0].open_holds if found else None))


def spending_of_account(rows: Connection, account_id: str) -> AccountSpending:
    """Return what is spent of the limits of the whole account."""
    limits, holds = rows.execute(_LIMITS_AND_HOLDS, {"account_id": account_id}).one()
    return AccountSpending(_spendings((), limits_of(account_id, limits)), _read_holds(holds))


def account_spending(
    rows: Connection, account_id: str, keys: Iterable[ApiKeyRecord], limits: Iterable[AccountLimitRow]
) -> AccountSpending:
    """Return what is spent of the limits of these keys and of the account, in each one's newest known window."""
    found = _spendings(keys, limits)
    return AccountSpending(found, open_holds(rows, account_id) if found else {})


def _spendings(keys: Iterable[ApiKeyRecord], limits: Iterable[AccountLimitRow]) -> list[Spending]:
    """Return what was captured of each limit."""
    of_keys = [spending for key in keys if (spending := spending_of_key(key)) is not None]
    of_account = [
        Spending(WHOLE_ACCOUNT, *msgspec.structs.astuple(each)[1:])
        for each in limits
        if each.limit_micro is not None or each.ceiling_micro is not None
    ]
    return of_keys + of_account


def spending_of_key(key: ApiKeyRecord) -> Spending | None:
    """Return what was captured of a key's limit; None if it has none, or is revoked. Raises ``UnreadableRow``."""
    if key.limit_window is None or key.revoked_at is not None:
        return None
    return Spending(
        key.key_id,
        read_row(_window, key.limit_window, "api_keys.limit_window", key.key_id),
        key.limit_micro,
        starts_at=key.window_start,
        captured_micro=key.captured_micro,
    )


def open_holds(rows: Connection, account_id: str) -> dict[str, LimitedHold]:
    """Return the account's open holds."""
    return _read_holds(rows.scalar(_OPEN_HOLDS, {"account_id": account_id}))


def _read_holds(found: str | None) -> dict[str, LimitedHold]:
    return {} if found is None else dict(_holds.decode(found))


def new_spending(
    rows: Connection, account_id: str, key_id: str, window: LimitWindow, *, now: datetime
) -> tuple[Spending, dict[str, LimitedHold]]:
    """Return the spending of a limit that is to be set, with what was captured so far; and the open holds.

    The window is that of the account's newest task if it is later than ``now``: the clock was set back.
    """
    newest = rows.scalar(select(func.max(usage_entries.c.ts)).where(usage_entries.c.account_id == account_id))
    start = window_start(window, now if newest is None else max(now, newest))
    # Every window begins with a day of UTC, so however much was used, the totals of days are few rows.
    totals = usage_totals.c
    captured = select(func.sum(totals.cost_micro)).where(
        totals.account_id == account_id,
        totals.end_user_by == "",
        totals.span_s == SPANS_S[0],
        totals.start_at >= start,
    )
    if key_id != WHOLE_ACCOUNT:
        captured = captured.where(totals.api_key_id == key_id)
    spending = Spending(key_id, window, None, starts_at=start, captured_micro=int(rows.scalar(captured) or 0))
    return spending, open_holds(rows, account_id)
