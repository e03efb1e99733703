"""The query keys that lists share, as the document tells them; :mod:`holdfast.http.kit.listing` reads them."""

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
    description="Only entries made at or after this RFC 3339 time with an offset; a bare date is midnight in UTC.",
)
TO: Final = Parameter(
    name="to",
    place="query",
    description="Only entries made before this RFC 3339 time with an offset; a bare date is midnight in UTC.",
)
CURSOR: Final = Parameter(
    name="cursor",
    place="query",
    description="next_cursor of the page before, with the same filters.",
    schema=(("type", "string"), ("maxLength", CURSOR_MAX_CHARS)),
)
LIMIT: Final = Parameter(
    name="limit",
    place="query",
    description="How many entries a page has at most.",
    schema=(("type", "integer"), ("minimum", 1), ("maximum", LIMIT_MAX), ("default", LIMIT_DEFAULT)),
)
