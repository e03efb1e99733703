"""What operators see of other accounts' orders, events and tasks."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tests.clients import refused

from holdfast.persistence.records import tables

from .test_event_calls import plant
from .test_operator_calls import get, heads, post

if TYPE_CHECKING:
    from tests.http.api import Api

ORDERS = "/ops/api/orders"
WEBHOOKS = "/ops/api/webhooks"


async def add_order(api: Api, number: int, **columns: Any) -> None:
    order = api.order(f"ord_{number}", at=api.now + timedelta(minutes=number))
    await api.add_order(order)
    changed = tables.orders.update().where(tables.orders.c.order_id == f"ord_{number}")
    await api.write(changed.values(**columns))


async def listed(api: Api, query: str = "") -> list[str]:
    body = await get(api, f"{ORDERS}{query}")
    assert {each["account_id"] for each in body["data"]} <= {api.account_id}
    return [each["order"]["order_id"] for each in body["data"]]


async def test_orders_that_need_attention_are_listed_oldest_first(api: Api) -> None:
    due = {"status": "credited", "wake_at": api.now}
    await add_order(api, 5, reconcile_status="mismatch", wake_at=None, status="credited")
    await add_order(api, 4, reconcile_status="error", **due)
    await add_order(api, 3, reconcile_status="unreconciled", **due)
    await add_order(api, 2, reconcile_status="reconciled", **due)
    await add_order(api, 1, reconcile_status="unreconciled", status="held", wake_at=None)
    await add_order(api, 0, reconcile_status="unreconciled", status="pending", wake_at=api.now)
    assert await listed(api) == ["ord_3", "ord_4", "ord_5"]
    assert await listed(api, "?trouble=mismatched") == ["ord_5"]
    assert await listed(api, "?trouble=unreconciled") == ["ord_3", "ord_4"]
    assert await listed(api, "?trouble=held") == ["ord_1"]
    first = await get(api, f"{ORDERS}?limit=2")
    assert await listed(api, f"?limit=2&cursor={first['next_cursor']}") == ["ord_5"]
    refused(await api.call("GET", f"{ORDERS}?trouble=much", headers=heads(api)), 400, "invalid_parameter")
    one = await get(api, f"{ORDERS}/ord_4")
    assert (one["account_id"], one["order"]["reconcile_status"]) == (api.account_id, "unreconciled")
    assert one["email"] == f"{api.account_id}@example.com"
    refused(await api.call("GET", f"{ORDERS}/ord_9", headers=heads(api)), 404, "payment_order_not_found")


async def test_unfinished_tasks_of_all_accounts_are_listed(api: Api) -> None:
    states: tuple[dict[str, Any], ...] = (
        {"wake_at": None},
        {"wake_at": api.now},
        {"wake_at": api.now, "provider": "other"},
    )
    for number, fields in enumerate(states):
        await api.add_task(api.task(f"task_{number}", at=api.now + timedelta(minutes=number), **fields))
    found = await get(api, "/ops/api/tasks")
    assert [(each["task"]["request_id"], each["account_id"]) for each in found["data"]] == [
        ("task_1", api.account_id), ("task_2", api.account_id)
    ]  # fmt: skip
    at_other = await get(api, "/ops/api/tasks?provider=other&status=queued")
    assert [each["task"]["request_id"] for each in at_other["data"]] == ["task_2"]
    refused(await api.call("GET", "/ops/api/tasks?status=failed", headers=heads(api)), 400, "invalid_parameter")


async def test_failed_tasks_of_all_accounts_are_listed_newest_first(api: Api) -> None:
    states: tuple[dict[str, Any], ...] = ({}, {}, {"provider": "other"}, {"status": "canceled"})
    for number, fields in enumerate(states):
        ended = {"status": "failed", "wake_at": None, **fields}
        await api.add_task(api.task(f"task_{number}", at=api.now + timedelta(minutes=number), **ended))
    first = await get(api, "/ops/api/failed-tasks?limit=2")
    assert [each["task"]["request_id"] for each in first["data"]] == ["task_2", "task_1"]
    rest = await get(api, f"/ops/api/failed-tasks?limit=2&cursor={first['next_cursor']}")
    assert ([each["task"]["request_id"] for each in rest["data"]], rest["next_cursor"]) == (["task_0"], None)
    at_other = await get(api, "/ops/api/failed-tasks?provider=other")
    assert [each["task"]["request_id"] for each in at_other["data"]] == ["task_2"]


async def test_events_whose_delivery_fails_are_listed_and_retried(api: Api) -> None:
    older, newer = await plant(api, attempts=2)
    outbox = tables.outbox
    await api.write(outbox.update().values(attempts=2))
    await api.write(
        outbox.update().where(outbox.c.event_id == older).values(status="given_up", due_at=None, receiver="wh_1")
    )
    body = await get(api, WEBHOOKS)
    assert [(each["event"]["event_id"], each["event"]["status"]) for each in body["data"]] == [
        (newer, "pending"),
        (older, "given_up"),
    ]
    assert body["data"][0]["account_id"] == api.account_id
    assert [each["number"] for each in body["data"][0]["event"]["attempts"]] == [2, 1]
    given_up = await get(api, f"{WEBHOOKS}?status=given_up&account_id={api.account_id}")
    assert [each["event"]["event_id"] for each in given_up["data"]] == [older]
    assert (await get(api, f"{WEBHOOKS}?account_id={api.other_account_id}"))["data"] == []
    await post(api, f"{WEBHOOKS}/{api.account_id}/{older}/retry", {"reason": "their server is back"})
    events: Any = api.deps.sending.events
    assert events.sent_again == [(api.account_id, older, "wh_1")]
    unknown = await api.call("POST", f"{WEBHOOKS}/{api.account_id}/evt_9/retry", headers=heads(api), json={})
    refused(unknown, 404, "event_not_found")


async def test_failed_events_are_counted_by_host_and_retried_together(api: Api) -> None:
    older, newer = await plant(api, attempts=2)
    outbox = tables.outbox
    await api.write(outbox.update().values(attempts=2, due_at=api.now + timedelta(hours=1)))
    given_up = outbox.update().where(outbox.c.event_id == older)
    await api.write(
        given_up.values(status="given_up", due_at=None, receiver="wh_1", url="HTTPS://Gone.example:443/hooks?key=1")
    )
    [event] = (await get(api, f"{WEBHOOKS}?host=gone.example"))["data"]
    assert event["event"]["event_id"] == older
    summary = await get(api, f"{WEBHOOKS}/summary")
    assert (summary["failing"], summary["given_up"]) == (1, 1)
    [host] = {each["host"] for each in summary["hosts"]} - {"gone.example"}
    assert {(each["accounts"], each["events"]) for each in summary["hosts"]} == {(1, 1)}
    events: Any = api.deps.sending.events
    of_host = await post(api, f"{WEBHOOKS}/hosts/gone.example/retry", {"reason": "their server is back"})
    assert (of_host.json(), events.sent_again) == (
        {"retried": 1, "has_more": False},
        [(api.account_id, older, "wh_1")],
    )
    of_account = await post(api, f"{WEBHOOKS}/{api.account_id}/retry", {})
    assert of_account.json() == {"retried": 2, "has_more": False}
    assert events.sent_again[1:] == [(api.account_id, older, "wh_1"), (api.account_id, newer, api.account_id)]
    # Those that are due are about to be delivered anyway, so a repeated call goes on with the others.
    await api.write(outbox.update().values(status="pending", due_at=api.now - timedelta(seconds=1)))
    for path in (f"hosts/{host}", api.account_id, api.other_account_id, "hosts/elsewhere.example", "acct_'"):
        none = await api.call("POST", f"{WEBHOOKS}/{path}/retry", headers=heads(api), json={})
        refused(none, 404, "event_not_found")


async def test_new_and_delivered_events_are_not_listed(api: Api) -> None:
    await plant(api)
    assert (await get(api, WEBHOOKS))["data"] == []
    await api.write(tables.outbox.update().values(status="delivered", due_at=None, attempts=1))
    assert (await get(api, WEBHOOKS))["data"] == []


async def test_a_task_of_any_account_is_shown(api: Api) -> None:
    await api.add_task(api.task("task_1", account_id=api.other_account_id, at=api.now))
    found = await get(api, "/ops/api/tasks/task_1")
    assert (found["account_id"], found["provider"], found["attempts"]) == (api.other_account_id, "studio", 0)
    assert found["task"]["request_id"] == "task_1"
    refused(await api.call("GET", "/ops/api/tasks/task_2", headers=heads(api)), 404, "task_not_found")
