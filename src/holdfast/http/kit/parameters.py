"""The query parameters that lists share; :mod:`holdfast.http.kit.listing` parses them."""

from __future__ import annotations

from typing import Final, get_args

from holdfast.http.kit.listing import CURSOR_MAX_CHARS, FILTER_MAX_CHARS, LIMIT_DEFAULT, LIMIT_MAX
from holdfast.http.kit.routes import Parameter
from holdfast.ledger.tasks.task import TaskStatus

STATUS: Final = Parameter(
    name="status",
    place="query",
    description="Only entries with this status.",
    schema=(("type", "string"), ("enum", list(get_args(TaskStatus)))),
)
MODEL: Final = Parameter(
    name="model",
    place="query",
    description="Only entries of this model.",
    schema=(("type", "string"), ("maxLength", FILTER_MAX_CHARS)),
)
FROM: Final = Parameter(
    name="from",
    place="query",
    description="Only entries created at or after this RFC 3339 time with an offset; a date is midnight UTC.",
)
TO: Final = Parameter(
    name="to",
    place="query",
    description="Only entries created before this RFC 3339 time with an offset; a date is midnight UTC.",
)
CURSOR: Final = Parameter(
    name="cursor",
    place="query",
    description="`next_cursor` of the previous page, requested with the same filters.",
    schema=(("type", "string"), ("maxLength", CURSOR_MAX_CHARS)),
)
LIMIT: Final = Parameter(
    name="limit",
    place="query",
    description="The maximum number of entries on a page.",
    schema=(("type", "integer"), ("minimum", 1), ("maximum", LIMIT_MAX), ("default", LIMIT_DEFAULT)),
)
