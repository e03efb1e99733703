"""Rows that this release cannot decode: damaged, or written by a release with other values.

Such a row affects its own key only. A list names it, the actor of that key is quarantined, a worker postpones it,
and a request that needs it is refused. Each time it is read, the log has a line with its key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, TypeVar

import msgspec
import structlog
from sqlalchemy import Row

T = TypeVar("T")

log = structlog.get_logger(__name__)


class UnreadableRow(Exception):
    """A row cannot be decoded. The text names its table and key, and says why."""


class UnreadableEntry(msgspec.Struct, frozen=True):
    """An unreadable row in a list, by its position (time, id), where a page may end or begin."""

    at: datetime
    id: str


def read_row(read: Callable[[Any], T], row: Any, table: str, key: str) -> T:
    """Decode one row. Raises :class:`UnreadableRow`."""
    try:
        return read(row)
    except (msgspec.MsgspecError, TypeError, ValueError) as exc:
        log.error("row is unreadable", table=table, key=key, reason=str(exc))
        raise UnreadableRow(f"{table} {key}: {exc}") from exc


def read_rows(
    read: Callable[[Any], T],
    rows: Iterable[Row[*tuple[Any, ...]]],
    table: str,
    place: Callable[[Any], tuple[datetime, str]],
) -> list[T | UnreadableEntry]:
    """Decode the rows of a list; one that cannot be decoded is logged and represented by its position."""
    found: list[T | UnreadableEntry] = []
    for row in rows:
        try:
            found.append(read(row))
        except (msgspec.MsgspecError, TypeError, ValueError) as exc:
            at, row_id = place(row)
            log.error("row is unreadable", table=table, key=row_id, reason=str(exc))
            found.append(UnreadableEntry(at, row_id))
    return found
