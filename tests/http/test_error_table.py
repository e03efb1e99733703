"""The error table, row by row: status, type and headers that clients rely on."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from holdfast.http.kit.errors import ERROR_TABLE, error_response
from holdfast.ledger.public_types import LimitWindow
from holdfast.ledger.refusals import ExceededLimit, Refusal, Violation, invalid_input

EXPECTED = {
    "route_not_found": (404, "not_found_error"),
    "method_not_allowed": (405, "invalid_request_error"),
    "malformed_request": (400, "invalid_request_error"),
    "request_timeout": (408, "invalid_request_error"),
    "invalid_json": (400, "invalid_request_error"),
    "invalid_form": (400, "invalid_request_error"),
    "unsupported_media_type": (415, "invalid_request_error"),
    "headers_too_large": (431, "invalid_request_error"),
    "request_too_large": (413, "invalid_request_error"),
    "missing_parameter": (400, "invalid_request_error"),
    "invalid_parameter": (400, "invalid_request_error"),
    "missing_credentials": (401, "authentication_error"),
    "invalid_credentials": (401, "authentication_error"),
    "invalid_session": (401, "authentication_error"),
    "session_expired": (401, "authentication_error"),
    "invalid_api_key": (401, "authentication_error"),
    "wrong_credential_type": (401, "authentication_error"),
    "api_key_expired": (401, "authentication_error"),
    "api_key_paused": (401, "authentication_error"),
    "insufficient_scope": (403, "permission_error"),
    "exceeds_calling_key": (403, "permission_error"),
    "not_made_by_key": (403, "permission_error"),
    "account_disabled": (403, "permission_error"),
    "account_closing": (403, "permission_error"),
    "account_moving": (503, "api_error"),
    "email_taken": (409, "conflict_error"),
    "credit_remains": (409, "conflict_error"),
    "account_in_debt": (409, "conflict_error"),
    "tasks_not_ended": (409, "conflict_error"),
    "payment_in_progress": (409, "conflict_error"),
    "dispute_open": (409, "conflict_error"),
    "archive_not_found": (404, "not_found_error"),
    "insufficient_role": (403, "permission_error"),
    "cross_origin_request": (403, "permission_error"),
    "invalid_csrf_token": (403, "permission_error"),
    "sign_in_locked": (429, "rate_limit_error"),
    "rate_limit_exceeded": (429, "rate_limit_error"),
    "temporarily_unavailable": (503, "api_error"),
    "outcome_unknown": (424, "api_error"),
    "overloaded": (503, "api_error"),
    "quarantined": (503, "api_error"),
    "record_unreadable": (503, "api_error"),
    "actor_not_found": (404, "not_found_error"),
    "actor_not_active": (409, "conflict_error"),
    "development_only": (403, "permission_error"),
    "actor_not_quarantined": (409, "conflict_error"),
    "group_not_found": (404, "not_found_error"),
    "child_not_found": (404, "not_found_error"),
    "child_not_stoppable": (409, "conflict_error"),
    "child_running": (409, "conflict_error"),
    "member_not_found": (404, "not_found_error"),
    "poison_not_found": (404, "not_found_error"),
    "bulk_action_not_found": (404, "not_found_error"),
    "bulk_action_not_stopped": (409, "conflict_error"),
    "poison_not_open": (409, "conflict_error"),
    "poison_not_replayable": (409, "conflict_error"),
    "internal_error": (500, "api_error"),
    "not_implemented": (501, "invalid_request_error"),
    "http_version_not_supported": (505, "invalid_request_error"),
    "invalid_idempotency_key": (400, "idempotency_error"),
    "idempotency_key_reused": (422, "idempotency_error"),
    "idempotency_key_in_use": (409, "idempotency_error"),
    "invalid_email": (400, "invalid_request_error"),
    "otp_rate_limited": (429, "rate_limit_error"),
    "otp_delivery_failed": (503, "api_error"),
    "invalid_otp": (401, "authentication_error"),
    "otp_expired": (401, "authentication_error"),
    "otp_attempts_exceeded": (429, "rate_limit_error"),
    "account_not_found": (404, "not_found_error"),
    "api_key_not_found": (404, "not_found_error"),
    "api_key_limit_reached": (409, "conflict_error"),
    "key_group_not_found": (404, "not_found_error"),
    "key_group_limit_reached": (409, "conflict_error"),
    "key_group_in_use": (409, "conflict_error"),
    "api_key_revoked": (409, "conflict_error"),
    "invalid_amount": (400, "invalid_request_error"),
    "amount_too_small": (400, "invalid_request_error"),
    "amount_too_large": (400, "invalid_request_error"),
    "lot_limit_reached": (409, "conflict_error"),
    "credit_lot_not_found": (404, "not_found_error"),
    "credit_lot_not_voidable": (409, "conflict_error"),
    "sandbox_disabled": (403, "permission_error"),
    "insufficient_credit": (402, "insufficient_credit_error"),
    "max_credits_exceeded": (402, "insufficient_credit_error"),
    "key_limit_exceeded": (402, "insufficient_credit_error"),
    "account_limit_exceeded": (402, "insufficient_credit_error"),
    "limit_above_ceiling": (403, "permission_error"),
    "model_not_allowed": (403, "permission_error"),
    "card_not_found": (404, "not_found_error"),
    "coupon_not_found": (404, "not_found_error"),
    "coupon_ended": (409, "conflict_error"),
    "coupon_used_up": (409, "conflict_error"),
    "coupon_already_redeemed": (409, "conflict_error"),
    "coupon_code_taken": (409, "conflict_error"),
    "card_required": (409, "conflict_error"),
    "card_limit_reached": (409, "conflict_error"),
    "payment_order_not_found": (404, "not_found_error"),
    "payment_order_expired": (409, "conflict_error"),
    "payment_order_not_refundable": (409, "conflict_error"),
    "payment_order_not_payable": (409, "conflict_error"),
    "receipt_not_found": (404, "not_found_error"),
    "pdf_not_available": (501, "api_error"),
    "provider_event_mismatch": (400, "invalid_request_error"),
    "stored_input_limit_reached": (429, "rate_limit_error"),
    "too_many_open_orders": (429, "rate_limit_error"),
    "provider_unavailable": (502, "provider_error"),
    "provider_timeout": (504, "provider_error"),
    "provider_rejected": (502, "provider_error"),
    "provider_rate_limited": (503, "provider_error"),
    "model_not_found": (404, "not_found_error"),
    "model_not_available": (400, "invalid_request_error"),
    "model_paused": (503, "provider_error"),
    "model_not_async": (400, "invalid_request_error"),
    "invalid_input": (400, "invalid_request_error"),
    "quote_unavailable": (503, "api_error"),
    "quote_expired": (409, "conflict_error"),
    "quote_mismatch": (400, "invalid_request_error"),
    "task_not_found": (404, "not_found_error"),
    "task_not_ended": (425, "api_error"),
    "task_failed": (502, "provider_error"),
    "content_policy_violation": (400, "invalid_request_error"),
    "event_not_found": (404, "not_found_error"),
    "webhook_not_found": (404, "not_found_error"),
    "webhook_limit_reached": (409, "conflict_error"),
    "webhook_disabled": (409, "conflict_error"),
    "task_not_terminal": (409, "conflict_error"),
    "task_already_terminal": (409, "conflict_error"),
    "task_input_expired": (410, "not_found_error"),
    "review_not_found": (404, "not_found_error"),
    "review_not_open": (409, "conflict_error"),
    "concurrency_limit_exceeded": (429, "rate_limit_error"),
    "invalid_cursor": (400, "invalid_request_error"),
    "asset_expired": (410, "not_found_error"),
    "invalid_link": (403, "permission_error"),
    "file_not_found": (404, "not_found_error"),
    "file_limit_reached": (409, "conflict_error"),
    "storage_full": (507, "api_error"),
    "range_not_satisfiable": (416, "invalid_request_error"),
    "missing_signature": (401, "authentication_error"),
    "invalid_signature": (401, "authentication_error"),
    "signature_expired": (401, "authentication_error"),
    "invalid_event": (400, "invalid_request_error"),
    "provider_not_configured": (503, "provider_error"),
    "provider_not_found": (404, "not_found_error"),
    "cost_not_accepted": (409, "conflict_error"),
}
BEARER = {
    "missing_credentials", "invalid_credentials", "invalid_session", "session_expired", "invalid_api_key",
    "wrong_credential_type", "api_key_expired", "api_key_paused",
}  # fmt: skip
NO_RETRY_TIME = {"provider_not_configured", "quote_unavailable"}
"""Codes that only a change of the configuration ends."""
FINAL = {
    "email_taken",
    "credit_remains",
    "outcome_unknown",
    "task_failed",
    "content_policy_violation",
    "task_not_terminal", "task_already_terminal", "quote_expired", "api_key_limit_reached",
    "key_group_limit_reached", "payment_order_expired",
    "api_key_revoked",
    "payment_order_not_payable", "payment_order_not_refundable", "provider_rejected", "child_not_stoppable",
    "poison_not_replayable", "cost_not_accepted", "file_limit_reached",
    "webhook_limit_reached", "webhook_disabled", "card_required", "coupon_ended", "coupon_used_up",
    "coupon_already_redeemed", "coupon_code_taken", "card_limit_reached", "lot_limit_reached",
    "pdf_not_available",
}  # fmt: skip


def test_the_table_has_exactly_these_codes() -> None:
    assert set(ERROR_TABLE) == set(EXPECTED)


@pytest.mark.parametrize("code", sorted(EXPECTED))
def test_each_row(code: str) -> None:
    status, body, headers = error_response(Refusal(code=code, message="No.", param="field"), "req_1")
    error = msgspec.json.decode(body)["error"]
    assert (status, error["type"]) == EXPECTED[code]
    assert error == {
        "message": "No.", "type": EXPECTED[code][1], "code": code, "param": "field", "request_id": "req_1"
    }  # fmt: skip
    waiting_helps = status in {429, 503, 507} or code == "idempotency_key_in_use"
    assert ("Retry-After" in headers) == (waiting_helps and code not in NO_RETRY_TIME)
    assert (headers.get("X-Should-Retry") == "false") == (code in FINAL)
    assert (headers.get("WWW-Authenticate") == "Bearer") == (code in BEARER)


def test_an_invalid_input_has_all_its_errors() -> None:
    refusal = invalid_input(
        [Violation(("input", "n"), "must be at most 4"), Violation((), "has none of the allowed forms")]
    )
    _, body, _ = error_response(refusal, "req_1")
    error = msgspec.json.decode(body)["error"]
    assert error["message"] == "input.n must be at most 4; The input has none of the allowed forms."
    assert (error["param"], error["errors"]) == (
        "input.n",
        [
            {"param": "input.n", "message": "input.n must be at most 4."},
            {"param": None, "message": "The input has none of the allowed forms."},
        ],
    )


def test_each_404_has_the_same_type() -> None:
    assert {row.type for row in ERROR_TABLE.values() if row.status == 404} == {"not_found_error"}


def test_insufficient_credit_has_both_amounts() -> None:
    refusal = Refusal(
        code="insufficient_credit", message="Too little.", required_micro=240_000, available_micro=-1_500_000
    )
    status, body, _ = error_response(refusal, "req_1")
    error = msgspec.json.decode(body)["error"]
    assert (status, error["required"], error["available"]) == (402, "0.24", "-1.50")


@pytest.mark.parametrize(
    ("window", "resets_at", "shown"),
    [("day", datetime(2026, 11, 21, tzinfo=UTC), "2026-11-21T00:00:00.000Z"), ("total", None, None)],
)
def test_an_exceeded_limit_says_what_it_is_and_when_it_resets(
    window: LimitWindow, resets_at: datetime | None, shown: str | None
) -> None:
    limit = ExceededLimit(credits_micro=5_000_000, window=window, spent_micro=4_980_000, resets_at=resets_at)
    refusal = Refusal(code="key_limit_exceeded", message="Too much.", required_micro=40_000, limit=limit)
    status, body, _ = error_response(refusal, "req_1")
    error = msgspec.json.decode(body)["error"]
    assert status == 402
    assert {name: error[name] for name in ("required", "limit", "spent", "resets_at")} == {
        "required": "0.04",
        "limit": {"credits": "5.00", "window": window},
        "spent": "4.98",
        "resets_at": shown,
    }
    assert "available" not in error


def test_a_provider_refusal_has_the_providers_code_only() -> None:
    _, body, _ = error_response(
        Refusal(code="provider_rejected", message="No.", provider_code="amount_odd"), "req_1"
    )
    assert msgspec.json.decode(body)["error"]["provider_code"] == "amount_odd"


def test_a_refusal_may_have_its_own_retry_time_and_finality() -> None:
    _, _, headers = error_response(
        Refusal(code="otp_rate_limited", message="Wait.", retry_after_s=1200, final=True), "req_1"
    )
    assert (headers["Retry-After"], headers["X-Should-Retry"]) == ("1200", "false")
