"""Following one thing: what belongs together by any id, and rows and lines of all processes in one list."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.clients import refused
from uuid_utils import uuid7

from holdfast.actors.runtime.faults import Unavailable
from holdfast.http.endpoints.operators.following import FollowedEntry
from holdfast.persistence.records import tables
from holdfast.persistence.records.key_rows import ApiKeyRecord
from holdfast.supervision.control.messages import LineList, ListLines
from holdfast.telemetry import logs
from holdfast_console.operators.following import moves_of

from .fake_rows import AwayRows
from .page_reader import PageReader
from .test_control_calls import PROCESS, call, controls_of
from .test_receipt_calls import add, receipt
from .test_time_lines import live

if TYPE_CHECKING:
    from tests.http.api import Api

REFUSED = "b" * 32
LINES = {
    "proc_1": [
        {"event": "task succeeded", "task_id": "task_1", "account_id": "{account}", "provider": "studio"},
        {"event": "request refused", "request_id": f"req_{REFUSED}", "caller": "{account}", "code": "too_many"},
    ],
    "proc_2": [{"event": "request refused", "request_id": "req_2", "key_prefix": "{prefix}", "code": "expired"}],
}


async def stories(api: Api) -> dict[str, str]:
    """Two tasks of two requests, and a paid order; return ids by what they are."""
    await live(api)
    made: dict[str, str] = {}
    for name in ("first", "second"):
        digits = uuid7().hex
        task = api.task("task_" + uuid7().hex)
        request = msgspec.structs.replace(
            task.request, traceparent=f"00-{digits}-{digits[16:]}-00", hold_id=f"hold_{digits}"
        )
        state = msgspec.structs.replace(task.state, provider_ref=f"job-{name}-77")
        await api.add_task(msgspec.structs.replace(task, request=request, state=state))
        made |= {f"{name} request": f"req_{digits}", f"{name} task": task.request_id}
    about = {"account_id": api.account_id, "order_id": "ord_1", "provider": "cardprovider"}
    await api.write(tables.order_payments.insert().values(provider_object_id="pi_3MtwBwLkdIwHu7ix", **about))
    await api.write(tables.orders.update().values(state=state_with_refund(api)))
    return made


def state_with_refund(api: Api) -> Any:
    state: Any = msgspec.to_builtins(api.order("ord_1").state)
    state.setdefault("facts", {})["refunds"] = {
        "re_3MtwBwLkdIwHu7ix": {"status": "succeeded", "seen": ["succeeded"], "amount_micro": 1}
    }
    return state


def answer_lines(api: Api, *, is_away: bool = False) -> list[ListLines]:
    controls = controls_of(api)
    asked: list[ListLines] = []

    def answer(command: Any) -> Any:
        if not isinstance(command, ListLines):
            return PROCESS
        asked.append(command)
        member = controls.asked[-1][0]
        if is_away and member == "proc_2":
            raise Unavailable("the link closed")
        lines = [
            json.dumps(
                {"time": f"2026-11-20T12:00:0{number}.000Z", "level": "info", **fields}, separators=(",", ":")
            )
            .replace("{account}", api.account_id)
            .replace("{prefix}", api.minted.prefix)
            for number, fields in enumerate(LINES[member])
        ]
        found = [each for each in lines if any(text in each for text in command.texts)]
        return LineList(found, "2026-11-20T11:59:00.000Z", is_cut=member == "proc_2")

    controls.answer = answer
    return asked


async def followed(api: Api, sought: str, more: str = "") -> Any:
    response = await call(api, "GET", f"/ops/api/follow?id={sought}{more}")
    assert response.status_code == 200, response.text
    body = response.json()
    times = [each["at"] for each in body["data"]]
    assert times == sorted(times, reverse=True)
    assert len({each["id"] for each in body["data"]}) == len(times)
    return body


async def test_any_id_finds_the_other_request_of_its_account(api: Api, browser: PageReader) -> None:
    made = await stories(api)
    answer_lines(api)
    sought = {
        "a request": made["first request"],
        "its trace": made["first request"][4:],
        "a task": made["first task"],
        "its hold": made["first request"].replace("req_", "hold_"),
        "its job": "job-first-77",
        "a job with our name": f"{made['first task']}.1",
        "an order": "ord_1",
        "a payment": "pi_3MtwBwLkdIwHu7ix",
        "a refund": "re_3MtwBwLkdIwHu7ix",
        "a key": api.minted.prefix,
        "the whole key": api.key,
        "an account": api.account_id,
        "an address": f"{api.account_id}@Example.com",
        "a refused request": f"req_{REFUSED}",
        "an event of the card company": "evt_1",
        "an operation": "op_1",
        "the id of a key": api.key_id,
        "an action": "act_1",
        "a report": "rep_1",
        "a receipt": "R-000001",
    }
    await add(api, receipt(1, account_id=api.account_id))
    for name, each in sought.items():
        if name != "a refused request":  # of which no row is
            assert (await browser.get("/ops/find", q=each)).status_code == 303, name
        body = await followed(api, each)
        assert name != "a job with our name" or made["first task"] in body["own"]
        assert body["account_id"] == api.account_id, name
        assert body["email"] == f"{api.account_id}@example.com", name
        assert api.key not in json.dumps(body), name
        subjects = {entry["subject"] for entry in body["data"] if entry["source"] == "task"}
        assert made["second task"] in subjects, name


async def test_what_belongs_together_is_marked(api: Api) -> None:
    made = await stories(api)
    answer_lines(api)
    body = await followed(api, made["first request"])
    digits = made["first request"][4:]
    assert set(body["own"]) >= {digits, made["first task"], f"hold_{digits}", "job-first-77"}
    marked = {each["subject"]: each["is_own"] for each in body["data"] if each["source"] == "task"}
    assert (marked[made["first task"]], marked[made["second task"]]) == (True, False)
    order = await followed(api, "pi_3MtwBwLkdIwHu7ix")
    assert set(order["own"]) >= {"ord_1", "evt_1", "re_3MtwBwLkdIwHu7ix"}


async def test_a_refused_request_has_who_sent_it_from_any_process(api: Api) -> None:
    answer_lines(api)
    body = await followed(api, f"req_{REFUSED}")
    [line] = [each for each in body["data"] if each["is_own"]]
    assert (line["what"], line["subject"], line["member_id"]) == ("request refused", api.account_id, "proc_1")
    assert "code=too_many" in line["text"]
    by_key = await followed(api, api.minted.prefix)
    assert "proc_2" in {each["member_id"] for each in by_key["data"]}
    assert [each["subject"] for each in by_key["data"] if each["source"] == "cut"] == ["proc_2"]


async def test_what_does_not_answer_is_named(api: Api) -> None:
    answer_lines(api, is_away=True)
    body = await followed(api, api.account_id)
    assert body["unreachable"] == ["proc_2", "proc_3"]
    assert {each["source"] for each in body["data"]} >= {"line", "api_key"}
    api.change(database=AwayRows())
    away = await followed(api, "task_1", "&from=2026-11-20")
    assert away["from_memory"]
    assert [each["what"] for each in away["data"]] == ["task succeeded"]


async def test_it_goes_on_from_a_time(api: Api) -> None:
    made = await stories(api)
    asked = answer_lines(api)
    body = await followed(api, made["first task"], "&from=2099-01-01T00:00:00Z")
    assert [each for each in body["data"] if each["source"] not in ("line", "cut")] == []
    assert (asked[-1].since, asked[-1].until) == ("2099-01-01T00:00:00.000Z", "9")


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("", "missing_parameter"),
        ("?id=abc", "invalid_parameter"),
        ("?id=hk_test_", "invalid_parameter"),  # as every key begins
    ],
)
async def test_an_id_is_needed(api: Api, query: str, code: str) -> None:
    refused(await call(api, "GET", f"/ops/api/follow{query}"), 400, code)


async def test_the_page_shows_what_belongs_together_and_what_happened(api: Api, browser: PageReader) -> None:
    made = await stories(api)
    answer_lines(api)
    page = await browser.read(f"/ops/follow?id={made['first request']}")
    for each in (made["first task"], made["second task"], f"{api.account_id}@example.com", "job-first-77"):
        assert each in page.text
    own = await browser.read(f"/ops/follow?id={made['first request']}&only=own")
    assert made["second task"] not in own.text
    assert "Any id" in (await browser.read("/ops/follow")).text
    await browser.read("/ops/follow?id=x", 200)


def test_the_moves_of_credit_next_to_its_own_are_shown_first() -> None:
    def entry(number: int, what: str = "capture", *, is_own: bool = False) -> FollowedEntry:
        return FollowedEntry(
            at=f"2026-11-22T03:00:{number:02}Z",
            id=str(number),
            source="operation",
            is_own=is_own,
            what=what,
            subject=None,
            text=None,
            amount="1.00",
        )

    entries = [entry(number, is_own=number == 20) for number in range(40)]
    others = [entry(50, "hold"), msgspec.structs.replace(entry(51), source="line", amount=None)]
    assert [each.id for each in moves_of([*others, *entries])] == ["17", "18", "19", "20", "21", "22"]
    assert [each.id for each in moves_of(entries[:2])] == ["0", "1"]
    assert moves_of([]) == []


async def test_a_request_that_changed_something_leads_to_its_account(api: Api) -> None:
    async def create(key: str, command: Any) -> ApiKeyRecord:
        return ApiKeyRecord(key, command.key_id, command.prefix, command.terms, api.now)

    api.accounts.answer = create
    logs._lines.keep(100_000, 3600)
    try:
        made = await api.as_session("POST", "/v2/control/api-keys", json={"name": "phone"})
        request_id = made.headers["X-Request-Id"]
        kept = await logs.find_lines([request_id], since="", until="9", limit=10)
        read = await api.as_session("GET", "/v2/control/api-keys")
        quote = await api.as_key("POST", "/v2/quote", json={"model": "studio/image-1", "input": {"prompt": "a"}})
        unkept = [each.headers["X-Request-Id"] for each in (read, quote)]
        assert (made.status_code, read.status_code, quote.status_code) == (200, 200, 200)
        assert not (await logs.find_lines(unkept, since="", until="9", limit=10)).lines
    finally:
        logs._lines.keep(0, 0)
    controls_of(api).answer = lambda command: (
        LineList(kept.lines, "2026-11-20T11:59:00.000Z", is_cut=False)
        if isinstance(command, ListLines)
        else PROCESS
    )
    body = await followed(api, request_id)
    [line] = [each for each in body["data"] if each["is_own"] and each["member_id"] == "proc_1"]
    assert (body["account_id"], line["what"]) == (api.account_id, "request changed something")
    assert "route=POST /v2/control/api-keys" in line["text"]
