"""Errors as problem details (RFC 7807), the form that Replicate's clients read, for all paths below its address.

The codes are those of the error table. Some have another status here: these clients know an invalid input by 422.
"""

from __future__ import annotations

from typing import Final, cast

import msgspec
from quart.wrappers.response import DataBody

from holdfast.http.kit.errors import ERROR_TABLE, ErrorDetail, ErrorResponse, RefusalResponse
from holdfast.http.kit.extensions import ErrorForm

_UNPROCESSABLE: Final = frozenset(
    {
        "invalid_input",
        "invalid_parameter",
        "missing_parameter",
        "model_not_available",
        "model_not_async",
        "quote_unavailable",
    }
)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every error response of this API (RFC 7807)."""

    title: str
    """What kind of problem it is, in words."""

    detail: str
    """What is wrong in this request. It may change."""

    status: int
    """The status of the response."""

    code: str
    """The error code, one of those in the introduction. Branch on this."""

    param: str | None
    """The part of the request that is wrong. Null: no single one."""

    request_id: str
    """The id of the request; quote it in support requests."""

    errors: list[ErrorDetail] | msgspec.UnsetType = msgspec.UNSET
    """Everything that is wrong with the input, at most ten errors. Present if the model's schema refuses it."""


def _status_of(code: str) -> int:
    """Return the status of a code as a problem."""
    return 422 if code in _UNPROCESSABLE else ERROR_TABLE[code].status


def _as_problem(refused: RefusalResponse) -> RefusalResponse:
    """Return the same refusal as problem details."""
    error = msgspec.json.decode(cast(DataBody, refused.response).data, type=ErrorResponse).error
    status = _status_of(error.code)
    problem = Problem(
        title=error.code.replace("_", " ").capitalize(),
        detail=error.message,
        status=status,
        code=error.code,
        param=error.param,
        request_id=error.request_id,
        errors=error.errors,
    )
    headers = {name: value for name, value in refused.headers if name not in {"Content-Type", "Content-Length"}}
    response = RefusalResponse(
        msgspec.json.encode(problem), status=status, headers=headers, content_type=PROBLEMS.content_type
    )
    response.code, response.is_of_share = error.code, refused.is_of_share
    return response


PROBLEMS: Final = ErrorForm(
    below="/replicate/",
    body=Problem,
    content_type="application/problem+json",
    status_of=_status_of,
    convert=_as_problem,
)
