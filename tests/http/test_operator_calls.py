"""Endpoints of operators: authentication, lists, and decisions."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.clients import refused

from holdfast.actors.account.messages import ResolveOrder
from holdfast.actors.task.messages import DecideReview, TaskReply
from holdfast.ledger.orders.facts import OrderFacts, OrderResolution
from holdfast.ledger.orders.order import OrderResult
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.provider_update import Output
from holdfast.ledger.tasks.task import OutputItem, Review, StatusEntry, Task
from holdfast.persistence.records import tables

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.stage import Stage


def heads(stage: Stage) -> dict[str, str]:
    return {"Authorization": f"Bearer {stage.deps.settings.operator_token}"}


async def get(stage: Stage, path: str) -> dict[str, Any]:
    response = await stage.call("GET", path, headers=heads(stage))
    body = response.json()
    assert response.status_code == 200, body
    assert isinstance(body, dict)
    return body


async def post(stage: Stage, path: str, json: Any = None) -> Any:
    given = {} if json is None else {"json": json}
    return await stage.call("POST", path, headers=heads(stage), **given)


def frozen(api: Api, number: int, *, reason: str = "content_flagged", **fields: Any) -> Task:
    """A task in review, ``number`` minutes after noon."""
    at = api.now + timedelta(minutes=number)
    until = at + timedelta(hours=24)
    task = api.task(f"task_{number}", at=at, status="review", wake_at=until, dispatched=True, **fields)
    state = msgspec.structs.replace(
        task.state,
        status_history=(*task.state.status_history, StatusEntry(status="review", ts=at)),
        review=Review(
            case_id=f"rev_{number}",
            reason=reason,  # type: ignore[arg-type]  # one of its words
            decision="capture_blocked",
            deadline_at=at + timedelta(hours=24),
        ),
        hosting=msgspec.structs.replace(
            task.state.hosting,
            wanted=(Output(index=0, url="https://studio.test/0.png", content_type="image/png", bytes=9),),
        ),
    )
    return msgspec.structs.replace(task, state=state)


async def test_customer_routes_refuse_the_operators_token(api: Api) -> None:
    refused(await api.call("GET", "/v2/task/list", headers=heads(api)), 401, "invalid_api_key")
    refused(await api.call("GET", "/v2/control/session", headers=heads(api)), 401, "invalid_session")


async def test_a_token_may_have_any_printable_character(stage: Stage) -> None:
    stage.configure(operator_token="p%ss:w{rd}|\u007e" * 3)
    response = await stage.call("GET", "/ops/api/reviews/NONE", headers=heads(stage))
    refused(response, 404, "review_not_found")


async def test_open_reviews_of_all_accounts_are_listed_oldest_first(api: Api) -> None:
    await api.add_task(frozen(api, 2))
    await api.add_task(frozen(api, 1, account_id=api.other_account_id, reason="hosting_failed"))
    await api.add_task(frozen(api, 3))
    await api.add_task(api.task("task_running", status="processing"))
    decided = frozen(api, 4)
    await api.add_task(msgspec.structs.replace(decided, status="failed", wake_at=None))
    first = await get(api, "/ops/api/reviews?limit=2")
    assert [each["review_case_id"] for each in first["data"]] == ["rev_1", "rev_2"]
    assert first["next_cursor"] is not None
    rest = await get(api, f"/ops/api/reviews?cursor={first['next_cursor']}")
    assert ([each["review_case_id"] for each in rest["data"]], rest["next_cursor"]) == (["rev_3"], None)
    some = await get(api, "/ops/api/reviews?reason=hosting_failed")
    assert [each["account_id"] for each in some["data"]] == [api.other_account_id]
    inside = await get(api, "/ops/api/reviews?from=2026-11-20T12:02:00Z&to=2026-11-20T12:03:00Z")
    assert [each["review_case_id"] for each in inside["data"]] == ["rev_2"]


async def test_an_operator_gets_links_to_stored_results(api: Api) -> None:
    task = frozen(api, 1)
    stored = OutputItem(index=1, asset_id="asset_a", expires_at=api.now + timedelta(days=1))
    await api.add_task(msgspec.structs.replace(task, state=msgspec.structs.replace(task.state, output=(stored,))))
    (shown,) = (await get(api, "/ops/api/reviews/rev_1"))["task"]["output"]
    assert shown["url"].startswith(f"{api.public_url}/v2/assets/asset_a?")


async def test_a_review_has_every_field(api: Api) -> None:
    task = frozen(api, 1)
    await api.add_task(task)
    review = await get(api, "/ops/api/reviews/rev_1")
    task, task_input = review.pop("task"), task.request.input
    assert review == {
        "review_case_id": "rev_1",
        "reason": "content_flagged",
        "decision": "capture_blocked",
        "opened_at": "2026-11-20T12:01:00.000Z",
        "deadline_at": "2026-11-21T12:01:00.000Z",
        "account_id": api.account_id,
        "hold_credits": "0.012",
        "input": task_input,
        "provider_job_id": None,
        "provider_outputs": [
            {"index": 0, "url": "https://studio.test/0.png", "content_type": "image/png", "bytes": 9}
        ],
    }
    assert task == (await api.as_key("GET", "/v2/task/task_1")).json()
    await api.add_task(api.task("task_2"))
    for unknown in ("rev_2", "rev_9", "task_1", "rev_", "rev_'", "rev_" + "a" * 200):
        response = await api.call("GET", f"/ops/api/reviews/{unknown}", headers=heads(api))
        refused(response, 404, "review_not_found")


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("reason=boredom", "invalid_parameter"),
        ("limit=101", "invalid_parameter"),
        ("from=2026-11-20&to=2026-11-20", "invalid_parameter"),
        ("cursor=abc", "invalid_cursor"),
    ],
)
async def test_operator_lists_follow_the_rules_of_lists(api: Api, query: str, code: str) -> None:
    response = await api.call("GET", f"/ops/api/reviews?{query}", headers=heads(api))
    refused(response, 400, code)


@pytest.mark.parametrize(("word", "approve"), [("approve", True), ("reject", False)])
async def test_a_decision_is_a_command_of_the_task(api: Api, word: str, approve: bool) -> None:
    await api.add_task(frozen(api, 1))

    async def decide(key: str, command: object) -> TaskReply:
        await api.write(tables.tasks.update().values(status="failed"))
        return TaskReply(frozen(api, 1))

    api.tasks.answer = decide
    path = f"/ops/api/reviews/rev_1/{word}"
    for given, note in ((None, None), ({}, None), ({"note": "  "}, None), ({"note": "fine"}, "fine")):
        response = await post(api, path, given)
        assert (response.json())["task"]["status"] == "failed"
        assert api.tasks.asked[-1] == ("task_1", DecideReview(approve, note))
    api.tasks.answer = Refusal(code="review_not_open", message="It is failed.", final=True)
    response = await post(api, path)
    refused(response, 409, "review_not_open")
    assert response.headers["X-Should-Retry"] == "false"


async def test_an_invalid_decision_asks_no_actor(api: Api) -> None:
    await api.add_task(frozen(api, 1))
    for body, code in (
        ({"note": "x" * 401}, "invalid_parameter"),
        ({"note": 1}, "invalid_parameter"),
        ([], "invalid_json"),
    ):
        refused(await post(api, "/ops/api/reviews/rev_1/approve", body), 400, code)
    refused(await post(api, "/ops/api/reviews/rev_7/approve"), 404, "review_not_found")
    assert api.tasks.asked == []


async def test_a_held_order_is_listed_and_resolved_by_its_account(api: Api) -> None:
    for number, status in ((1, "held"), (2, "pending"), (3, "held")):
        order = api.order(f"ord_{number}", at=api.now + timedelta(minutes=number))
        await api.add_order(order)
        marked = tables.orders.update().where(tables.orders.c.order_id == f"ord_{number}").values(status=status)
        await api.write(marked)
    first = await get(api, "/ops/api/payments?limit=1")
    rest = await get(api, f"/ops/api/payments?cursor={first['next_cursor']}")
    assert [each["order_id"] for each in (*first["data"], *rest["data"])] == ["ord_1", "ord_3"]
    found = first["data"][0]
    assert (found["account_id"], found["email"]) == (api.account_id, f"{api.account_id}@example.com")
    held = api.order("ord_1")
    facts = OrderFacts(resolution=OrderResolution(decision="credit", amount_micro=9_500_000))
    state = msgspec.structs.replace(held.state, facts=facts)
    api.accounts.answer = OrderResult(msgspec.structs.replace(held, state=state), "applied")
    path = "/ops/api/payments/ord_1/resolve"
    for given, asked in (
        ({"credit": True}, ResolveOrder("ord_1", True)),
        ({"credit": True, "amount": "9.50", "note": "ok"}, ResolveOrder("ord_1", True, 9_500_000, "ok")),
        ({"credit": False, "note": ""}, ResolveOrder("ord_1", False)),
    ):
        response = await post(api, path, {"reason": "agreed", **given})
        assert (response.json())["order_id"] == "ord_1"
        assert api.accounts.asked[-1] == (api.account_id, asked)
    api.accounts.answer = Refusal(code="payment_order_not_payable", message="Not held.")
    refused(await post(api, path, {"credit": True, "reason": "agreed"}), 409, "payment_order_not_payable")


async def test_an_invalid_resolution_asks_no_actor(api: Api) -> None:
    await api.add_order(api.order("ord_1"))
    for body, code in (
        ({}, "missing_parameter"),
        ({"credit": "yes"}, "invalid_parameter"),
        ({"credit": True, "amount": "-1"}, "invalid_amount"),
        ({"credit": True, "amount": "0"}, "invalid_amount"),
        ({"credit": False, "amount": "1.00"}, "invalid_parameter"),
        ({"credit": True, "note": "x" * 401}, "invalid_parameter"),
        ({"credit": True, "reason": " "}, "invalid_parameter"),
        ({"credit": True, "reason": "x" * 401}, "invalid_parameter"),
    ):
        given = {"reason": "agreed", **body}
        refused(await post(api, "/ops/api/payments/ord_1/resolve", given), 400, code)
    response = await post(api, "/ops/api/payments/ord_1/resolve", {"credit": True})
    refused(response, 400, "missing_parameter")
    for unknown in ("ord_2", "x" * 200):
        response = await post(api, f"/ops/api/payments/{unknown}/resolve", {"credit": True, "reason": "agreed"})
        refused(response, 404, "payment_order_not_found")
    assert api.accounts.asked == []
