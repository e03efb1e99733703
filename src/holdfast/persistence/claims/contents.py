"""What lies in the asset store, by content: who may put it there, and who may take it away.

Assets of many tasks may refer to one content, and it may be stored once more at the very moment at which the last
of them goes. No transaction spans the store, so the table ``contents`` stands between the two sides:

- Whoever stores **claims** the content first. A claim says: for :data:`CLAIM_S` somebody may come with a row that
  refers to it. Nothing is ever in the store without having been claimed, so a crash in between leaves nothing
  unknown.
- Whoever sweeps **dooms** what no asset refers to and nobody has claimed lately, removes it from the store, and
  then **forgets** it. A doomed content cannot be claimed: who wants to store it waits until it has gone, and stores
  it anew.

So no put ever meets a removal of the same key, in a folder or in a bucket, whatever clocks and caches the store
has. What this rests on is time: the row of a stored output must be decided within :data:`HEARD_WITHIN_S` of its
claim (the task sees to that), and a removal must be over within its lease.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Connection, text

CLAIM_S = 3 * 3600
"""How long a claimed content is safe although nothing refers to it yet."""
HEARD_WITHIN_S = CLAIM_S // 2
"""How old a claim may be when the row that stands on it is decided; the other half is for the commit."""
LEASE_S = 600
"""After this a removal that was not finished may be begun again by anybody."""

_CLAIM = text(
    "insert into contents as c (sha256, content_type, claimed_at) values (:sha256, :content_type, :at) "
    "on conflict (sha256, content_type) do update set claimed_at = greatest(c.claimed_at, excluded.claimed_at) "
    "where c.doomed_at is null returning c.claimed_at"
)
_PAGE_END = text(
    "select sha256, content_type from contents where (sha256, content_type) > (:sha256, :content_type) "
    "order by sha256, content_type offset :most - 1 limit 1"
)
_DOOM = text(
    "with due as (select sha256, content_type from contents c "
    "where (sha256, content_type) > (:sha256, :content_type) "
    "and (sha256, content_type) <= (:last_sha256, :last_type) "
    "and claimed_at < :claimed_before and (doomed_at is null or doomed_at < :doomed_before) "
    "and not exists (select from assets a where a.sha256 = c.sha256 and a.content_type = c.content_type) "
    "order by sha256, content_type for update of c skip locked) "
    "update contents c set doomed_at = :at from due "
    "where c.sha256 = due.sha256 and c.content_type = due.content_type returning c.sha256, c.content_type"
)
_FORGET = text(
    "delete from contents where sha256 = :sha256 and content_type = :content_type and doomed_at = :doomed_at"
)
_EXPIRED_TASKS = text(
    "select a.request_id from assets a "
    "join tasks t on t.request_id = a.request_id "
    "where a.expires_at <= :at and t.status in ('succeeded', 'failed', 'canceled') "
    "and not exists (select from assets b where b.account_id = a.account_id "
    "and b.request_id = a.request_id and b.expires_at > :at) "
    "group by a.request_id order by min(a.expires_at) limit :most"
)
_LAST = "g"
"""Comes after every hash, in every collation."""


class Content(NamedTuple):
    """One content, as assets name it."""

    sha256: str
    content_type: str


START = Content("", "")
"""Before the first content."""


class Doomed(NamedTuple):
    """Contents to be removed from the store, when their lease began, and where the next page begins."""

    contents: list[Content]
    at: datetime
    next_after: Content


def claim_content(connection: Connection, content: Content, at: datetime) -> bool:
    """Keep a content from being swept for a while, known or not; False while it is being removed."""
    claim = {"sha256": content.sha256, "content_type": content.content_type, "at": at}
    return connection.execute(_CLAIM, claim).first() is not None


def doom_contents(connection: Connection, at: datetime, *, after: Content, page_max: int) -> Doomed:
    """Of the next ``page_max`` contents doom those that nothing refers to, and take up removals never finished.

    Going on from ``next_after`` comes past everything in time, a bounded piece at once; after the last page it is
    the start again.
    """
    begin = {"sha256": after.sha256, "content_type": after.content_type}
    end = connection.execute(_PAGE_END, {**begin, "most": page_max}).first()
    last = Content(_LAST, _LAST) if end is None else Content(end.sha256, end.content_type)
    found = connection.execute(
        _DOOM,
        {
            **begin,
            "last_sha256": last.sha256,
            "last_type": last.content_type,
            "at": at,
            "claimed_before": at - timedelta(seconds=CLAIM_S),
            "doomed_before": at - timedelta(seconds=LEASE_S),
        },
    )
    contents = [Content(row.sha256, row.content_type) for row in found]
    return Doomed(contents, at, START if end is None else last)


def forget_contents(connection: Connection, removed: Mapping[Content, datetime]) -> None:
    """Delete the rows of contents that have left the store, by when they were marked; they may be stored again.

    A row that another process has marked since stays.
    """
    for content, doomed_at in removed.items():
        connection.execute(_FORGET, {**content._asdict(), "doomed_at": doomed_at})


def tasks_with_expired_assets(connection: Connection, at: datetime, *, most: int) -> list[str]:
    """Tasks that have ended and all of whose assets are past their time, those longest past it first."""
    return list(connection.execute(_EXPIRED_TASKS, {"at": at, "most": most}).scalars())
