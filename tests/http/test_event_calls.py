"""Endpoints of events: the list, redelivery, the secret, and the payload."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from sqlalchemy import text
from tests.clients import ok, refused

from holdfast.actors.account.messages import CreateTask, TaskAccepted
from holdfast.http.kit.sending import SendRate
from holdfast.ledger.tasks.events import CHOSEN_BY_DEFAULT
from holdfast.ledger.tasks.public import event_payload
from holdfast.ledger.tasks.task import HostingState, OutputItem, Progress, Task
from holdfast.persistence.claims.outbox import DueEvent
from holdfast.persistence.records import tables
from holdfast.persistence.records.resulting_rows import new_event_rows

from .identities import NOW

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.stage import Stage

TASK = "task_" + "1" * 32
EVENTS = f"/v2/task/{TASK}/events"
SECRET = "/v2/control/webhook-secret"
WEBHOOKS, ALERTS = "/v2/control/webhooks", "/v2/control/alerts"
CREATE = "/v2/task/create"
URL = "https://example.com/hook"
POSTER: dict[str, Any] = {"model": "studio/image-1", "input": {"prompt": "a lighthouse"}, "webhook_url": URL}


def ended(stage: Stage) -> Task:
    """A task that has succeeded, with a webhook."""
    task = stage.task()
    asset = OutputItem(index=0, asset_id="asset_1", content_type="image/png", sha256="00", bytes=7)
    line = Progress(ts=stage.now, status="succeeded", source_ref="poll:1")
    state = msgspec.structs.replace(
        task.state,
        output=(asset,),
        progress=(line,),
        completed_at=stage.now,
        hosting=HostingState(status="ready", final_url_ready=True),
    )
    request = msgspec.structs.replace(task.request, webhook_url=URL)
    return msgspec.structs.replace(task, status="succeeded", state=state, request=request)


async def plant(api: Api, *, attempts: int = 0, **columns: Any) -> list[str]:
    """Write the task and its two events; their ids, the older one first."""
    task = ended(api)
    await api.add_task(task)
    rows = new_event_rows(msgspec.structs.replace(task, status="processing"), task)
    for number, row in enumerate(rows):
        values = (
            msgspec.structs.asdict(row)
            | {"receiver": row.account_id, "snapshot": {}, "created_at": api.now + timedelta(seconds=number)}
            | columns
        )
        await api.write(tables.outbox.insert().values(**values))
        for attempt in range(1, attempts + 1):
            await api.write(
                tables.outbox_attempts.insert().values(
                    account_id=row.account_id,
                    event_id=row.event_id,
                    number=attempt,
                    at=api.now,
                    status_code=None if attempt == 1 else 500,
                    error="unreachable: ConnectError" if attempt == 1 else None,
                    duration_ms=7,
                )
            )
    return [row.event_id for row in rows]


async def test_events_are_listed_newest_first_with_their_attempts(api: Api) -> None:
    _, newer = await plant(api, attempts=2)
    await api.write(tables.outbox.update().values(attempts=2))
    shown = (await api.as_key("GET", EVENTS)).json()["data"]
    assert [event["type"] for event in shown] == ["task.assets_ready", "task.succeeded"]
    assert shown[0] == {
        "event_id": newer,
        "type": "task.assets_ready",
        "status": "pending",
        "url": URL,
        "created_at": "2026-11-20T12:00:01.000Z",
        "next_attempt_at": "2026-11-20T12:00:00.000Z",
        "done_at": None,
        "reason": None,
        "attempts": [
            {"number": 2, "at": "2026-11-20T12:00:00.000Z", "status_code": 500, "error": None, "duration_ms": 7},
            {
                "number": 1, "at": "2026-11-20T12:00:00.000Z", "status_code": None,
                "error": "unreachable: ConnectError", "duration_ms": 7,
            },
        ],
    }  # fmt: skip


async def test_tasks_without_webhook_have_no_events(api: Api) -> None:
    await api.add_task(api.task())
    assert (await api.as_key("GET", EVENTS)).json() == {"data": []}
    await api.write(tables.tasks.update().values(account_id=api.other_account_id))
    for request_id in (TASK, "task_unheard", "task_'"):
        refused(await api.as_key("GET", f"/v2/task/{request_id}/events"), 404, "task_not_found")


async def test_only_the_owner_can_resend_an_event(api: Api) -> None:
    event_id, _ = await plant(api, status="given_up", due_at=None, done_at=api.now, reason="not taken in time")
    events: Any = api.deps.sending.events
    answer = await api.as_key("POST", f"{EVENTS}/{event_id}/resend")
    assert answer.status_code == 200
    assert (answer.json())["event_id"] == event_id
    assert events.sent_again == [(api.account_id, event_id, api.account_id)]
    for unknown in ("evt_unheard", "EVT", "evt_'"):
        refused(await api.as_key("POST", f"{EVENTS}/{unknown}/resend"), 404, "event_not_found")
    other_task = f"/v2/task/task_unheard/events/{event_id}/resend"
    refused(await api.as_key("POST", other_task), 404, "task_not_found")
    reader = await api.add_key(api.account_id, "key_reader", scopes=("tasks:read",))
    heads = {"Authorization": f"Bearer {reader.secret}"}
    assert (await api.call("GET", EVENTS, headers=heads)).status_code == 200
    answer = await api.call("POST", f"{EVENTS}/{event_id}/resend", headers=heads)
    refused(answer, 403, "insufficient_scope")
    refused(await api.as_session("GET", EVENTS), 401, "wrong_credential_type")
    assert len(events.sent_again) == 1


async def add_webhook(api: Api) -> None:
    """Write the webhook ``wh_1``."""
    webhook = {"webhook_id": "wh_1", "url": URL, "events": ["*"], "enabled": True}
    times = {"created_at": api.now, "updated_at": api.now}
    await api.write(tables.webhooks.insert().values(account_id=api.account_id, **webhook, **times))


@pytest.mark.parametrize("value", ["infinity", "-infinity"])
async def test_a_time_that_cannot_be_read_closes_no_list_of_deliveries(api: Api, value: str) -> None:
    unreadable, other = await plant(api, webhook_id="wh_1")
    await add_webhook(api)
    await api.write(text(f"update outbox set created_at = '{value}' where event_id = '{unreadable}'"))
    found = ok(await api.as_session("GET", "/v2/control/webhooks/wh_1/deliveries"))
    assert [each["event_id"] for each in found["data"]] == [other]
    assert found["unreadable"] == [unreadable]


async def test_events_are_sent_again_and_tested_at_a_rate(api: Api) -> None:
    """Each is a request to an address that anybody may name."""
    event_id, own = await plant(api)
    await add_webhook(api)
    await api.write(
        tables.outbox.update()
        .where(tables.outbox.c.event_id == event_id)
        .values(webhook_id="wh_1", receiver="wh_1")
    )
    events: Any = api.deps.sending.events
    resends = f"/v2/control/webhooks/wh_1/deliveries/{event_id}/resend"
    api.change(resend_rate=SendRate(2, 60.0), test_rate=SendRate(2, 60.0))
    assert (await api.as_session("POST", resends)).status_code == 200
    assert (await api.as_session("POST", resends)).status_code == 200
    limited = await api.as_session("POST", resends)
    refused(limited, 429, "rate_limit_exceeded")
    assert 0 < int(limited.headers["retry-after"]) <= 60
    limited = await api.as_key("POST", f"{EVENTS}/{own}/resend")
    refused(limited, 429, "rate_limit_exceeded")
    assert len(events.sent_again) == 2
    for _ in range(2):
        assert api.deps.sending.test_rate.refuse(api.account_id) is None
    refused(await api.as_session("POST", "/v2/control/webhooks/wh_1/test"), 429, "rate_limit_exceeded")


async def test_the_webhook_secret_belongs_to_the_account_and_rotates(api: Api) -> None:
    first = (await api.as_session("GET", SECRET)).json()
    assert first["secret"].startswith("whsec_")
    assert (first["rotated_at"], first["previous_valid_until"]) == (None, None)
    second = (await api.as_session("POST", f"{SECRET}/rotate")).json()
    assert second["secret"] != first["secret"]
    assert (second["rotated_at"], second["previous_valid_until"]) == (
        "2026-11-20T12:00:00.000Z",
        "2026-11-21T12:00:00.000Z",
    )
    values = {"account_id": api.account_id, "generation": 1, "rotated_at": api.now - timedelta(days=2)}
    await api.write(tables.webhook_secrets.insert().values(**values))
    now = (await api.as_session("GET", SECRET)).json()
    assert (now["secret"], now["previous_valid_until"]) == (second["secret"], None)
    await api.as_session("POST", f"{SECRET}/rotate")
    events: Any = api.deps.sending.events
    assert events.rotated == [(api.account_id, 1), (api.account_id, 2)]
    refused(await api.as_key("GET", SECRET), 403, "insufficient_scope")


async def accept(key: str, command: Any) -> TaskAccepted:
    return TaskAccepted(TASK, command.request.quote_id, "queued", None, 12_000, "basis", NOW)


@pytest.mark.parametrize(
    ("extra", "kinds"),
    [
        ({}, CHOSEN_BY_DEFAULT),
        ({"webhook_events": None}, CHOSEN_BY_DEFAULT),
        ({"webhook_events": ["task.failed", "task.processing", "task.failed"]}, ("task.processing", "task.failed")),
        ({"webhook_url": None}, None),
    ],
)
async def test_the_event_kinds_are_fixed_on_create(
    stage: Stage, extra: dict[str, Any], kinds: tuple[str, ...] | None
) -> None:
    stage.know_key()
    stage.accounts.answer = accept
    assert (await stage.as_key("POST", CREATE, json={**POSTER, **extra})).status_code == 200
    command = stage.accounts.asked[0][1]
    assert isinstance(command, CreateTask)
    assert command.request.webhook_events == kinds


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"webhook_events": []}, "webhook_events"),
        ({"webhook_events": ["task.succeeded"], "webhook_url": None}, "webhook_events"),
        ({"webhook_events": ["task.created"]}, "webhook_events[0]"),
        ({"webhook_events": "task.succeeded"}, "webhook_events"),
        ({"webhook_url": "http://example.com/hook"}, "webhook_url"),
        ({"webhook_url": "https://169.254.169.254/"}, "webhook_url"),
    ],
)
async def test_invalid_webhook_settings_are_refused_on_create(api: Api, extra: dict[str, Any], param: str) -> None:
    api.configure(webhook_local_allowed=False)
    answer = await api.as_key("POST", CREATE, json={**POSTER, **extra})
    error = refused(answer, 400, "invalid_parameter")
    assert error["param"] == param


async def test_a_retry_has_the_webhook_settings_of_the_first_task(api: Api) -> None:
    task = ended(api)
    request = msgspec.structs.replace(task.request, webhook_events=("task.failed",))
    await api.add_task(msgspec.structs.replace(task, request=request))
    api.accounts.answer = accept
    assert (await api.as_key("POST", f"/v2/task/{TASK}/retry")).status_code == 200
    command = api.accounts.asked[0][1]
    assert isinstance(command, CreateTask)
    assert (command.request.webhook_url, command.request.webhook_events) == (URL, ("task.failed",))


async def test_the_event_body_is_the_task_without_its_progress(api: Api) -> None:
    task = ended(api)
    await api.add_task(task)
    [row, _] = new_event_rows(msgspec.structs.replace(task, status="processing"), task)
    snapshot = msgspec.json.encode(row.snapshot).decode()
    account_id, at = api.account_id, api.now
    event = DueEvent(account_id, "evt_1", account_id, TASK, "task.succeeded", URL, at, 1, at, 1, snapshot, ())
    payload = event_payload(api.deps.urls, "evt_1", "task.succeeded", event.created_at, event.task, now=api.now)
    shown = msgspec.json.decode(payload)
    read = (await api.as_key("GET", f"/v2/task/{TASK}")).json()
    del read["provider_progress"]
    assert shown == {
        "id": "evt_1", "type": "task.succeeded", "timestamp": "2026-11-20T12:00:00.000Z", "data": read
    }  # fmt: skip
    assert shown["data"]["output"][0]["url"].startswith(f"{api.public_url}/v2/assets/asset_1?")


@pytest.mark.parametrize(
    ("sent", "param", "says"),
    [
        ({"url": URL, "events": ["task.done"]}, "events", "'task.done'"),
        ({"url": URL, "events": ["webhook.test"]}, "events", "'webhook.test'"),
        ({"url": URL, "events": []}, "events", "length >= 1"),
        ({"url": "ftp://example.com", "events": ["*"]}, "url", "https"),
        ({"url": "https://user:pw@example.com", "events": ["*"]}, "url", "https"),
        ({"url": "", "events": ["*"]}, "url", "https"),
        ({"url": f"https://example.com/{'x' * 2000}", "events": ["*"]}, "url", "1024"),
    ],
)
async def test_an_invalid_webhook_asks_no_actor(api: Api, sent: dict[str, Any], param: str, says: str) -> None:
    error = refused(await api.as_session("POST", WEBHOOKS, sent), 400, "invalid_parameter")
    assert error["param"] == param
    assert says in error["message"]
    assert api.accounts.asked == []


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ({"balance_below": "-1"}, "invalid_amount"),
        ({"balance_below": "0"}, "invalid_amount"),
        ({"limit_share": 0}, "invalid_parameter"),
        ({"limit_share": 1.01}, "invalid_parameter"),
        ({"limit_share": "0.5"}, "invalid_parameter"),
        ({"email": "yes"}, "invalid_parameter"),
    ],
)
async def test_invalid_alerts_ask_no_actor(api: Api, sent: dict[str, Any], code: str) -> None:
    [param] = sent
    assert refused(await api.as_session("PUT", ALERTS, sent), 400, code)["param"] == param
    assert api.accounts.asked == []
