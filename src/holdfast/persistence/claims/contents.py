"""The contents of the asset store: when each may be stored, and when it may be deleted.

Assets of many tasks and files of many accounts may refer to one content, and it may be stored again at the moment
when the last of them is deleted. No transaction includes the store, so the table ``contents`` separates the two
sides:

- To store a content, a process **claims** it first, until a time. Before that a row that refers to it may be
  written. Nothing is in the store that was not claimed, so after a crash every content has a row.
- To delete contents, a process **marks** those that no row refers to and whose claims are over, deletes them from
  the store, and then deletes their rows. A marked content cannot be claimed: to store it, a process waits
  until it has been deleted.

So the store never gets a put and a delete of the same key at once, in a folder or in a bucket. This relies on two
time limits: the row of a stored content is decided within half of the time of its claim (the task or the upload
checks this), and a delete is finished within its lease.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import psycopg
from sqlalchemy import Connection, text

from holdfast.persistence.claims.tasks import Expired
from holdfast.persistence.server.connections import KeptConnection
from holdfast.persistence.server.database_faults import DatabaseAway, QueryTimedOut, reason_of, trouble_of

RESULT_CLAIM_S = 3 * 3600
"""How long the content of a task's result is claimed: the results of one task are stored one after the other."""
RESULT_CLAIM_USABLE_S = RESULT_CLAIM_S // 2
"""How old a claim may be when the row that depends on it is decided; the other half is for the commit."""
LEASE_S = 600
"""After this, any process may repeat a delete that was not finished."""

_CLAIM = (
    "insert into contents as c (sha256, content_type, claimed_until) "
    "select k.sha256, k.content_type, %s "
    # Texts, because the driver takes twice as long for lists. Neither hashes nor types have blanks.
    "from unnest(string_to_array(%s, ' '), string_to_array(%s, ' ')) k (sha256, content_type) "
    # In one order, so that no two claims wait for each other.
    "order by k.sha256, k.content_type "
    "on conflict (sha256, content_type) do update "
    "set claimed_until = greatest(c.claimed_until, excluded.claimed_until) "
    "where c.marked_at is null returning c.sha256, c.content_type"
)
_PAGE_END = text(
    "select sha256, content_type from contents where (sha256, content_type) > (:sha256, :content_type) "
    "order by sha256, content_type offset :most - 1 limit 1"
)
_MARK = text(
    "with due as (select sha256, content_type from contents c "
    "where (sha256, content_type) > (:sha256, :content_type) "
    "and (sha256, content_type) <= (:last_sha256, :last_type) "
    "and claimed_until < :at and (marked_at is null or marked_at < :marked_before) "
    "and not exists (select from assets a where a.sha256 = c.sha256 and a.content_type = c.content_type) "
    "and not exists (select from files f where f.sha256 = c.sha256 and f.content_type = c.content_type) "
    # While an account is closed for a move its rows are not there.
    "and not exists (select from moving_rows) "
    "order by sha256, content_type for update of c skip locked) "
    "update contents c set marked_at = :at from due "
    "where c.sha256 = due.sha256 and c.content_type = due.content_type returning c.sha256, c.content_type"
)
_DELETE = text(
    "delete from contents c using unnest(cast(:sha256s as text[]), cast(:content_types as text[]), "
    "cast(:marked as timestamptz[])) k (sha256, content_type, marked_at) "
    "where c.sha256 = k.sha256 and c.content_type = k.content_type and c.marked_at = k.marked_at"
)
_EXPIRED_TASKS = text(
    # By the index of expiries, so that a backlog of expired assets costs no more than the rows returned.
    "select a.expires_at, a.request_id from assets a "
    "join tasks t on t.request_id = a.request_id "
    "where a.expires_at <= :at and (a.expires_at, a.request_id) > (:after_at, :after_id) "
    "and t.status in ('succeeded', 'failed', 'canceled') "
    "and not exists (select from assets b where b.account_id = a.account_id "
    "and b.request_id = a.request_id and b.expires_at > :at) "
    "order by a.expires_at, a.request_id limit :most"
)
_LAST = "g"
"""Sorts after every hash, in every collation."""


