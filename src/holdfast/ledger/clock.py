"""Time in the ledger: aware UTC, whole milliseconds, formatted as RFC 3339 with a Z."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, tzinfo
from typing import Final

import msgspec

Now = Callable[[], datetime]
"""A source of the current time; tests pass their own."""


_encode: Final = msgspec.json.Encoder().encode
_SECOND: Final = slice(1, len('"2026-11-20T18:40:00'))


def utc_now() -> datetime:
    """Return the current time, truncated to milliseconds so that the stored value equals the shown one."""
    now = datetime.now(UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


def format_time(at: datetime) -> str:
    """Format a time as ``2026-11-20T18:40:00.123Z``."""
    if at.tzinfo is not UTC:
        at = at.astimezone(UTC)
    # Formatted by msgspec, in a fifth of the time that datetime's own formats take: a list has a hundred times.
    return f"{str(_encode(at)[_SECOND], 'ascii')}.{at.microsecond // 1000:03}Z"


def time_or_none(at: datetime | None) -> str | None:
    """Format a time; None stays None."""
    return None if at is None else format_time(at)


def midnight(day: date, zone: tzinfo) -> datetime:
    """Return when a day of ``zone`` begins, in UTC; later than midnight where the clock is set forward then."""
    return datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)
