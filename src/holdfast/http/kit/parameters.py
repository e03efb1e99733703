"""The query parameters that lists share; :mod:`holdfast.http.kit.listing` parses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, get_args

from holdfast.http.kit.listing import CURSOR_MAX_CHARS, FILTER_MAX_CHARS, LIMIT_DEFAULT, LIMIT_MAX
from holdfast.http.kit.routes import Parameter
from holdfast.ledger.tasks.task import TaskStatus


def filter_by(name: str, description: str, values: Sequence[str] = ()) -> Parameter:
    """Return the parameter that selects entries by a text, or by one of ``values``."""
    limit = {"enum": list(values)} if values else {"maxLength": FILTER_MAX_CHARS}
    return Parameter(name, "query", description, schema={"type": "string", **limit})


STATUS: Final = filter_by("status", "Only entries with this status.", get_args(TaskStatus))
MODEL: Final = filter_by("model", "Only entries of this model.")
FROM: Final = Parameter(
    "from", "query", "Only entries created at or after this RFC 3339 time with an offset; a date is midnight UTC."
)
TO: Final = Parameter(
    "to", "query", "Only entries created before this RFC 3339 time with an offset; a date is midnight UTC."
)
CURSOR: Final = Parameter(
    "cursor",
    "query",
    "`next_cursor` of the previous page, requested with the same filters.",
    schema={"type": "string", "maxLength": CURSOR_MAX_CHARS},
)
LIMIT: Final = Parameter(
    "limit",
    "query",
    "The maximum number of entries on a page.",
    schema={"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT},
)
PAGE: Final = (FROM, TO, CURSOR, LIMIT)
"""The parameters of every list with pages."""
