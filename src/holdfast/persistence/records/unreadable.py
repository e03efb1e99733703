"""Rows that this release cannot decode: damaged, or written by a release with other values.

Such a row affects its own key only. A list names it, the actor of that key is quarantined, a worker postpones it,
and a request that needs it is refused. Each time it is read, the log has a line with its key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec
import structlog
from sqlalchemy import Row

T = TypeVar("T")

log = structlog.get_logger(__name__)

_LAST_INDEX: Final = re.compile(r"\[(\d+)\]`")


class UnreadableRow(Exception):
    """A row cannot be decoded. The text names its table, its column if that is known, and key, and says why."""


class UnreadableEntry(msgspec.Struct, frozen=True):
    """An unreadable row in a list, by its position (time, id), where a page may end or begin."""

    at: datetime
    id: str


def read_row(read: Callable[[Any], T], row: Any, table: str, key: str, *, columns: Sequence[str] = ()) -> T:
    """Decode one row, or one ``table.column`` of it. Raises :class:`UnreadableRow`.

    ``columns`` are those of a row that is decoded as an array.
    """
    try:
        return read(row)
    except (msgspec.MsgspecError, TypeError, ValueError) as exc:
        index = _LAST_INDEX.search(str(exc))
        where = f"{table}.{columns[int(index[1])]}" if columns and index else table
        log.error("row is unreadable", table=where, key=key, reason=str(exc))
        raise UnreadableRow(f"{where} {key}: {exc}") from exc


def read_rows(
    read: Callable[[Any], T],
    rows: Iterable[Row[*tuple[Any, ...]] | UnreadableEntry],
    table: str,
    position: Callable[[Any], tuple[datetime, str]],
) -> list[T | UnreadableEntry]:
    """Decode the rows of a list; one that cannot be decoded is logged and represented by its position."""
    found: list[T | UnreadableEntry] = []
    for row in rows:
        if isinstance(row, UnreadableEntry):
            found.append(row)
            continue
        try:
            found.append(read(row))
        except (msgspec.MsgspecError, TypeError, ValueError) as exc:
            at, row_id = position(row)
            log.error("row is unreadable", table=table, key=row_id, reason=str(exc))
            found.append(UnreadableEntry(at, row_id))
    return found
