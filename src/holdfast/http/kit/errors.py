"""The error table: the response to each refusal and fault.

The body of an error is ``{"error": {message, type, code, param, request_id}}``. :data:`ERROR_TABLE` alone gives a
code its status, type, headers and meaning, also in the API reference; handlers only name codes. Clients branch on
``code``, so a published row keeps its meaning.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

import msgspec
from quart import Response
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from holdfast.actors.runtime.faults import AccountAway, AskFault, OutcomeUnknown, Overloaded, Quarantined
from holdfast.http.kit.values import shown
from holdfast.ledger.public_types import SpendingLimit, Time
from holdfast.ledger.refusals import ACCOUNT_MOVING, Refusal
from holdfast.ledger.values import format_amount, time_or_none
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
    """The response to a code, and in ``when`` what it means.

    ``retry_after_s`` is sent if the refusal has no time of its own.
    ``final`` sends ``X-Should-Retry: false``: common client libraries otherwise repeat every 409.
    ``challenge`` sends ``WWW-Authenticate: Bearer``.
    """

    status: int
    type: str
    when: str
    retry_after_s: int | None = None
    final: bool = False
    challenge: bool = False


ERROR_TABLE: Final[dict[str, ErrorRow]] = {
    # Any endpoint.
    "route_not_found": ErrorRow(404, NOT_FOUND, "the path does not exist"),
    "method_not_allowed": ErrorRow(
        405, INVALID, "the path does not support the method; `Allow` lists those it supports"
    ),
    "malformed_request": ErrorRow(400, INVALID, "the request could not be understood"),
    "request_timeout": ErrorRow(408, INVALID, "the body was not received in time"),
    "invalid_json": ErrorRow(400, INVALID, "the body is not a valid JSON object"),
    "invalid_form": ErrorRow(400, INVALID, "the body is not a valid form"),
    "unsupported_media_type": ErrorRow(
        415, INVALID, "the body is not JSON in UTF-8, or not of another type that the endpoint takes"
    ),
    "headers_too_large": ErrorRow(431, INVALID, "the headers are too many or too large"),
    "request_too_large": ErrorRow(413, INVALID, "the body is too large"),
    "missing_parameter": ErrorRow(400, INVALID, "`param` is required"),
    "invalid_parameter": ErrorRow(400, INVALID, "the value of `param` is not valid"),
    "missing_credentials": ErrorRow(401, AUTHENTICATION, "no credential was sent", challenge=True),
    "invalid_credentials": ErrorRow(
        401, AUTHENTICATION, "the header is not one bearer credential, or not the operators' token", challenge=True
    ),
    "invalid_session": ErrorRow(401, AUTHENTICATION, "the session is unknown or was signed out", challenge=True),
    "session_expired": ErrorRow(401, AUTHENTICATION, "sign in again", challenge=True),
    "invalid_api_key": ErrorRow(401, AUTHENTICATION, "the key is unknown or was revoked", challenge=True),
    "api_key_expired": ErrorRow(401, AUTHENTICATION, "the key has expired", challenge=True),
    "api_key_paused": ErrorRow(401, AUTHENTICATION, "the key is paused by its owner", challenge=True),
    "wrong_credential_type": ErrorRow(
        401,
        AUTHENTICATION,
        "a session where a key belongs, or the reverse; either where the operators' token belongs",
        challenge=True,
    ),
    "insufficient_scope": ErrorRow(403, PERMISSION, "the key does not have the required scope"),
    "exceeds_calling_key": ErrorRow(403, PERMISSION, "an API key was to give another more than it has itself"),
    "not_made_by_key": ErrorRow(403, PERMISSION, "an API key was to change or revoke a key that it has not made"),
    "insufficient_role": ErrorRow(403, PERMISSION, "the account is no operator's, or the operator may only read"),
    "cross_origin_request": ErrorRow(
        403, PERMISSION, "a page of another origin made an operator's or an agent's request"
    ),
    "invalid_csrf_token": ErrorRow(
        403, PERMISSION, "an operator's change by cookie lacks the session's `X-CSRF-Token`"
    ),
    "sign_in_locked": ErrorRow(
        429, RATE_LIMIT, "ten wrong operators' tokens came from this address within 15 minutes", retry_after_s=900
    ),
    "account_disabled": ErrorRow(403, PERMISSION, "the account is disabled"),
    "account_closing": ErrorRow(403, PERMISSION, "the account is to be closed; its owner keeps it by signing in"),
    "account_moving": ErrorRow(
        503, API, "the account is being moved to another database; nothing was changed", retry_after_s=1
    ),
    "rate_limit_exceeded": ErrorRow(
        429,
        RATE_LIMIT,
        "too many requests or connections from one address, or more new tasks than the account's rate",
        retry_after_s=1,
    ),
    "temporarily_unavailable": ErrorRow(
        503,
        API,
        "the database is away, a part restarts, or there was no result in time; it may have taken effect",
        retry_after_s=1,
    ),
    "outcome_unknown": ErrorRow(
        424,
        API,
        "there was no result in time, and the request may have taken effect; repeating it could do so twice",
        final=True,
    ),
    "overloaded": ErrorRow(503, API, "too many requests are waiting; nothing was changed", retry_after_s=1),
    "quarantined": ErrorRow(
        503,
        API,
        "the account or task failed repeatedly, or an operator stopped it; nothing was changed",
        retry_after_s=60,
    ),
    "record_unreadable": ErrorRow(
        503,
        API,
        "what is stored cannot be read now; nothing was changed. If it lasts, report the request's id",
        retry_after_s=60,
    ),
    "internal_error": ErrorRow(500, API, "an internal error"),
    "not_implemented": ErrorRow(501, INVALID, "a transfer coding other than `chunked`"),
    "http_version_not_supported": ErrorRow(505, INVALID, "neither HTTP/1.1 nor HTTP/1.0"),
    # Idempotency.
    "invalid_idempotency_key": ErrorRow(400, IDEMPOTENCY, "the key is empty, too long or not ASCII"),
    "idempotency_key_reused": ErrorRow(422, IDEMPOTENCY, "the key was used for another request"),
    "idempotency_key_in_use": ErrorRow(
        409, IDEMPOTENCY, "the first request with this key is in progress", retry_after_s=1
    ),
    # Sign-in, sessions and keys.
    "invalid_email": ErrorRow(400, INVALID, "the e-mail address is not valid"),
    "otp_rate_limited": ErrorRow(429, RATE_LIMIT, "too many codes were requested", retry_after_s=30),
    "otp_delivery_failed": ErrorRow(503, API, "the mail could not be sent", retry_after_s=30),
    "invalid_otp": ErrorRow(401, AUTHENTICATION, "the code is wrong, used or replaced"),
    "otp_expired": ErrorRow(401, AUTHENTICATION, "the code is too old"),
    "otp_attempts_exceeded": ErrorRow(429, RATE_LIMIT, "too many wrong attempts", retry_after_s=600),
    "api_key_not_found": ErrorRow(404, NOT_FOUND, "the API key does not exist"),
    "api_key_limit_reached": ErrorRow(
        409, CONFLICT, "too many live keys, or too many with the revoked ones", final=True
    ),
    "api_key_revoked": ErrorRow(409, CONFLICT, "a revoked key cannot be changed", final=True),
    "key_group_not_found": ErrorRow(404, NOT_FOUND, "the key group does not exist"),
    "key_group_limit_reached": ErrorRow(409, CONFLICT, "too many key groups", final=True),
    "key_group_in_use": ErrorRow(409, CONFLICT, "a group that live keys are in cannot be deleted"),
    "email_taken": ErrorRow(409, CONFLICT, "another account has the e-mail address", final=True),
    "credit_remains": ErrorRow(409, CONFLICT, "closing the account forfeits credit; confirm it", final=True),
    "account_in_debt": ErrorRow(409, CONFLICT, "an account that owes something cannot be closed"),
    "tasks_not_ended": ErrorRow(409, CONFLICT, "an account with tasks that run cannot be closed"),
    "payment_in_progress": ErrorRow(409, CONFLICT, "an account with an open payment order cannot be closed"),
    "dispute_open": ErrorRow(409, CONFLICT, "an account with a disputed payment cannot be closed"),
    "archive_not_found": ErrorRow(404, NOT_FOUND, "no archive was asked for, or it has expired"),
    "account_not_found": ErrorRow(404, NOT_FOUND, "the account does not exist"),
    # Credit.
    "invalid_amount": ErrorRow(400, INVALID, "not an amount, or out of bounds"),
    "amount_too_small": ErrorRow(400, INVALID, "below the least amount"),
    "amount_too_large": ErrorRow(400, INVALID, "above the largest amount"),
    "lot_limit_reached": ErrorRow(409, CONFLICT, "too many lots of credit of which something is left", final=True),
    "credit_lot_not_found": ErrorRow(404, NOT_FOUND, "the account has no such lot of which something is left"),
    "credit_lot_not_voidable": ErrorRow(
        409, CONFLICT, "the lot was paid for, or tasks hold all that is left of it"
    ),
    "sandbox_disabled": ErrorRow(403, PERMISSION, "the sandbox is disabled"),
    "insufficient_credit": ErrorRow(402, CREDIT, "less is available than must be held"),
    "max_credits_exceeded": ErrorRow(
        402,
        CREDIT,
        "the task can cost more than the request's `max_credits`, or its API key's `max_credits_per_task`",
    ),
    # Limits.
    "key_limit_exceeded": ErrorRow(
        402, CREDIT, "the hold exceeds what is left of the API key's or its group's `limit`"
    ),
    "account_limit_exceeded": ErrorRow(402, CREDIT, "the hold exceeds what is left of the account's `limit`"),
    "limit_above_ceiling": ErrorRow(403, PERMISSION, "the limit is above the ceiling that an operator has set"),
    "model_not_allowed": ErrorRow(403, PERMISSION, "the API key may not use the model"),
    "coupon_not_found": ErrorRow(404, NOT_FOUND, "no coupon has this code or id"),
    "coupon_ended": ErrorRow(409, CONFLICT, "the coupon cannot be redeemed any more", final=True),
    "coupon_used_up": ErrorRow(409, CONFLICT, "the coupon was redeemed as often as it may be", final=True),
    "coupon_already_redeemed": ErrorRow(409, CONFLICT, "the account has redeemed the coupon", final=True),
    "coupon_code_taken": ErrorRow(409, CONFLICT, "another coupon has this code", final=True),
    # Payment orders.
    "card_not_found": ErrorRow(404, NOT_FOUND, "the account has no such saved card"),
    "card_required": ErrorRow(409, CONFLICT, "automatic top-up needs a saved card", final=True),
    "card_limit_reached": ErrorRow(409, CONFLICT, "too many saved cards; remove one first", final=True),
    "payment_order_not_found": ErrorRow(404, NOT_FOUND, "the payment order does not exist"),
    "payment_order_expired": ErrorRow(409, CONFLICT, "the order expired before it was paid", final=True),
    "payment_order_not_payable": ErrorRow(409, CONFLICT, "the order has ended in another way", final=True),
    "payment_order_not_refundable": ErrorRow(
        409, CONFLICT, "no card payment was received for the order, or all of it is refunded", final=True
    ),
    "receipt_not_found": ErrorRow(404, NOT_FOUND, "the account has no receipt with this number"),
    "pdf_not_available": ErrorRow(
        501, API, "the service makes no PDF files; the receipt as JSON has all that is on its page", final=True
    ),
    "provider_event_mismatch": ErrorRow(400, INVALID, "the event or the payment belongs to another order"),
    "stored_input_limit_reached": ErrorRow(
        429,
        RATE_LIMIT,
        "the large inputs of the account's failed tasks take more than is allowed",
        retry_after_s=3600,
    ),
    "too_many_open_orders": ErrorRow(
        429, RATE_LIMIT, "too many orders of the account are unpaid", retry_after_s=60
    ),
    "provider_not_configured": ErrorRow(503, PROVIDER, "no provider, or no secret of one, is configured for this"),
    "provider_not_found": ErrorRow(404, NOT_FOUND, "the catalog has no such provider"),
    "cost_not_accepted": ErrorRow(
        409, CONFLICT, "the provider charges for the job of a check; repeat it with `accept_cost`", final=True
    ),
    "provider_unavailable": ErrorRow(
        502, PROVIDER, "the card provider cannot be reached; the order exists, repeat the request"
    ),
    "provider_timeout": ErrorRow(
        504, PROVIDER, "the card provider did not respond in time; the order exists, repeat the request"
    ),
    "provider_rejected": ErrorRow(
        502, PROVIDER, "the card provider refused the order; `provider_code` says why", final=True
    ),
    "provider_rate_limited": ErrorRow(503, PROVIDER, "the card provider limits the rate of calls", retry_after_s=5),
    # Catalog and quotes.
    "model_not_found": ErrorRow(404, NOT_FOUND, "the model does not exist"),
    "model_not_available": ErrorRow(400, INVALID, "the model is disabled"),
    "model_paused": ErrorRow(
        503,
        PROVIDER,
        "an operator has paused the model or the provider that runs it; `message` says until when, and may say why",
        retry_after_s=60,
    ),
    "model_not_async": ErrorRow(400, INVALID, "the model does not run as a task"),
    "invalid_input": ErrorRow(400, INVALID, "the model's schema refuses the input; `errors` lists where and why"),
    "quote_unavailable": ErrorRow(
        503, API, "the catalog has no price for this value of `param`; another value may have one"
    ),
    "quote_expired": ErrorRow(409, CONFLICT, "the quote has expired; request a new one", final=True),
    "quote_mismatch": ErrorRow(400, INVALID, "the quote is for another model, input or account"),
    # Tasks, lists and assets.
    "task_not_found": ErrorRow(404, NOT_FOUND, "the task does not exist"),
    "task_not_terminal": ErrorRow(409, CONFLICT, "only an ended task can be retried", final=True),
    "task_already_terminal": ErrorRow(409, CONFLICT, "the task has ended and cannot be canceled", final=True),
    "task_input_expired": ErrorRow(
        410, NOT_FOUND, "the task cannot be retried: its input was large and has been deleted"
    ),
    "task_not_ended": ErrorRow(
        425, API, "the task that the request created still runs; ask for it by its id, which `message` names"
    ),
    "task_failed": ErrorRow(502, PROVIDER, "the task failed or was canceled; nothing was charged", final=True),
    "content_policy_violation": ErrorRow(
        400, INVALID, "the provider refuses the content; nothing was charged", final=True
    ),
    "event_not_found": ErrorRow(404, NOT_FOUND, "the task or the webhook has no such event"),
    "webhook_not_found": ErrorRow(404, NOT_FOUND, "the webhook does not exist"),
    "webhook_limit_reached": ErrorRow(409, CONFLICT, "the account's webhooks are too many", final=True),
    "webhook_disabled": ErrorRow(409, CONFLICT, "the webhook is disabled", final=True),
    "review_not_found": ErrorRow(404, NOT_FOUND, "the review does not exist"),
    "review_not_open": ErrorRow(409, CONFLICT, "the task is not in review, or was decided otherwise"),
    "concurrency_limit_exceeded": ErrorRow(
        429, RATE_LIMIT, "too many tasks of the account are running", retry_after_s=5
    ),
    "invalid_cursor": ErrorRow(
        400, INVALID, "the cursor belongs to another list, another account or other filters"
    ),
    "asset_expired": ErrorRow(410, NOT_FOUND, "the link, or the result or file it leads to, has expired"),
    "invalid_link": ErrorRow(403, PERMISSION, "the link was altered"),
    "file_not_found": ErrorRow(404, NOT_FOUND, "the file does not exist, was deleted or has expired"),
    "file_limit_reached": ErrorRow(
        409, CONFLICT, "the account's files are too many, or too large together", final=True
    ),
    "storage_full": ErrorRow(507, API, "there is no room to store the file; nothing was stored", retry_after_s=60),
    "range_not_satisfiable": ErrorRow(416, INVALID, "the range is outside the file"),
    # Operators.
    "actor_not_found": ErrorRow(404, NOT_FOUND, "no actor is known by this key"),
    "actor_not_active": ErrorRow(409, CONFLICT, "the actor has no incarnation to end"),
    "actor_not_quarantined": ErrorRow(409, CONFLICT, "the actor is not quarantined"),
    "development_only": ErrorRow(
        403, PERMISSION, "an operator crashes an actor on purpose, and this is production"
    ),
    "group_not_found": ErrorRow(404, NOT_FOUND, "there is no such group of actors"),
    "child_not_found": ErrorRow(404, NOT_FOUND, "the process's tree has no such child"),
    "child_not_stoppable": ErrorRow(
        409, CONFLICT, "the child answers operators, and ends with its process", final=True
    ),
    "child_running": ErrorRow(409, CONFLICT, "the child is running, or about to start"),
    "member_not_found": ErrorRow(404, NOT_FOUND, "there is no such process"),
    "poison_not_found": ErrorRow(404, NOT_FOUND, "there is no such poison message"),
    "poison_not_open": ErrorRow(409, CONFLICT, "the message was replayed or discarded, or is being replayed"),
    "poison_not_replayable": ErrorRow(
        409, CONFLICT, "the content of the message is not stored, or its `Idempotency-Key` has expired", final=True
    ),
    "bulk_action_not_found": ErrorRow(404, NOT_FOUND, "there is no such bulk action"),
    "bulk_action_not_stopped": ErrorRow(409, CONFLICT, "the bulk action runs, has ended, or was continued"),
    # Signed notifications.
    "missing_signature": ErrorRow(401, AUTHENTICATION, "no signature was sent"),
    "invalid_signature": ErrorRow(401, AUTHENTICATION, "the signature does not match"),
    "signature_expired": ErrorRow(401, AUTHENTICATION, "the signature's time is outside the tolerance"),
    "invalid_event": ErrorRow(400, INVALID, "the body is not an event"),
}


ErrorType: TypeAlias = Annotated[
    str, msgspec.Meta(extra_json_schema={"enum": sorted({row.type for row in ERROR_TABLE.values()})})
]
ErrorCode: TypeAlias = Annotated[str, msgspec.Meta(extra_json_schema={"enum": sorted(ERROR_TABLE)})]


class ErrorDetail(msgspec.Struct, frozen=True):
    """One of several errors."""

    param: str | None
    """The field that is wrong; null if it is none alone."""
    message: str
    """What is wrong with it, for people; it may change."""


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """The error."""

    message: str
    """What is wrong, for people; it may change."""
    type: ErrorType
    """The class of the error."""
    code: ErrorCode
    """What is wrong, for programs; codes may be added."""
    param: str | None
    """The field, parameter or header that is wrong; null if it is none of them."""
    request_id: str
    """The request's id, also in the header `X-Request-Id`."""
    required: str | msgspec.UnsetType = msgspec.UNSET
    """The credit that must be held, a decimal string; present for `insufficient_credit` and `max_credits_exceeded`,
    and with `limit`.
    """
    available: str | msgspec.UnsetType = msgspec.UNSET
    """The credit that is available; present for `insufficient_credit`, `credit_remains` and `account_in_debt` only.
    A decimal string.
    """
    limit: SpendingLimit | msgspec.UnsetType = msgspec.UNSET
    """The limit that would be exceeded; present for `key_limit_exceeded` and `account_limit_exceeded` only."""
    limit_models: list[str] | msgspec.UnsetType = msgspec.UNSET
    """The models that `limit` is for; present with `limit` only, unless it is for every model."""
    limit_group_id: str | msgspec.UnsetType = msgspec.UNSET
    """The key group whose limit it is, `grp_…`; present with `limit` only, if it is a group's."""
    spent: str | msgspec.UnsetType = msgspec.UNSET
    """What is captured and held in the limit's window; present with `limit` only. A decimal string."""
    resets_at: Time | msgspec.UnsetType | None = msgspec.UNSET
    """When the limit's window ends, null for `total`; present with `limit` only."""
    provider_code: str | msgspec.UnsetType = msgspec.UNSET
    """The payment provider's own code; present for `provider_rejected` only."""
    errors: list[ErrorDetail] | msgspec.UnsetType = msgspec.UNSET
    """Everything that is wrong with the input, at most ten errors; present if the model's schema refuses it."""


class ErrorResponse(msgspec.Struct, frozen=True):
    """The body of every error response."""

    error: ErrorBody
    """The error."""


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
        errors=[ErrorDetail(each.param, f"{each.clause}.") for each in refusal.violations] or msgspec.UNSET,
    )
    if (limit := refusal.limit) is not None:
        body = msgspec.structs.replace(
            body,
            limit=SpendingLimit(format_amount(limit.credits_micro), limit.window),
            limit_models=list(limit.models) or msgspec.UNSET,
            limit_group_id=limit.group_id or msgspec.UNSET,
            spent=format_amount(limit.spent_micro),
            resets_at=time_or_none(limit.resets_at),
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
    (AccountAway, ACCOUNT_MOVING.code, ACCOUNT_MOVING.message),
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


class RefusalResponse(Response):
    """A response with an error of this code; ``is_of_share`` if only the caller's own share is exceeded."""

    code = ""
    is_of_share = False
