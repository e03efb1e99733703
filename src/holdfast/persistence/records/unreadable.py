"""Rows that this program cannot read: damaged, or written by a version with other words.

Such a row concerns its own key. A list leaves it out and goes on, an actor of that key is set aside, a worker puts
it off; each names it in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

import msgspec
import structlog
from sqlalchemy import Row

T = TypeVar("T")

log = structlog.get_logger(__name__)


class UnreadableRow(Exception):
    """A row does not have the form its table promises. ``table`` and ``key`` name it."""

    def __init__(self, table: str, key: str, cause: Exception) -> None:
        super().__init__(f"{table} {key}: {cause}")
        self.table = table
        self.key = key


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Where an unreadable row stands in a list, by (time, id): the page behind it begins there all the same."""

    at: datetime
    id: str


def read_row(read: Callable[[Any], T], row: Any, table: str, key: str) -> T:
    """Read one row. Raises :class:`UnreadableRow`."""
    try:
        return read(row)
    except (msgspec.MsgspecError, TypeError, ValueError) as exc:
        raise UnreadableRow(table, key, exc) from exc


def read_rows(
    read: Callable[[Any], T],
    rows: Iterable[Row[*tuple[Any, ...]]],
    table: str,
    place: Callable[[Any], tuple[datetime, str]],
) -> list[T | LeftOut]:
    """Read the rows of a list; what cannot be read is named in the log and keeps its place."""
    found: list[T | LeftOut] = []
    for row in rows:
        try:
            found.append(read(row))
        except (msgspec.MsgspecError, TypeError, ValueError) as exc:
            at, row_id = place(row)
            log.error("a row cannot be read", table=table, key=row_id, reason=str(exc))
            found.append(LeftOut(at, row_id))
    return found
