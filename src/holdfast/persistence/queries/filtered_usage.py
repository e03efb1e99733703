"""Usage and tasks that match filters, read through the entries of the usage log, which have what is filtered by.

Each read scans a bounded number of entries, in the order of the log; those of one end user have an index. Of the
metadata they have the text ``end_user`` alone. Any other is read from the task, for entries that match so far.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, text

from holdfast.ledger.tasks.task import Task
from holdfast.persistence.queries.paging import (
    EARLIEST,
    LATEST,
    PAGE_SHAPES_MAX,
    PageOptions,
    ScanEnd,
    each_readable,
    given_of,
)
from holdfast.persistence.records.rows import UsageEntry
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.repeated_queries import RepeatedQuery

SCANNED_MAX: Final = 100_000
METADATA_SCANNED_MAX: Final = 20_000
"""How many entries are read for one page, and how many if the tasks' metadata is compared: about 0.1 s of work."""

OF_METADATA: Final = re.compile(r"metadata\[(.+)\]", re.DOTALL)
"""The name of a filter by a text of the metadata."""

_COLUMNS: Final = ("status", "model", "modality", "api_key_id")
_BOUNDS: Final = {
    "end_user": "end_user = :end_user",
    "since": "ts >= :since",
    "until": "ts < :until",
    "after_at": "(ts, request_id) < (:after_at, :after_id)",
    "beyond_at": "(ts, request_id) < (coalesce((select max(b.ts) from usage_entries b where b.account_id = "
    ":account_id and b.request_id = :beyond_id), :beyond_at), :beyond_id)",
}
_HELD: Final = f"least(greatest(%s, '{EARLIEST.isoformat()}'), '{LATEST.isoformat()}')"
_ENTRIES: Final = """
select {columns} from usage_entries
where account_id = :account_id{bounds} order by ts desc, request_id desc limit {limit}
"""
_PAGE: Final = """
select {columns} from ({entries}) u{tasks} where {matches} order by u.ts desc, u.request_id desc limit :limit
"""
# With its offset each task is read by its key, whatever the plan.
TASKS: Final = """ cross join lateral (
    select * from tasks k where k.account_id = :account_id and k.created_at = u.ts and k.request_id = u.request_id
    offset 0
) t"""


def parameters_of(filters: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of filters: each by its name, and of the metadata a ``key_N`` with its ``value_N``."""
    of_metadata = {named[1]: value for name, value in filters.items() if (named := OF_METADATA.fullmatch(name))}
    given = {name: value for name, value in filters.items() if not OF_METADATA.fullmatch(name)}
    if of_metadata.get("end_user") and "end_user" not in given:
        given["end_user"] = of_metadata.pop("end_user")
    for number, (key, value) in enumerate(of_metadata.items()):
        given[f"key_{number}"], given[f"value_{number}"] = key, value
    return given


def matches_of(names: tuple[str, ...]) -> str:
    """Return the SQL by which an entry ``u`` and its task ``t`` match the filters with these parameters."""
    of_entry = [f"u.{name} = :{name}" for name in _COLUMNS if name in names]
    of_metadata = [
        f"json_extract_path_text(t.request, 'metadata', :{name}) = :{name.replace('key', 'value')}"
        for name in names
        if name.startswith("key_")
    ]
    return " and ".join([*of_entry, *of_metadata]) or "true"


def scan_usage(
    rows: Connection,
    account_id: str,
    filters: Mapping[str, str],
    options: PageOptions,
    scanned_max: int | None,
    *,
    of_tasks: bool,
) -> tuple[list[Any], list[ScanEnd]]:
    """Return the rows of a page of entries, or of their tasks, that match, and where its scan ends, if it does."""
    given = {"account_id": account_id, **parameters_of(filters), **given_of(options)}
    scanned_max = scanned_max or (METADATA_SCANNED_MAX if "key_0" in given else SCANNED_MAX)
    queries = _queries(tuple(given), scanned_max, of_tasks)
    try:
        found = queries.page.rows(rows, given)
    except UnreadableRow:
        found = each_readable(
            queries.positions.rows(rows, given),
            lambda position: queries.one.rows(rows, {**given, "request_id": position[1]}),
        )
    is_full = len(found) == options["limit"]
    return found, [] if is_full else [ScanEnd(*row) for row in queries.last.rows(rows, given)]


class _Queries(NamedTuple):
    """The queries of a page: its rows, their positions, the row of a ``request_id``, and the last that is read."""

    page: RepeatedQuery
    positions: RepeatedQuery
    one: RepeatedQuery
    last: RepeatedQuery


@lru_cache(maxsize=PAGE_SHAPES_MAX)
def _queries(names: tuple[str, ...], scanned_max: int, of_tasks: bool) -> _Queries:
    bounds = "".join(f" and {condition}" for name, condition in _BOUNDS.items() if name in names)
    columns = _selected("t", Task.__struct_fields__) if of_tasks else _selected("u", UsageEntry.__struct_fields__)
    entries = _ENTRIES.format(columns="*", bounds=bounds, limit=scanned_max)
    page_of = partial(_PAGE.format, entries=entries, tasks=TASKS if of_tasks else "")
    matches = matches_of(names)
    last = _ENTRIES.format(
        columns=f"{_HELD % 'ts'}, request_id", bounds=bounds, limit=f"1 offset {scanned_max - 1}"
    )
    queries = (
        page_of(columns=columns, matches=matches),
        page_of(columns=f"{_HELD % 'u.ts'}, u.request_id", matches=matches),
        page_of(columns=columns, matches=f"{matches} and u.request_id = :request_id"),
        last,
    )
    return _Queries(*(RepeatedQuery(text(each)) for each in queries))


def _selected(alias: str, fields: tuple[str, ...]) -> str:
    """Return the columns of fields, JSON as text, so that it is decoded once and directly into its type."""
    json = ("request", "state", "status_history")
    return ", ".join(
        f"cast({alias}.{name} as text) as {name}" if name in json else f"{alias}.{name}" for name in fields
    )
