"""Totals of the usage log by day, model, API key, status and end user, or by two of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import cache, partial
from typing import Any, Final, NamedTuple, TypeAlias, get_args
from zoneinfo import ZoneInfo, available_timezones

import msgspec
from quart import Response
from sqlalchemy import Connection

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import (
    API_KEY_ID,
    CSV_CONTENT_TYPE,
    END_USER,
    FORMAT,
    FROM,
    METADATA,
    MODEL,
    STATUS,
    TO,
    csv_lines,
    csv_media,
    read_window,
)
from holdfast.http.kit.routes import Outcome, Parameter, RouteTable
from holdfast.http.kit.values import invalid_parameter
from holdfast.ledger.api_keys import USAGE_READ
from holdfast.ledger.public_types import Amount, Time
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import TaskStatus
from holdfast.ledger.tasks.usage_totals import UsageGroup, days_of
from holdfast.ledger.values import format_amount, format_time, midnight
from holdfast.persistence.queries.usage_totals import GROUPS_MAX, UsageTotal, usage_totals

route = RouteTable("Usage")

DAYS: Final = 31
DAYS_MAX: Final = 366
_GROUPS: Final[tuple[UsageGroup, ...]] = get_args(UsageGroup)
_FIRST: Final = datetime(1972, 1, 1, tzinfo=UTC)
_LAST: Final = datetime(9998, 12, 31, tzinfo=UTC)

_ONE: Final = "|".join(_GROUPS)
GROUP_BY: Final = Parameter(
    "group_by",
    "query",
    f"By what usage is summed: one of `{'`, `'.join(_GROUPS)}`, or two with a comma between them. `end_user` is "
    "the text of that name in the tasks' `metadata`.",
    schema={"type": "string", "pattern": f"^({_ONE})(,({_ONE}))?$", "default": "day", "examples": ["day,model"]},
)
AS_FILE: Final = replace(FORMAT, description="`csv` returns a file.")
TIME_ZONE: Final = Parameter(
    "time_zone",
    "query",
    "The time zone of days and of dates without a time, by its IANA name.",
    schema={"type": "string", "default": "UTC", "examples": ["Europe/Berlin"]},
)
FILTERS: Final = (MODEL, API_KEY_ID, STATUS, END_USER, METADATA)
PERIOD: Final = (
    replace(
        FROM,
        description="Only tasks created at or after this RFC 3339 time with an offset; a date is midnight in "
        f"`time_zone`. By default {DAYS} days before `to`, at most {DAYS_MAX}.",
    ),
    replace(
        TO,
        description="Only tasks created before this RFC 3339 time with an offset; a date is midnight in "
        "`time_zone`. By default the end of today.",
    ),
)


class UsageTotalBody(msgspec.Struct, frozen=True):
    """The usage of one group. Values by which usage is not summed are null."""

    day: str | None
    """The day on which the tasks were created, `YYYY-MM-DD` in `time_zone`."""
    model: str | None
    """The id of the model."""
    api_key_id: str | None
    """The API key that created the tasks, `key_…`; null also for tasks without one."""
    status: TaskStatus | None
    """The tasks' status."""
    end_user: str | None
    """The text `end_user` of the tasks' `metadata`; null also for tasks without it."""
    count: int
    """How many tasks there are."""
    cost_credits: Amount
    """The sum of their charges."""


class UsageTotals(msgspec.Struct, frozen=True):
    """Sums of the usage log."""

    group_by: list[UsageGroup]
    """By what usage is summed: these fields of each group have its values, others are null."""
    time_zone: str
    """The time zone of days."""
    since: Time = msgspec.field(name="from")
    """The first moment that is summed."""
    until: Time = msgspec.field(name="to")
    """The first moment that is not summed any more."""
    data: list[UsageTotalBody]
    """The groups with usage, in the order of their values."""
    count: int
    """How many tasks there are in all."""
    cost_credits: Amount
    """The sum of all charges."""


Cell: TypeAlias = Callable[[UsageTotalBody], str | int | None]

COLUMNS: Final[Mapping[str, Cell]] = {
    "count": lambda total: total.count,
    "cost_credits": lambda total: total.cost_credits,
}
"""The columns of a file after those of its groups."""


class _Question(NamedTuple):
    """What is asked for. What lies between each two of ``bounds`` is summed apart: the ``days``, if by day."""

    groups: tuple[UsageGroup, ...]
    zone: str
    days: Sequence[date]
    bounds: Sequence[datetime]
    filters: Mapping[str, str]
    is_file: bool


