"""The error table: the response to each refusal and fault.

The body of an error is ``{"error": {message, type, code, param, request_id}}``. :data:`ERROR_TABLE` alone gives a
code its status, type and headers; handlers only name codes. Clients branch on ``code``, so a published row keeps
its meaning.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from holdfast.actors.runtime.faults import AskFault, OutcomeUnknown, Overloaded, Quarantined
from holdfast.http.kit.shown import shown
from holdfast.ledger.money import format_amount
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.database_faults import DatabaseAway

INVALID = "invalid_request_error"
AUTHENTICATION = "authentication_error"
PERMISSION = "permission_error"
NOT_FOUND = "not_found_error"
CONFLICT = "conflict_error"
IDEMPOTENCY = "idempotency_error"
CREDIT = "insufficient_credit_error"
RATE_LIMIT = "rate_limit_error"
PROVIDER = "provider_error"
API = "api_error"


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """The response to a code. ``retry_after_s`` is sent if the refusal has no time of its own.

    ``final`` sends ``X-Should-Retry: false``: common client libraries otherwise repeat every 409.
    ``challenge`` sends ``WWW-Authenticate: Bearer``.
    """

    status: int
    type: str
    retry_after_s: int | None = None
    final: bool = False
    challenge: bool = False


ERROR_TABLE: Final[dict[str, ErrorRow]] = {
    # Any endpoint.
    "route_not_found": ErrorRow(404, NOT_FOUND),
    "method_not_allowed": ErrorRow(405, INVALID),
    "malformed_request": ErrorRow(400, INVALID),
    "request_timeout": ErrorRow(408, INVALID),
    "invalid_json": ErrorRow(400, INVALID),
    "unsupported_media_type": ErrorRow(415, INVALID),
    "headers_too_large": ErrorRow(431, INVALID),
    "request_too_large": ErrorRow(413, INVALID),
    "missing_parameter": ErrorRow(400, INVALID),
    "invalid_parameter": ErrorRow(400, INVALID),
    "missing_credentials": ErrorRow(401, AUTHENTICATION, challenge=True),
    "invalid_credentials": ErrorRow(401, AUTHENTICATION, challenge=True),
    "invalid_session": ErrorRow(401, AUTHENTICATION, challenge=True),
    "session_expired": ErrorRow(401, AUTHENTICATION, challenge=True),
    "invalid_api_key": ErrorRow(401, AUTHENTICATION, challenge=True),
    "wrong_credential_type": ErrorRow(401, AUTHENTICATION, challenge=True),
    "insufficient_scope": ErrorRow(403, PERMISSION),
    "insufficient_role": ErrorRow(403, PERMISSION),
    "cross_origin_request": ErrorRow(403, PERMISSION),
    "invalid_csrf_token": ErrorRow(403, PERMISSION),
    "sign_in_locked": ErrorRow(429, RATE_LIMIT, retry_after_s=900),
    "account_disabled": ErrorRow(403, PERMISSION),
    "rate_limit_exceeded": ErrorRow(429, RATE_LIMIT, retry_after_s=1),
    "temporarily_unavailable": ErrorRow(503, API, retry_after_s=1),
    "overloaded": ErrorRow(503, API, retry_after_s=1),
    "quarantined": ErrorRow(503, API, retry_after_s=60),
    "record_unreadable": ErrorRow(503, API, retry_after_s=60),
    "internal_error": ErrorRow(500, API),
    "not_implemented": ErrorRow(501, INVALID),
    "http_version_not_supported": ErrorRow(505, INVALID),
    # Idempotency.
    "invalid_idempotency_key": ErrorRow(400, IDEMPOTENCY),
    "idempotency_key_reused": ErrorRow(422, IDEMPOTENCY),
    "idempotency_key_in_use": ErrorRow(409, IDEMPOTENCY, retry_after_s=1),
    # Sign-in, sessions and keys.
    "invalid_email": ErrorRow(400, INVALID),
    "otp_rate_limited": ErrorRow(429, RATE_LIMIT, retry_after_s=30),
    "otp_delivery_failed": ErrorRow(503, API, retry_after_s=30),
    "invalid_otp": ErrorRow(401, AUTHENTICATION),
    "otp_expired": ErrorRow(401, AUTHENTICATION),
    "otp_attempts_exceeded": ErrorRow(429, RATE_LIMIT, retry_after_s=600),
    "api_key_not_found": ErrorRow(404, NOT_FOUND),
    "api_key_limit_reached": ErrorRow(409, CONFLICT, final=True),
    "account_not_found": ErrorRow(404, NOT_FOUND),
    # Credit.
    "invalid_amount": ErrorRow(400, INVALID),
    "amount_too_small": ErrorRow(400, INVALID),
    "amount_too_large": ErrorRow(400, INVALID),
    "sandbox_disabled": ErrorRow(403, PERMISSION),
    "insufficient_credit": ErrorRow(402, CREDIT),
    # Payment orders.
    "payment_order_not_found": ErrorRow(404, NOT_FOUND),
    "payment_order_expired": ErrorRow(409, CONFLICT, final=True),
    "payment_order_not_payable": ErrorRow(409, CONFLICT, final=True),
    "payment_order_not_refundable": ErrorRow(409, CONFLICT, final=True),
    "provider_event_mismatch": ErrorRow(400, INVALID),
    "stored_input_limit_reached": ErrorRow(429, RATE_LIMIT, retry_after_s=3600),
    "too_many_open_orders": ErrorRow(429, RATE_LIMIT, retry_after_s=60),
    "provider_not_configured": ErrorRow(503, PROVIDER),
    "provider_not_found": ErrorRow(404, NOT_FOUND),
    "cost_not_accepted": ErrorRow(409, CONFLICT, final=True),
    "provider_unavailable": ErrorRow(502, PROVIDER),
    "provider_timeout": ErrorRow(504, PROVIDER),
    "provider_rejected": ErrorRow(502, PROVIDER, final=True),
    "provider_rate_limited": ErrorRow(503, PROVIDER, retry_after_s=5),
    # Catalog and quotes. An unknown model keeps the type that clients of compatible listings expect.
    "model_not_found": ErrorRow(404, INVALID),
    "model_not_available": ErrorRow(400, INVALID),
    "model_not_async": ErrorRow(400, INVALID),
    "invalid_input": ErrorRow(400, INVALID),
    "quote_unavailable": ErrorRow(503, API),
    "quote_expired": ErrorRow(409, CONFLICT, final=True),
    "quote_mismatch": ErrorRow(400, INVALID),
    # Tasks, lists and assets.
    "task_not_found": ErrorRow(404, NOT_FOUND),
    "task_not_terminal": ErrorRow(409, CONFLICT, final=True),
    "task_already_terminal": ErrorRow(409, CONFLICT, final=True),
    "task_input_expired": ErrorRow(410, NOT_FOUND),
    "event_not_found": ErrorRow(404, NOT_FOUND),
    "review_not_found": ErrorRow(404, NOT_FOUND),
    "review_not_open": ErrorRow(409, CONFLICT),
    "concurrency_limit_exceeded": ErrorRow(429, RATE_LIMIT, retry_after_s=5),
    "invalid_cursor": ErrorRow(400, INVALID),
    "asset_expired": ErrorRow(410, NOT_FOUND),
    "invalid_link": ErrorRow(403, PERMISSION),
    "range_not_satisfiable": ErrorRow(416, INVALID),
    # Operators.
    "actor_not_found": ErrorRow(404, NOT_FOUND),
    "actor_not_active": ErrorRow(409, CONFLICT),
    "actor_not_quarantined": ErrorRow(409, CONFLICT),
    "development_only": ErrorRow(403, PERMISSION),
    "group_not_found": ErrorRow(404, NOT_FOUND),
    "child_not_found": ErrorRow(404, NOT_FOUND),
    "child_not_stoppable": ErrorRow(409, CONFLICT, final=True),
    "child_running": ErrorRow(409, CONFLICT),
    "member_not_found": ErrorRow(404, NOT_FOUND),
    "poison_not_found": ErrorRow(404, NOT_FOUND),
    "poison_not_open": ErrorRow(409, CONFLICT),
    "poison_not_replayable": ErrorRow(409, CONFLICT, final=True),
    # Signed notifications.
    "missing_signature": ErrorRow(401, AUTHENTICATION),
    "invalid_signature": ErrorRow(401, AUTHENTICATION),
    "signature_expired": ErrorRow(401, AUTHENTICATION),
    "invalid_event": ErrorRow(400, INVALID),
}


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """The error.

    ``required`` and ``available`` are amounts, present for ``insufficient_credit`` only; ``provider_code`` is the
    payment provider's own code, present for ``provider_rejected`` only.
    """

    message: str
    type: str
    code: str
    param: str | None
    request_id: str
    required: str | msgspec.UnsetType = msgspec.UNSET
    available: str | msgspec.UnsetType = msgspec.UNSET
    provider_code: str | msgspec.UnsetType = msgspec.UNSET


class ErrorResponse(msgspec.Struct, frozen=True):
    """The body of every error response."""

    error: ErrorBody


def row_of(code: str) -> ErrorRow:
    """Return the row of a code. A code without a row is a bug of the code that refused."""
    row = ERROR_TABLE.get(code)
    assert row is not None, f"the error table has no row for {code!r}"
    return row


def error_response(refusal: Refusal, request_id: str) -> tuple[int, bytes, dict[str, str]]:
    """Return the status, body and headers of a refusal."""
    row = row_of(refusal.code)
    body = ErrorBody(
        message=refusal.message,
        type=row.type,
        code=refusal.code,
        param=refusal.param,
        request_id=request_id,
        required=_amount(refusal.required_micro),
        available=_amount(refusal.available_micro),
        provider_code=msgspec.UNSET if refusal.provider_code is None else refusal.provider_code,
    )
    headers = {}
    # The row's time applies to refusals that waiting can resolve; a final one has a time only if it sets its own.
    usual_s = None if refusal.final else row.retry_after_s
    retry_after_s = usual_s if refusal.retry_after_s is None else refusal.retry_after_s
    if retry_after_s is not None:
        headers["Retry-After"] = str(max(1, retry_after_s))
    if refusal.final or row.final:
        headers["X-Should-Retry"] = "false"
    if row.challenge:
        headers["WWW-Authenticate"] = "Bearer"
    return row.status, msgspec.json.encode(ErrorResponse(error=body)), headers


def refusal_of_fault(fault: BaseException) -> Refusal | None:
    """Return the response to an expected fault, None for an unexpected one.

    A group counts as its first member if all its members are expected.
    """
    refusals = [_refusal_of_leaf(leaf) for leaf in leaves_of(fault)]
    return refusals[0] if refusals and all(refusal is not None for refusal in refusals) else None


INTERNAL_ERROR: Final = Refusal(code="internal_error", message="An internal error occurred.")


def refusal_of_http(error: HTTPException, method: str, path: str) -> tuple[Refusal, dict[str, str]]:
    """Return the response to an error of the web framework, and its headers."""
    match error.code:
        case 404:
            return Refusal(code="route_not_found", message=f"The path {shown(path)} does not exist."), {}
        case 405:
            methods = error.valid_methods if isinstance(error, MethodNotAllowed) else None
            allow = {"Allow": ", ".join(sorted({*methods, "OPTIONS"}))} if methods else {}
            message = f"The path {shown(path)} does not support the method {shown(method)}."
            return Refusal(code="method_not_allowed", message=message), allow
        case 408:
            return Refusal(code="request_timeout", message="The body was not received in time."), {}
        case 413:
            return Refusal(code="request_too_large", message="The body is too large."), {}
        case code if code is not None and 400 <= code < 500:
            return Refusal(code="malformed_request", message="The request could not be understood."), {}
        case _:
            return INTERNAL_ERROR, {}


_OF_FAULTS: Final[tuple[tuple[type[DatabaseAway | AskFault], str, str], ...]] = (
    (DatabaseAway, "temporarily_unavailable", "The database is not available; try again later."),
    (Overloaded, "overloaded", "Too many requests are waiting. Nothing was changed; try again later."),
    (
        Quarantined,
        "quarantined",
        "This account or task is out of service after repeated failures. Nothing was changed.",
    ),
    (
        OutcomeUnknown,
        "temporarily_unavailable",
        "No result in time; the request may have taken effect. Repeat it with its Idempotency-Key.",
    ),
    (
        AskFault,
        "temporarily_unavailable",
        "This part of the service is restarting. Nothing was changed; try again later.",
    ),
)
"""The code and message of each expected fault; the first type that fits counts."""


UNREADABLE: Final = Refusal(
    code="record_unreadable",
    message="What is stored of this cannot be read now. Nothing was changed, and no credit is lost. "
    "Try again later; if it lasts, report the request's id.",
)


def _refusal_of_leaf(fault: BaseException) -> Refusal | None:
    if isinstance(fault, UnreadableRow):
        return UNREADABLE
    for kind, code, message in _OF_FAULTS:
        if isinstance(fault, kind):
            return Refusal(code=code, message=message, retry_after_s=math.ceil(fault.retry_after_s))
    return None


def leaves_of(fault: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions of a group, or the one that is no group."""
    if isinstance(fault, BaseExceptionGroup):
        for member in fault.exceptions:
            yield from leaves_of(member)
    else:
        yield fault


def _amount(amount_micro: int | None) -> str | msgspec.UnsetType:
    return msgspec.UNSET if amount_micro is None else format_amount(amount_micro)
