"""Parse ``Retry-After``: a pause in seconds, or a date."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_DIGITS_READ = 9


def parse_retry_after(value: str | None, now: datetime) -> float | None:
    """Return the pause in seconds from ``now``, without an upper bound; None if there is none."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return float(text[:_DIGITS_READ])
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return max(0.0, (at - now).total_seconds())
