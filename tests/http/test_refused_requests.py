"""Refusals are counted, never logged one by one; refused callbacks are reported with their reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog.testing

from holdfast import metrics
from holdfast.actors.sign_in.messages import OriginAdmitted
from holdfast.http.kit.refused_requests import RefusalResponse, RefusedRequests
from holdfast.ledger.refusals import Refusal
from holdfast.reports.conditions import Conditions
from holdfast.reports.reporter import Reporter

if TYPE_CHECKING:
    from tests.http.conftest import Api


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
        ("requests refused", 251, "250 402 insufficient_credit, 1 404 task_not_found")
    ]
    assert counter.get() == before + 250


def test_requests_answered_503_are_an_outage() -> None:
    reporter = Reporter()
    requests = RefusedRequests(Conditions(reporter, lambda: 0.0))
    for _ in range(250):
        requests.count(refused(503, "temporarily_unavailable"))
    (report,) = reporter.recent()
    assert (report.kind, report.reason) == ("outage", "requests are answered 503: temporarily_unavailable")


async def test_a_locked_sign_in_is_reported_by_its_account(api: Api) -> None:
    reporter = Reporter()
    api.change(conditions=Conditions(reporter, lambda: 0.0))
    locked = Refusal(code="otp_attempts_exceeded", message="Too many wrong codes were tried from here.")

    async def answer(key: str, _command: object) -> Refusal | OriginAdmitted:
        return locked if key.startswith("email:") else OriginAdmitted()

    api.sign_ins.answer = answer
    await api.add_account("acct_9")
    for email in ("acct_9@example.com", "stranger@example.com", "acct_9@example.com"):
        assert (await api.call("POST", "/v2/control/auth/otp", json={"email": email})).status_code == 429
    found = [(report.kind, report.key, report.account_id) for report in reversed(reporter.recent())]
    assert found == [("lockout", "acct_9", "acct_9"), ("lockout", "addresses without an account", None)]
