"""Idempotency records: the stored reply of a key."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Connection, bindparam, select

from holdfast.persistence.records.accounts import StoredReply
from holdfast.persistence.records.tables import idempotency_records

_FIND = select(idempotency_records.c.fingerprint, idempotency_records.c.reply).where(
    idempotency_records.c.account_id == bindparam("account_id"),
    idempotency_records.c.route == bindparam("route"),
    idempotency_records.c.key == bindparam("key"),
    idempotency_records.c.created_at > bindparam("oldest"),
)


def find_reply(
    rows: Connection, account_id: str, *, route: str, key: str, now: datetime, ttl_s: int
) -> StoredReply | None:
    """Return the record of (account, route, key), or None; one older than ``ttl_s`` counts as absent."""
    oldest = now - timedelta(seconds=ttl_s)
    parameters = {"account_id": account_id, "route": route, "key": key, "oldest": oldest}
    found = rows.execute(_FIND, parameters).one_or_none()
    return None if found is None else StoredReply(bytes(found.fingerprint), bytes(found.reply))
