"""What is spent of the limits of an account, its API keys and its key groups, from the rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    Text,
    TextualSelect,
    and_,
    bindparam,
    case,
    cast,
    func,
    select,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import aggregate_order_by

from holdfast.ledger.credit.limits import (
    WHOLE_ACCOUNT,
    WINDOWS,
    AccountSpending,
    Limit,
    LimitedHold,
    Spending,
    window_start,
)
from holdfast.ledger.public_types import LimitWindow
from holdfast.ledger.tasks.usage_totals import SPANS_S
from holdfast.persistence.queries.credentials import GROUP_OF_KEY, KEYS_OF_ACCOUNT, api_key_of
from holdfast.persistence.records.key_rows import ApiKeyRecord, KeyGroupRow
from holdfast.persistence.records.rows import AccountLimitRow
from holdfast.persistence.records.tables import (
    account_limits,
    api_keys,
    group_keys,
    key_groups,
    usage_entries,
    usage_totals,
)
from holdfast.persistence.records.unreadable import read_row

_COLUMNS = AccountLimitRow.__struct_fields__[1:]
LIMITS_OF_ACCOUNT = (
    select(cast(func.json_agg(func.json_build_array(*(account_limits.c[name] for name in _COLUMNS))), Text))
    .where(account_limits.c.account_id == bindparam("account_id"))
    .scalar_subquery()
)
"""The limits of the account in the parameter ``account_id``, for :func:`limits_of`; null without any."""
_GROUP_COLUMNS = KeyGroupRow.__struct_fields__[1:]
GROUPS_OF_ACCOUNT = (
    select(
        cast(
            func.json_agg(
                aggregate_order_by(
                    func.json_build_array(*(key_groups.c[name] for name in _GROUP_COLUMNS)),
                    key_groups.c.created_at,
                    key_groups.c.group_id,
                )
            ),
            Text,
        )
    )
    .where(key_groups.c.account_id == bindparam("account_id"))
    .scalar_subquery()
)
"""The key groups of the account in the parameter ``account_id``, for :func:`groups_of`; null without any."""
_window = partial(msgspec.convert, type=LimitWindow)
_groups = msgspec.json.Decoder(list[tuple[str, str, tuple[Limit, ...], datetime]])
_limits = msgspec.json.Decoder(list[tuple[LimitWindow, int | None, int | None, datetime, int]])

# A task is found by its id alone: with the account, the plan might read all of its tasks.
_OPEN_HOLDS: TextualSelect = text(
    """
    select cast(json_agg(json_build_array(h.hold_id, json_build_array(
        coalesce(t.request ->> 'api_key_id', ''), h.amount_micro, t.created_at, t.model,
        coalesce(g.group_id, '')))) as text) as open_holds
    from holds h join tasks t on t.request_id = h.reference
        left join group_keys g on (g.account_id, g.key_id) = (h.account_id, t.request ->> 'api_key_id')
    where h.account_id = :account_id and h.settled_number is null
    """
).columns(open_holds=Text)
_holds = msgspec.json.Decoder(list[tuple[str, LimitedHold]])
_MORE_LIMITS = "account_id = :account_id and revoked_at is null and json_array_length(more_limits) > 0"
_GROUP_LIMITS = "account_id = :account_id and json_array_length(limits) > 0"
_HAS_LIMITS = text(
    "exists (select from api_keys where account_id = :account_id and limit_window is not null "
    f"and revoked_at is null) or exists (select from api_keys where {_MORE_LIMITS}) "
    f"or exists (select from key_groups where {_GROUP_LIMITS}) "
    "or exists (select from account_limits where account_id = :account_id)"
)
# Every window begins with a day of UTC, so however much was used, the totals of days are few rows. All time is
# only read if a limit is for it.
_CAPTURED: TextualSelect = text(
    f"""
    select cast(json_build_object('newest', newest, 'sums', (
        select coalesce(json_agg(json_build_array(
            limited_id, model, json_build_array(day, week, month, total))), '[]') from (
            select limited_id, model, sum(cost_micro) filter (where start_at >= day_start) as day,
                   sum(cost_micro) filter (where start_at >= week_start) as week,
                   sum(cost_micro) filter (where start_at >= month_start) as month, sum(cost_micro) as total
            from usage_totals join (
                select key_id, key_id as limited_id from api_keys where {_MORE_LIMITS}
                union all select key_id, group_id from group_keys where account_id = :account_id
                    and group_id in (select group_id from key_groups where {_GROUP_LIMITS})
            ) limited on key_id = api_key_id
            where account_id = :account_id and end_user_by = '' and span_s = {SPANS_S[0]}
                and start_at >= case when exists (
                    select from api_keys, json_array_elements(more_limits) each
                    where {_MORE_LIMITS} and each ->> 'window' = 'total'
                    union all select from key_groups, json_array_elements(limits) each
                    where {_GROUP_LIMITS} and each ->> 'window' = 'total'
                ) then '-infinity' else least(week_start, month_start) end
            group by limited_id, model
        ) found
    )) as text) as captured
    from (select newest, date_trunc('day', newest, 'UTC') as day_start,
                 date_trunc('week', newest, 'UTC') as week_start, date_trunc('month', newest, 'UTC') as month_start
          from (select max(ts) as newest from usage_entries where account_id = :account_id) of_account) starts
    """
).columns(captured=Text)
# Read with the keys or limits themselves, so that no hold is missed that ends between two statements.
_HOLDS = case((_HAS_LIMITS, _OPEN_HOLDS.scalar_subquery())).label("open_holds")
_HAS_MORE_LIMITS = text(
    f"exists (select from api_keys where {_MORE_LIMITS}) or exists (select from key_groups where {_GROUP_LIMITS})"
)
_CAPTURED_OF_MORE = case((_HAS_MORE_LIMITS, _CAPTURED.scalar_subquery())).label("captured")
_KEYS_AND_HOLDS = KEYS_OF_ACCOUNT.add_columns(
    api_keys.c.makers, GROUP_OF_KEY, GROUPS_OF_ACCOUNT.label("groups"), _HOLDS, _CAPTURED_OF_MORE
)
_GROUPS_AND_HOLDS = select(GROUPS_OF_ACCOUNT, _HOLDS, _CAPTURED_OF_MORE)
_LIMITS_AND_HOLDS = select(LIMITS_OF_ACCOUNT, _HOLDS)


_LIVE_KEYS_OF_GROUPS = (
    select(api_keys.c.key_id, group_keys.c.group_id)
    .join_from(
        group_keys,
        api_keys,
        and_(api_keys.c.account_id == group_keys.c.account_id, api_keys.c.key_id == group_keys.c.key_id),
    )
    .where(
        group_keys.c.account_id == bindparam("account_id"),
        group_keys.c.group_id.is_not(None),
        api_keys.c.revoked_at.is_(None),
    )
    .order_by(api_keys.c.created_at, api_keys.c.key_id)
)


class _Captured(msgspec.Struct, frozen=True):
    """What was captured by key or group and model, in the windows of the account's newest task."""

    newest: datetime | None
    sums: list[tuple[str, str, Sequence[int | None]]]

    def limited(self, limited_id: str, limit: Limit, group_name: str | None = None) -> Spending:
        """Return a limit of a key or group, with what was captured of it."""
        spending = Spending(limited_id, limit.window, limit.credits_micro, models=limit.models, is_in_row=False)
        spending.group_name = group_name
        if self.newest is not None:
            window = WINDOWS.index(limit.window)
            spending.starts_at = window_start(limit.window, self.newest)
            spending.captured_micro = sum(
                of_windows[window] or 0
                for each_id, model_id, of_windows in self.sums
                if each_id == limited_id and spending.is_of_model(model_id)
            )
        return spending