class Content(NamedTuple):
    """The key of a content, by which assets and files refer to it."""

    sha256: str
    content_type: str


START = Content("", "")
"""Before the first content."""


class MarkedContents(NamedTuple):
    """Contents to delete from the store, when their lease began, and where the next page begins."""

    contents: list[Content]
    at: datetime
    next_after: Content


class ContentClaims:
    """Claims contents for the threads that store them, on one connection of its own.

    Claims that arrive while a statement runs share the next one.
    """

    def __init__(self, connection: KeptConnection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._waiting: deque[_Claim] = deque()

    def claim(self, content: Content, until: datetime) -> bool:
        """Protect a content from deletion until a time; False while it is being deleted. Blocks.

        Raises :class:`DatabaseAway`.
        """
        mine = _Claim(content, until)
        self._waiting.append(mine)
        with self._lock:
            if mine.result is None:
                group = [self._waiting.popleft() for _ in range(len(self._waiting))]
                try:
                    made = self._claim(group)
                except Exception as fault:
                    for each in group:
                        each.result = fault
                else:
                    for each in group:
                        each.result = each.content in made
        if isinstance(mine.result, Exception):
            raise mine.result
        assert mine.result is not None
        return mine.result

    def _claim(self, group: list[_Claim]) -> frozenset[Content]:
        try:
            connection = self._connection.get()
            connection.autocommit = True
            return claim_contents(connection, {each.content for each in group}, max(each.until for each in group))
        except psycopg.Error as fault:
            self._connection.discard()
            trouble = trouble_of(fault, writing=True)
            if trouble is None:
                raise
            raise (QueryTimedOut if trouble == "slow" else DatabaseAway)(reason_of(fault)) from fault


@dataclass(slots=True, eq=False)
class _Claim:
    """A claim of one thread, and its result once the statement has run."""

    content: Content
    until: datetime
    result: bool | Exception | None = None


def claim_contents(
    connection: psycopg.Connection[Any], contents: Collection[Content], until: datetime
) -> frozenset[Content]:
    """Protect different contents from deletion until a time; return all but those that are being deleted."""
    sha256s = " ".join([content.sha256 for content in contents])
    content_types = " ".join([content.content_type for content in contents])
    claimed = connection.execute(_CLAIM, (until, sha256s, content_types))
    return frozenset(contents if claimed.rowcount == len(contents) else (Content(*row) for row in claimed))


def mark_contents(connection: Connection, at: datetime, *, after: Content, page_max: int) -> MarkedContents:
    """Mark those of the next ``page_max`` contents that no row refers to, and those whose lease has expired.

    Calls that continue from ``next_after`` cover all contents, page by page; after the last page it is the start.
    """
    begin = {"sha256": after.sha256, "content_type": after.content_type}
    end = connection.execute(_PAGE_END, {**begin, "most": page_max}).first()
    last = Content(_LAST, _LAST) if end is None else Content(end.sha256, end.content_type)
    found = connection.execute(
        _MARK,
        {
            **begin,
            "last_sha256": last.sha256,
            "last_type": last.content_type,
            "at": at,
            "marked_before": at - timedelta(seconds=LEASE_S),
        },
    )
    contents = [Content(row.sha256, row.content_type) for row in found]
    return MarkedContents(contents, at, START if end is None else last)


def delete_marked(connection: Connection, removed: Mapping[Content, datetime]) -> None:
    """Delete the rows of contents that were deleted from the store, by when they were marked.

    A row that another process has marked since stays.
    """
    sha256s = [content.sha256 for content in removed]
    content_types = [content.content_type for content in removed]
    marked = list(removed.values())
    connection.execute(_DELETE, {"sha256s": sha256s, "content_types": content_types, "marked": marked})


def tasks_with_expired_assets(connection: Connection, at: datetime, *, after: Expired, most: int) -> list[Expired]:
    """Return ended tasks all of whose assets have expired, in that order, those that follow ``after``.

    A task whose assets expired at different times is there several times.
    """
    page = {"at": at, "after_at": after.at, "after_id": after.request_id, "most": most}
    return [Expired._make(row) for row in connection.execute(_EXPIRED_TASKS, page)]
