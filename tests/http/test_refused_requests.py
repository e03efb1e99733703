"""Refusals are counted, never logged one by one; refused callbacks are reported with their reason."""

from __future__ import annotations

import pytest
import structlog.testing

from holdfast.http.kit.errors import RefusalResponse, RefusedRequests
from holdfast.telemetry import metrics
from holdfast.telemetry.reports.conditions import Conditions
from holdfast.telemetry.reports.reporter import Reporter


def refused(status: int, code: str) -> RefusalResponse:
    response = RefusalResponse(b"{}", status=status)
    response.code = code
    return response


def test_a_minute_of_refusals_is_one_line() -> None:
    requests = RefusedRequests(Conditions(Reporter(), lambda: 0.0))
    counter = metrics.REFUSALS.labels("402", "insufficient_credit")._value
    before = counter.get()
    with structlog.testing.capture_logs() as lines:
        for _ in range(250):
            requests.count(refused(402, "insufficient_credit"))
        requests.count(refused(404, "task_not_found"))
        requests.log_counts()
        requests.log_counts()
    assert [(line["event"], line["count"], line["codes"]) for line in lines] == [
        ("requests refused", 251, "402 insufficient_credit (250), 404 task_not_found (1)")
    ]
    assert counter.get() == before + 250


@pytest.mark.parametrize("code", ["quarantined", "provider_not_configured"])
def test_a_503_of_one_actor_or_of_a_missing_setting_is_no_outage(code: str) -> None:
    reporter = Reporter()
    requests = RefusedRequests(Conditions(reporter, lambda: 0.0))
    with structlog.testing.capture_logs() as lines:
        requests.count(refused(503, code))
        requests.log_counts()
    assert reporter.recent() == ()
    assert [(line["event"], line["codes"]) for line in lines] == [("requests refused", f"503 {code} (1)")]


def test_requests_answered_503_are_an_outage() -> None:
    reporter = Reporter()
    requests = RefusedRequests(Conditions(reporter, lambda: 0.0))
    for _ in range(250):
        requests.count(refused(503, "temporarily_unavailable"))
    (report,) = reporter.recent()
    assert (report.kind, report.reason) == ("outage", "requests are answered 503: temporarily_unavailable")
