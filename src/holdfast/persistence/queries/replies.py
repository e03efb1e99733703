"""The stored replies of an account: by route and key, what a used Idempotency-Key replays.

The newest attempt at the requests of a group is stored like one: its id as the fingerprint, its beginning as the
reply.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec
from sqlalchemy import Connection, bindparam, select

from holdfast.persistence.records.rows import IdempotencyProbe, StoredReply
from holdfast.persistence.records.tables import idempotency_records

_NEWEST_ATTEMPT: Final = "newest attempt"
_OF_ROUTE = (
    select(idempotency_records.c.key, idempotency_records.c.fingerprint, idempotency_records.c.reply)
    .where(
        idempotency_records.c.account_id == bindparam("account_id"),
        idempotency_records.c.route == bindparam("route"),
        idempotency_records.c.created_at > bindparam("oldest"),
    )
    .order_by(idempotency_records.c.created_at.desc())
)
_OF_KEY = _OF_ROUTE.where(idempotency_records.c.key == bindparam("key"))


def find_reply(rows: Connection, probe: IdempotencyProbe, *, oldest: datetime) -> StoredReply | None:
    """Return the reply stored since a time under (account, route, key), or None."""
    found = rows.execute(_OF_KEY, {**probe._asdict(), "oldest": oldest}).one_or_none()
    return None if found is None else StoredReply(bytes(found.fingerprint), bytes(found.reply))


def replies_of_route(rows: Connection, account_id: str, *, route: str, oldest: datetime) -> dict[str, bytes]:
    """Return the replies stored since a time under (account, route), by their keys, the newest first."""
    found = rows.execute(_OF_ROUTE, {"account_id": account_id, "route": route, "oldest": oldest})
    return {each.key: bytes(each.reply) for each in found}


def attempt_probe(account_id: str, group: str) -> IdempotencyProbe:
    """Return where the newest attempt of a group is stored."""
    return IdempotencyProbe(account_id, _NEWEST_ATTEMPT, group)


def began_at(attempt: StoredReply) -> datetime:
    """Return when a stored attempt began; the end of time if an earlier release stored it, which did not say."""
    found = msgspec.json.decode(attempt.reply, type=datetime | None)
    return datetime.max.replace(tzinfo=UTC) if found is None else found