@route(
    "GET",
    "/v2/usage/totals",
    summary="Sum the account's usage: by day, model, API key, status or end user, or by two of them",
    auth=Auth.SESSION_OR_KEY,
    scope=USAGE_READ,
    reply=UsageTotals,
    media=(csv_media(["day", *COLUMNS]),),
    parameters=(GROUP_BY, *FILTERS, TIME_ZONE, *PERIOD, AS_FILE),
)
async def sum_usage(call: Call) -> Outcome:
    """The sums of the entries that the usage log has for the same time."""
    asked = read_question(call)
    if isinstance(asked, Refusal):
        return asked
    account_id = await call.verify_caller()
    if isinstance(account_id, Refusal):
        return account_id
    body = await answer(asked, account_id, call.read)
    if isinstance(body, Refusal) or not asked.is_file:
        return body
    cells: list[Cell] = [*(partial(_value, name) for name in asked.groups), *COLUMNS.values()]
    return Response(
        csv_lines([[*asked.groups, *COLUMNS], *([cell(total) for cell in cells] for total in body.data)]),
        content_type=CSV_CONTENT_TYPE,
        headers={"Content-Disposition": 'attachment; filename="usage-totals.csv"'},
    )


def read_question(call: Call) -> _Question | Refusal:
    """Parse the parameters of totals. Refuses with ``invalid_parameter``."""
    zone_name = (call.query().get(TIME_ZONE.name) or ["UTC"])[0]
    if zone_name not in _zones():
        return invalid_parameter("time_zone", "must be the IANA name of a time zone", zone_name)
    zone: tzinfo = UTC if zone_name == "UTC" else ZoneInfo(zone_name)
    window = read_window(call, zone=zone)
    if isinstance(window, Refusal):
        return window
    groups = _read_groups(window.filters.get(GROUP_BY.name, "day"))
    if isinstance(groups, Refusal):
        return groups
    until = window.until or midnight(call.deps.now().astimezone(zone).date() + timedelta(days=1), zone)
    for name, at in (("from", window.since), ("to", until)):
        if at is not None and not _FIRST <= at <= _LAST:
            return invalid_parameter(name, f"must be from {_FIRST.year} to {_LAST.year}")
    last_day = (until - timedelta(microseconds=1)).astimezone(zone).date()
    since = window.since or midnight(last_day - timedelta(days=DAYS - 1), zone)
    if since >= until:
        return invalid_parameter("from", "must be earlier than to", format_time(since))
    if until - since > timedelta(days=DAYS_MAX, hours=1):
        return invalid_parameter("from", f"must be at most {DAYS_MAX} days before to", format_time(since))
    days, bounds = days_of(since, until, zone) if "day" in groups else ([], [since, until])
    filters = {name: value for name, value in window.filters.items() if name not in (GROUP_BY.name, TIME_ZONE.name)}
    return _Question(groups, zone_name, days, bounds, filters, window.is_file)


async def answer(
    asked: _Question, account_id: str, read: Callable[[Callable[[Connection], Any]], Awaitable[Any]]
) -> UsageTotals | Refusal:
    """Sum an account's usage. Refuses more groups than a response may have with ``invalid_parameter``."""
    found: list[UsageTotal] | None = await read(
        partial(
            usage_totals, account_id=account_id, groups=asked.groups, bounds=asked.bounds, filters=asked.filters
        )
    )
    if found is None:
        rule = f"has more than {GROUPS_MAX} groups, or too much usage to sum, in this time: choose a shorter one"
        return invalid_parameter("group_by", rule)
    data = [_body(total, asked.days) for total in found]
    data.sort(key=lambda total: [_value(name, total) or "" for name in asked.groups])
    return UsageTotals(
        group_by=[*asked.groups],
        time_zone=asked.zone,
        since=format_time(asked.bounds[0]),
        until=format_time(asked.bounds[-1]),
        data=data,
        count=sum(total.count for total in found),
        cost_credits=format_amount(sum(total.cost_micro for total in found)),
    )


def _read_groups(sent: str) -> tuple[UsageGroup, ...] | Refusal:
    names = sent.split(",")
    unknown = next((name for name in names if name not in _GROUPS), None)
    if unknown is not None:
        return invalid_parameter("group_by", f"must be of {', '.join(_GROUPS)}", unknown)
    if len(names) != len({*names}):
        return invalid_parameter("group_by", "must not name a group twice", sent)
    if len(names) > 2:
        return invalid_parameter("group_by", "must name one or two groups", sent)
    return tuple(msgspec.convert(names, list[UsageGroup]))


@cache
def _zones() -> frozenset[str]:
    # The first two are names of files: the zone of this machine, and one that is to be set.
    return frozenset(available_timezones() - {"localtime", "Factory"} | {"UTC"})


def _value(name: UsageGroup, total: UsageTotalBody) -> str | None:
    value: str | None = getattr(total, name)
    return value


def _body(total: UsageTotal, days: Sequence[date]) -> UsageTotalBody:
    return UsageTotalBody(
        days[total.part - 1].isoformat() if days else None,
        total.model,
        total.api_key_id,
        total.status,
        total.end_user,
        total.count,
        format_amount(total.cost_micro),
    )
