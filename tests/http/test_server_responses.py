"""The responses of the HTTP server itself, in the application's form, and its faults in the log."""

from __future__ import annotations

import msgspec
import pytest
import structlog

from holdfast.http.kit.errors import row_of
from holdfast.http.kit.responses import SERVER_CODES, server_response
from holdfast.http.server import http1
from holdfast.http.server.http1 import ServerRefusal
from holdfast.telemetry.refused_requests import RefusedRequests
from holdfast.telemetry.reports.conditions import Conditions
from holdfast.telemetry.reports.reporter import Reporter
from holdfast.wiring.http_server import log_fault

ALL = [each for each in vars(http1).values() if isinstance(each, ServerRefusal)]


@pytest.mark.parametrize("refusal", ALL)
async def test_a_response_of_the_server_has_the_one_error_format_and_is_counted(refusal: ServerRefusal) -> None:
    counted = RefusedRequests(Conditions(Reporter()))
    headers, body = server_response(counted, refusal, "203.0.113.7")
    error = msgspec.json.decode(body)["error"]
    assert row_of(error["code"]).status == refusal.status
    assert error["message"] == refusal.message
    sent = dict(headers)
    assert sent[b"content-type"] == b"application/json"
    assert sent[b"x-request-id"].decode() == error["request_id"]
    assert (b"retry-after" in sent) == (refusal.status in {429, 503})
    [record] = counted.recent()
    assert (record.status, record.code, record.request_id) == (refusal.status, error["code"], error["request_id"])
    assert record.origin == "203.0.113.7"


def test_every_code_is_of_a_response() -> None:
    assert {each.status for each in ALL} == set(SERVER_CODES)


def test_a_fault_of_a_connection_is_logged_without_the_clients_data() -> None:
    with structlog.testing.capture_logs() as logs:
        log_fault("a connection failed", ZeroDivisionError("Cookie: hunter2"))
    assert [(line["event"], line["type"]) for line in logs] == [("a connection failed", "ZeroDivisionError")]
    assert "hunter2" not in str(logs)
