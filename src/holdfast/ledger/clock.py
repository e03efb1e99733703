"""Time in the ledger: aware UTC, whole milliseconds, formatted as RFC 3339 with a Z."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

Now = Callable[[], datetime]
"""A source of the current time; tests pass their own."""


def utc_now() -> datetime:
    """Return the current time, truncated to milliseconds so that the stored value equals the shown one."""
    now = datetime.now(UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


def format_time(at: datetime) -> str:
    """Format a time as ``2026-11-20T18:40:00.123Z``."""
    text = at.isoformat(timespec="milliseconds")
    if not text.endswith("+00:00"):
        text = at.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.removesuffix("+00:00") + "Z"
