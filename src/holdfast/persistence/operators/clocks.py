"""The clocks that service time comes from, and service time set back after one of them was wrong.

Service time that is far ahead approaches a database's clock that was set right over months. While no process runs,
it can be set to that clock at once. What would become due by the time that is taken back becomes due now: another
look at it costs nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, Literal, NamedTuple

from sqlalchemy import Connection, text

from holdfast.persistence.server.service_clock import OFF_MAX_S, RECENT_S

_READ: Final = text(
    "select clock_timestamp() as database_at, c.ahead_s, c.service_at, c.database_at as measured_at "
    "from (values (1)) one left join service_clock c on c.id = 1"
)
_RESET: Final = text(
    "update service_clock set ahead_s = 0, process_id = '', database_at = :now, service_at = :now where id = 1"
)
_DUE: Final = (
    ("tasks", "wake_at"),
    ("orders", "wake_at"),
    ("auto_top_ups", "wake_at"),
    ("outbox", "due_at"),
    ("poison_messages", "claimed_until"),
)
_CLAIMS: Final = text("update coupon_uses set claimed_at = :now where granted_at is null and claimed_at > :now")

ResetTrouble = Literal["running", "clocks differ"]


class Clocks(NamedTuple):
    """The three clocks; ``measured_at`` is when a process last measured, by the database's clock."""

    service: datetime | None
    database: datetime
    machine: datetime
    measured_at: datetime | None


def read_clocks(rows: Connection) -> Clocks:
    """Return the clocks as they are now."""
    row = rows.execute(_READ).one()
    service = None
    if row.service_at is not None:
        service = max(row.database_at + timedelta(seconds=row.ahead_s), row.service_at)
    return Clocks(service, row.database_at, datetime.now(UTC), row.measured_at)


def reset_service_time(rows: Connection) -> ResetTrouble | None:
    """Set service time to the database's clock, unless a process runs or that clock differs from this machine's."""
    rows.execute(text("select from service_clock where id = 1 for update"))
    clocks = read_clocks(rows)
    if abs((clocks.database - clocks.machine).total_seconds()) > OFF_MAX_S:
        return "clocks differ"
    if clocks.measured_at is not None and 0 <= (clocks.database - clocks.measured_at).total_seconds() <= RECENT_S:
        return "running"
    now = {"now": clocks.database}
    rows.execute(_RESET, now)
    # Leases until a time that has not come would make processes that are gone seem to run.
    rows.execute(text("delete from processes"))
    for table, column in _DUE:
        rows.execute(text(f"update {table} set {column} = :now where {column} > :now"), now)
    rows.execute(_CLAIMS, now)
    return None
