"""Refused requests: a line for each caller and code, their counts, and who is found by what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import structlog.testing

from holdfast.actors.runtime.faults import AskFault, Overloaded, ShareExceeded
from holdfast.http.kit.credentials import mint_api_key
from holdfast.http.kit.fair_shares import FairShares
from holdfast.persistence.records import tables
from holdfast.supervision.control.messages import ListRefusedRequests, MemberView, RefusedRequestList
from holdfast.telemetry import metrics
from holdfast.telemetry.refused_requests import (
    CALLERS_MAX,
    KEYS_MAX,
    LINES_MAX,
    PERIODS,
    RING_RECORDS,
    RefusedCaller,
    RefusedRequest,
    RefusedRequests,
)
from holdfast.telemetry.reports.conditions import OTHERS, Conditions
from holdfast.telemetry.reports.reporter import Reporter

from .page_reader import PageReader, answer_controls
from .test_control_calls import PROCESS

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.stage import Stage


def of(caller: str, status: int = 402, code: str = "insufficient_credit", number: int = 0) -> dict[str, Any]:
    about = {"status": status, "code": code, "route": "POST /v2/task/create", "request_id": f"req_{number:032x}"}
    return {**about, "caller": caller, "origin": "192.0.2.1"}


def new_requests(reporter: Reporter | None = None) -> RefusedRequests:
    return RefusedRequests(Conditions(reporter or Reporter(), lambda: 0.0))


def kept(caller: str, status: int = 402, code: str = "insufficient_credit", number: int = 0) -> RefusedRequest:
    requests = new_requests()
    requests.count(**of(caller, status, code, number))
    return next(iter(requests.recent()))


def test_the_first_of_a_caller_and_code_has_a_line_and_the_others_are_one() -> None:
    requests = new_requests()
    counter = metrics.REFUSALS.labels("402", "insufficient_credit")._value
    before = counter.get()
    with structlog.testing.capture_logs() as lines:
        for number in range(250):
            requests.count(**of("acct_1", number=number))
        requests.count(**of("acct_1", 404, "task_not_found"))
        requests.count(**of("192.0.2.1"))
        requests.count(**of("192.0.2.1"))
        requests.end_period()
        requests.end_period()
        requests.count(**of("acct_1", number=9))
    alone = [(line["caller"], line["code"], line["request_id"][-1]) for line in lines if "caller" in line]
    assert alone == [
        ("acct_1", "insufficient_credit", "0"),
        ("acct_1", "task_not_found", "0"),
        ("192.0.2.1", "insufficient_credit", "0"),
        ("acct_1", "insufficient_credit", "9"),
    ]
    [summed] = [line for line in lines if line["event"] == "requests refused"]
    assert (summed["count"], summed["codes"], summed["callers"]) == (
        250,
        "402 insufficient_credit (250)",
        "acct_1 (249), 192.0.2.1 (1)",
    )
    assert counter.get() == before + 253


def test_what_is_kept_is_bounded_and_no_count_is_lost() -> None:
    requests = new_requests()
    many = CALLERS_MAX + RING_RECORDS
    with structlog.testing.capture_logs() as lines:
        for number in range(many):
            requests.count(**of(f"192.0.2.{number}", number=number))
        assert len(lines) == LINES_MAX
        requests.end_period()
    assert lines[-1]["count"] == many - LINES_MAX
    assert next(iter(requests.recent())).request_id.endswith(f"{many - 1:x}")
    assert len([*requests.recent()]) == RING_RECORDS
    assert requests.callers()[0] == RefusedCaller(OTHERS, RING_RECORDS, {"insufficient_credit": RING_RECORDS})


def test_many_wrong_keys_hide_neither_accounts_nor_their_origin() -> None:
    requests = new_requests()
    for number in range(2 * CALLERS_MAX):
        key = f"hk_live_{number:04}"
        requests.count(**{**of(key, 401, "invalid_api_key"), "caller": None, "key_prefix": key})
    requests.count(**of("acct_1"))
    requests.count(**of("acct_1"))
    assert requests.callers()[:2] == [
        RefusedCaller("192.0.2.1", 2 * CALLERS_MAX - KEYS_MAX, {"invalid_api_key": 2 * CALLERS_MAX - KEYS_MAX}),
        RefusedCaller("acct_1", 2, {"insufficient_credit": 2}),
    ]


def test_callers_are_counted_for_ten_minutes() -> None:
    requests = new_requests()
    for _ in range(3):
        requests.count(**of("acct_1"))
        requests.count(**of("acct_1", 401, "invalid_api_key"))
        requests.end_period()
    requests.count(**of("acct_2"))
    assert requests.callers() == [
        RefusedCaller("acct_1", 6, {"insufficient_credit": 3, "invalid_api_key": 3}),
        RefusedCaller("acct_2", 1, {"insufficient_credit": 1}),
    ]
    for _ in range(PERIODS):
        requests.end_period()
    assert requests.callers() == []


@pytest.mark.parametrize("code", ["quarantined", "provider_not_configured"])
def test_a_503_of_one_actor_or_of_a_missing_setting_is_no_outage(code: str) -> None:
    reporter = Reporter()
    new_requests(reporter).count(**of("acct_1", 503, code))
    assert reporter.recent() == ()


@pytest.mark.parametrize("path", ["/v2/task/task_1", "/replicate/v1/predictions/abc"])
async def test_a_503_for_a_callers_own_share_is_no_outage(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    faults: list[AskFault] = [ShareExceeded("full"), Overloaded("full")]

    async def run(*_args: object) -> None:
        raise faults[0]

    monkeypatch.setattr(FairShares, "run", run)
    reporter = Reporter()
    stage.change(refused=new_requests(reporter))
    assert (await stage.as_key("GET", path)).status_code == 503
    assert (await newest(stage)).code == "overloaded"
    assert reporter.recent() == ()
    faults.pop(0)
    assert (await stage.as_key("GET", path)).status_code == 503
    (report,) = reporter.recent()
    assert (report.kind, report.reason) == ("outage", "requests are answered 503: overloaded")


def test_requests_answered_503_are_an_outage() -> None:
    reporter = Reporter()
    requests = new_requests(reporter)
    for _ in range(250):
        requests.count(**of("acct_1", 503, "temporarily_unavailable"))
    (report,) = reporter.recent()
    assert (report.kind, report.reason) == ("outage", "requests are answered 503: temporarily_unavailable")


async def newest(stage: Stage) -> RefusedRequest:
    return next(iter(stage.deps.operating.refused.recent()))


async def test_a_refused_request_names_its_caller_as_far_as_it_is_known(api: Api) -> None:
    async def sent(**headers: str) -> tuple[str, str | None, str]:
        with structlog.testing.capture_logs() as lines:
            response = await api.call("POST", "/v2/task/create", json={}, headers=headers)
        found = await newest(api)
        assert (found.request_id, found.status) == (response.headers["X-Request-Id"], response.status_code)
        assert found.route == "POST /v2/task/create"
        [line] = [each for each in lines if each["event"] == "request refused"]
        assert (line["request_id"], line["caller"]) == (found.request_id, found.caller)
        return found.caller, found.key_prefix, found.code

    # The origin of requests in this process has no address that they could be alone apart by.
    origin = (await sent())[0]
    unknown = mint_api_key("acct_9", live=False)
    assert await sent(Authorization=f"Bearer {unknown.secret}") == (
        unknown.prefix,
        unknown.prefix,
        "invalid_api_key",
    )
    assert await sent(Authorization="Bearer hk_test_mistyped") == (origin, None, "invalid_api_key")
    caller, prefix, code = await sent(Authorization=f"Bearer {api.key}")
    assert (caller, prefix) == (api.account_id, api.minted.prefix)
    assert code != "invalid_api_key"


async def test_a_revoked_key_is_its_accounts(api: Api) -> None:
    await api.write(tables.api_keys.update().values(revoked_at=api.now))
    await api.call("GET", "/v2/task/list", headers={"Authorization": f"Bearer {api.key}"})
    found = await newest(api)
    assert (found.caller, found.key_prefix, found.code) == (
        api.account_id,
        api.minted.prefix,
        "invalid_api_key",
    )


async def test_operators_see_refused_requests_of_all_processes_and_who_sent_most(
    api: Api, browser: PageReader
) -> None:
    controls = answer_controls(api)
    controls.others = (MemberView(member_id="proc_2", is_this=False, state="ready", unreachable_for_s=None),)
    answers = [
        RefusedRequestList([kept("acct_1", number=1)], [RefusedCaller("acct_1", 2, {"insufficient_credit": 2})]),
        RefusedRequestList(
            [kept("<b>", 401, "invalid_api_key", number=2)],
            [
                RefusedCaller("<b>", 3, {"not_found": 1, "invalid_api_key": 2}),
                RefusedCaller("acct_1", 2, {"task_not_found": 2}),
            ],
        ),
    ]
    asked: list[ListRefusedRequests] = []

    def answer(command: object) -> object:
        if not isinstance(command, ListRefusedRequests):
            return PROCESS
        asked.append(command)
        return answers[len(asked) % 2]

    controls.answer = answer
    found = (await browser.get("/ops/api/refused-requests", about="acct_1")).json()
    assert {each.sought for each in asked} == {"acct_1"}
    assert [each["request_id"][-1] for each in found["data"]] == ["2", "1"]
    assert found["callers"] == [
        {"caller": "acct_1", "requests": 4, "codes": {"task_not_found": 2, "insufficient_credit": 2}},
        {"caller": "<b>", "requests": 3, "codes": {"not_found": 1, "invalid_api_key": 2}},
    ]
    page = await browser.read("/ops/refused-requests")
    assert "/ops/accounts/acct_1" in page.links
    assert f"/ops/follow?id={found['data'][0]['request_id']}" in page.links
    assert "<b>" in page.text
    assert "invalid_api_key (2), not_found (1)" in page.text


def test_a_refused_request_is_found_by_each_of_its_names() -> None:
    each = kept("acct_1", number=1)
    assert all(each.is_about(name) for name in ("acct_1", each.request_id, each.trace_id, "192.0.2.1"))
    assert not any(each.is_about(name) for name in ("acct_2", "", "req_"))
