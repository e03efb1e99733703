"""How long PostgreSQL takes to flush its log to disk, by its own statistics."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, text

_VERSION = text("select current_setting('server_version_num')::int, current_setting('track_wal_io_timing')::bool")
_SINCE_18 = text(
    "select coalesce(sum(fsyncs), 0), coalesce(sum(fsync_time), 0) from pg_stat_io where object = 'wal'"
)
_BEFORE_18 = text("select wal_sync, wal_sync_time from pg_stat_wal")


class WalSyncs(msgspec.Struct, frozen=True):
    """The server's flushes since its statistics began, and the seconds that they took."""

    count: int
    seconds: float


def read_wal_syncs(rows: Connection) -> WalSyncs | None:
    """Return the server's totals; None if it does not measure (``track_wal_io_timing``)."""
    version, is_measured = rows.execute(_VERSION).one()
    if not is_measured:
        return None
    count, took_ms = rows.execute(_SINCE_18 if version >= 180_000 else _BEFORE_18).one()
    return WalSyncs(int(count), float(took_ms) / 1000)
