"""What is spent of the limits of an account and its API keys, from the rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Final

import msgspec
from sqlalchemy import Connection, Text, TextualSelect, bindparam, case, cast, func, select, text

from holdfast.ledger.credit.limits import (
    WHOLE_ACCOUNT,
    WINDOWS,
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
        coalesce(t.request ->> 'api_key_id', ''), h.amount_micro, t.created_at, t.model))) as text) as open_holds
    from holds h join tasks t on t.request_id = h.reference
    where h.account_id = :account_id and h.settled_number is null
    """
).columns(open_holds=Text)
_holds = msgspec.json.Decoder(list[tuple[str, LimitedHold]])
_MORE_LIMITS = "account_id = :account_id and revoked_at is null and json_array_length(more_limits) > 0"
_HAS_LIMITS = text(
    "exists (select from api_keys where account_id = :account_id and limit_window is not null "
    f"and revoked_at is null) or exists (select from api_keys where {_MORE_LIMITS}) "
    "or exists (select from account_limits where account_id = :account_id)"
)
# Every window begins with a day of UTC, so however much was used, the totals of days are few rows. All time is
# only read if a limit is for it.
_CAPTURED: TextualSelect = text(
    f"""
    select cast(json_build_object('newest', newest, 'sums', (
        select coalesce(json_agg(json_build_array(
            api_key_id, model, json_build_array(day, week, month, total))), '[]') from (
            select api_key_id, model, sum(cost_micro) filter (where start_at >= day_start) as day,
                   sum(cost_micro) filter (where start_at >= week_start) as week,
                   sum(cost_micro) filter (where start_at >= month_start) as month, sum(cost_micro) as total
            from usage_totals where account_id = :account_id and end_user_by = '' and span_s = {SPANS_S[0]}
                and api_key_id in (select key_id from api_keys where {_MORE_LIMITS})
                and start_at >= case when exists (
                    select from api_keys, json_array_elements(more_limits) each
                    where {_MORE_LIMITS} and each ->> 'window' = 'total'
                ) then '-infinity' else least(week_start, month_start) end
            group by api_key_id, model
        ) found
    )) as text) as captured
    from (select newest, date_trunc('day', newest, 'UTC') as day_start,
                 date_trunc('week', newest, 'UTC') as week_start, date_trunc('month', newest, 'UTC') as month_start
          from (select max(ts) as newest from usage_entries where account_id = :account_id) of_account) starts
    """
).columns(captured=Text)
# Read with the keys or limits themselves, so that no hold is missed that ends between two statements.
_HOLDS = case((_HAS_LIMITS, _OPEN_HOLDS.scalar_subquery())).label("open_holds")
_HAS_MORE_LIMITS = text(f"exists (select from api_keys where {_MORE_LIMITS})")
_CAPTURED_OF_MORE = case((_HAS_MORE_LIMITS, _CAPTURED.scalar_subquery())).label("captured")
_KEYS_AND_HOLDS = KEYS_OF_ACCOUNT.add_columns(api_keys.c.makers, _HOLDS, _CAPTURED_OF_MORE)
_LIMITS_AND_HOLDS = select(LIMITS_OF_ACCOUNT, _HOLDS)


class _Captured(msgspec.Struct, frozen=True):
    """What was captured by key and model, in the windows of the account's newest task."""

    newest: datetime | None
    sums: list[tuple[str, str, Sequence[int | None]]]

    def of(self, spending: Spending) -> int:
        """Return what was captured of a limit."""
        window = WINDOWS.index(spending.window)
        return sum(
            of_windows[window] or 0
            for key_id, model_id, of_windows in self.sums
            if key_id == spending.key_id and spending.is_of_model(model_id)
        )


_NONE_CAPTURED: Final = _Captured(None, [])
_captured = msgspec.json.Decoder(_Captured)


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
    made = [(api_key_of(key), makers[-1] if makers else None) for *key, makers, _, _ in found]
    captured = _read_captured(found[0].captured if found else None)
    spendings = _spendings([key for key, _ in made], (), captured)
    return made, AccountSpending(spendings, _read_holds(found[0].open_holds if found else None))


