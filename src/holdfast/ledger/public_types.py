"""Types of values as customers see them: amounts are decimal strings, times RFC 3339 in UTC with milliseconds."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, TypeAlias

import msgspec

from holdfast.ledger.clock import format_time

Amount: TypeAlias = Annotated[str, msgspec.Meta(extra_json_schema={"examples": ["9.76"]})]
Time: TypeAlias = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]
FreeForm: TypeAlias = dict[str, Any]


def time_or_none(at: datetime | None) -> str | None:
    """Format a time; None stays None."""
    return None if at is None else format_time(at)