_NONE_CAPTURED: Final = _Captured(None, [])
_captured = msgspec.json.Decoder(_Captured)


def limits_of(account_id: str, found: str | None) -> list[AccountLimitRow]:
    """Return the account's limits as :data:`LIMITS_OF_ACCOUNT` found them. Raises ``UnreadableRow``."""
    if found is None:
        return []
    limits = read_row(_limits.decode, found, "account_limits", account_id, columns=_COLUMNS)
    return [AccountLimitRow(account_id, *each) for each in limits]


def groups_of(account_id: str, found: str | None) -> list[KeyGroupRow]:
    """Return the account's groups as :data:`GROUPS_OF_ACCOUNT` found them. Raises ``UnreadableRow``."""
    if found is None:
        return []
    groups = read_row(_groups.decode, found, "key_groups", account_id)
    return [KeyGroupRow(account_id, *each) for each in groups]


class OwnedKey(NamedTuple):
    """A key, the key that has made it, and the group that it is in."""

    key: ApiKeyRecord
    maker: str | None
    group_id: str | None


def keys_with_spending(rows: Connection, account_id: str) -> tuple[list[OwnedKey], AccountSpending]:
    """Return the account's keys, newest first, and what is spent of their limits and those of their groups."""
    found = rows.execute(_KEYS_AND_HOLDS, {"account_id": account_id}).all()
    keys = [
        OwnedKey(api_key_of(key), makers[-1] if makers else None, group_id)
        for *key, makers, group_id, _, _, _ in found
    ]
    if not found:
        return [], AccountSpending((), {})
    groups, holds, captured = found[0][-3:]
    limited = _spendings([each.key for each in keys], groups_of(account_id, groups), (), _read_captured(captured))
    return keys, AccountSpending(limited, _read_holds(holds))