def spending_of_account(rows: Connection, account_id: str) -> AccountSpending:
    """Return what is spent of the limits of the whole account."""
    limits, holds = rows.execute(_LIMITS_AND_HOLDS, {"account_id": account_id}).one()
    return AccountSpending(_spendings((), limits_of(account_id, limits), _NONE_CAPTURED), _read_holds(holds))


def account_spending(
    rows: Connection, account_id: str, keys: Iterable[ApiKeyRecord], limits: Iterable[AccountLimitRow]
) -> AccountSpending:
    """Return what is spent of the limits of these keys and of the account, in each one's newest known window."""
    keys, captured = list(keys), _NONE_CAPTURED
    if any(key.more_limits for key in keys):
        captured = _read_captured(rows.scalar(_CAPTURED, {"account_id": account_id}))
    found = _spendings(keys, limits, captured)
    return AccountSpending(found, open_holds(rows, account_id) if found else {})


def _spendings(
    keys: Iterable[ApiKeyRecord], limits: Iterable[AccountLimitRow], captured: _Captured
) -> list[Spending]:
    """Return what was captured of each limit."""
    of_keys = [spending for key in keys for spending in _spendings_of_key(key, captured)]
    of_account = [
        Spending(WHOLE_ACCOUNT, *msgspec.structs.astuple(each)[1:])
        for each in limits
        if each.limit_micro is not None or each.ceiling_micro is not None
    ]
    return of_keys + of_account


def spendings_of_key(key: ApiKeyRecord) -> list[Spending]:
    """Return the limits of a key of which nothing was spent yet."""
    return list(_spendings_of_key(key, _NONE_CAPTURED))


def _spendings_of_key(key: ApiKeyRecord, captured: _Captured) -> Iterator[Spending]:
    """Yield what was captured of a key's limits, if it is not revoked. Raises ``UnreadableRow``."""
    if key.revoked_at is not None:
        return
    if key.limit_window is not None:
        yield Spending(
            key.key_id,
            read_row(_window, key.limit_window, "api_keys.limit_window", key.key_id),
            key.limit_micro,
            starts_at=key.window_start,
            captured_micro=key.captured_micro,
        )
    for limit in key.more_limits:
        spending = Spending(key.key_id, limit.window, limit.credits_micro, models=limit.models, is_in_row=False)
        if captured.newest is not None:
            spending.starts_at = window_start(limit.window, captured.newest)
            spending.captured_micro = captured.of(spending)
        yield spending


def _read_captured(found: str | None) -> _Captured:
    return _NONE_CAPTURED if found is None else _captured.decode(found)


def open_holds(rows: Connection, account_id: str) -> dict[str, LimitedHold]:
    """Return the account's open holds."""
    return _read_holds(rows.scalar(_OPEN_HOLDS, {"account_id": account_id}))


def _read_holds(found: str | None) -> dict[str, LimitedHold]:
    return {} if found is None else dict(_holds.decode(found))


def new_spending(
    rows: Connection,
    account_id: str,
    key_id: str,
    window: LimitWindow,
    models: tuple[str, ...] = (),
    *,
    now: datetime,
) -> tuple[Spending, dict[str, LimitedHold]]:
    """Return the spending of a limit that is to be set, with what was captured so far; and the open holds.

    The window is that of the account's newest task if it is later than ``now``: the clock was set back.
    """
    newest = rows.scalar(select(func.max(usage_entries.c.ts)).where(usage_entries.c.account_id == account_id))
    start = window_start(window, now if newest is None else max(now, newest))
    # Every window begins with a day of UTC, so however much was used, the totals of days are few rows.
    totals = usage_totals.c
    captured = select(totals.model, func.sum(totals.cost_micro)).where(
        totals.account_id == account_id,
        totals.end_user_by == "",
        totals.span_s == SPANS_S[0],
        totals.start_at >= start,
    )
    if key_id != WHOLE_ACCOUNT:
        captured = captured.where(totals.api_key_id == key_id)
    spending = Spending(key_id, window, None, starts_at=start, models=models)
    found = rows.execute(captured.group_by(totals.model))
    spending.captured_micro = sum(int(micro) for model_id, micro in found if spending.is_of_model(model_id))
    return spending, open_holds(rows, account_id)
