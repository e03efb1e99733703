"""Time as the ledger sees it: aware UTC, whole milliseconds, written as RFC 3339 with a Z."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

Now = Callable[[], datetime]
"""Where a component asks the time; tests hand in their own."""


def utc_now() -> datetime:
    """The present moment, cut to milliseconds so that what is stored is what is shown."""
    now = datetime.now(UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


def format_time(at: datetime) -> str:
    """Write a time as ``2026-11-20T18:40:00.123Z``."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