def groups_with_spending(rows: Connection, account_id: str) -> tuple[list[KeyGroupRow], AccountSpending]:
    """Return the account's key groups, oldest first, and what is spent of their limits."""
    found, holds, captured = rows.execute(_GROUPS_AND_HOLDS, {"account_id": account_id}).one()
    groups = groups_of(account_id, found)
    return groups, AccountSpending(_spendings((), groups, (), _read_captured(captured)), _read_holds(holds))


def keys_of_groups(rows: Connection, account_id: str) -> dict[str, list[str]]:
    """Return the keys of each group that has some which are not revoked, oldest first."""
    keys: dict[str, list[str]] = {}
    for key_id, group_id in rows.execute(_LIVE_KEYS_OF_GROUPS, {"account_id": account_id}):
        keys.setdefault(group_id, []).append(key_id)
    return keys


def spending_of_account(rows: Connection, account_id: str) -> AccountSpending:
    """Return what is spent of the limits of the whole account."""
    limits, holds = rows.execute(_LIMITS_AND_HOLDS, {"account_id": account_id}).one()
    return AccountSpending(_spendings((), (), limits_of(account_id, limits), _NONE_CAPTURED), _read_holds(holds))


def account_spending(
    rows: Connection,
    account_id: str,
    keys: Sequence[ApiKeyRecord],
    groups: Sequence[KeyGroupRow],
    limits: Iterable[AccountLimitRow],
) -> AccountSpending:
    """Return what is spent of these keys', groups' and the account's limits, in each one's newest known window."""
    captured = _NONE_CAPTURED
    if any(key.more_limits for key in keys) or any(group.limits for group in groups):
        captured = _read_captured(rows.scalar(_CAPTURED, {"account_id": account_id}))
    found = _spendings(keys, groups, limits, captured)
    return AccountSpending(found, open_holds(rows, account_id) if found else {})


def _spendings(
    keys: Iterable[ApiKeyRecord],
    groups: Iterable[KeyGroupRow],
    limits: Iterable[AccountLimitRow],
    captured: _Captured,
) -> list[Spending]:
    """Return what was captured of each limit."""
    of_keys = [spending for key in keys for spending in _spendings_of_key(key, captured)]
    of_groups = [captured.limited(each.group_id, limit, each.name) for each in groups for limit in each.limits]
    of_account = [
        Spending(WHOLE_ACCOUNT, *msgspec.structs.astuple(each)[1:])
        for each in limits
        if each.limit_micro is not None or each.ceiling_micro is not None
    ]
    return of_keys + of_groups + of_account


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
        yield captured.limited(key.key_id, limit)


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
    limited_id: str,
    window: LimitWindow,
    models: tuple[str, ...] = (),
    *,
    group_name: str | None = None,
    now: datetime,
) -> tuple[Spending, dict[str, LimitedHold]]:
    """Return the spending of a limit that is to be set, with what was captured so far; and the open holds.

    The window is that of the account's newest task if it is later than ``now``: the clock was set back.
    """
    newest = rows.scalar(select(func.max(usage_entries.c.ts)).where(usage_entries.c.account_id == account_id))
    start = window_start(window, now if newest is None else max(now, newest))
    spending = Spending(limited_id, window, None, starts_at=start, models=models, group_name=group_name)
    if group_name is not None:
        keys = select(group_keys.c.key_id).where(
            group_keys.c.account_id == account_id, group_keys.c.group_id == limited_id
        )
        captured = _captured_since(rows, account_id, start, usage_totals.c.api_key_id.in_(keys))
    elif limited_id != WHOLE_ACCOUNT:
        captured = _captured_since(rows, account_id, start, usage_totals.c.api_key_id == limited_id)
    else:
        captured = _captured_since(rows, account_id, start, true())
    spending.captured_micro = sum(micro for model_id, micro in captured if spending.is_of_model(model_id))
    return spending, open_holds(rows, account_id)


def spending_of_key(
    rows: Connection, account_id: str, key_id: str, limits: Iterable[Spending]
) -> tuple[dict[Spending, int], dict[str, LimitedHold]]:
    """Return what was captured of a key's tasks in each limit's window, of those it is for; and all open holds."""
    captured = {}
    for each in limits:
        found = _captured_since(rows, account_id, each.starts_at, usage_totals.c.api_key_id == key_id)
        captured[each] = sum(micro for model_id, micro in found if each.is_of_model(model_id))
    return captured, open_holds(rows, account_id)


def _captured_since(
    rows: Connection, account_id: str, start: datetime, is_of_keys: ColumnElement[bool]
) -> list[tuple[str, int]]:
    """Return what was captured by model. A window begins with a day of UTC, so the totals of days are few rows."""
    totals = usage_totals.c
    found = rows.execute(
        select(totals.model, func.sum(totals.cost_micro))
        .where(
            totals.account_id == account_id,
            totals.end_user_by == "",
            totals.span_s == SPANS_S[0],
            totals.start_at >= start,
            is_of_keys,
        )
        .group_by(totals.model)
    )
    return [(model_id, int(micro)) for model_id, micro in found]
