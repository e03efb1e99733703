"""The time line of an account and of a task, and the lists of what waits for operators."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from tests.clients import refused

from holdfast.ledger.tasks.task import Progress, StatusEntry
from holdfast.persistence.claims.reports import report_row
from holdfast.persistence.records import tables
from holdfast.telemetry.reports.report import Report

if TYPE_CHECKING:
    import httpx2
    from tests.http.api import Api

TASK = "task_" + "1" * 32
EVENT = {
    "request_id": TASK, "kind": "task.succeeded", "url": "https://hooks.example.com/in", "attempts": 2,
    "snapshot": {},
}  # fmt: skip


async def ask(api: Api, path: str, method: str = "GET", **kwargs: Any) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {api.deps.settings.operator_token}"}
    return await api.call(method, f"/ops/api/{path}", headers=headers, **kwargs)


async def entries(api: Api, path: str, filters: str = "") -> list[dict[str, Any]]:
    """Read every page, two entries each."""
    found: list[dict[str, Any]] = []
    first = query = f"?limit=2{filters}"
    while query:
        body = (await ask(api, f"{path}/timeline{query}")).json()
        found += body["data"]
        query = f"{first}&cursor={body['next_cursor']}" if body["next_cursor"] else ""
    return found


async def live(api: Api) -> None:
    """An account's life: an order paid, a task, an event that was given up, an action and a report."""
    of = {"account_id": api.account_id}

    def at(minutes: int) -> Any:
        return api.now + timedelta(minutes=minutes)

    operation = {"balance_after_micro": 9_000_000, "held_after_micro": 0, "chain_hash": bytes(32), **of}
    for number, kind, reference, minutes in (
        (1, "credit", "ord_1", 2),
        (2, "hold", TASK, 3),
        (3, "capture", TASK, 6),
    ):
        await api.write(
            tables.operations.insert().values(
                number=number, operation_id=f"op_{number}", kind=kind, amount_micro=1_000_000, reference=reference,
                hold_id=None if kind == "credit" else "hold_1", reason="why", at=at(minutes), **operation,
            )
        )  # fmt: skip
    hold = {"hold_id": "hold_" + TASK[5:], "amount_micro": 1, "reference": TASK, **of}
    await api.write(tables.holds.insert().values(opened_number=2, settled_number=3, **hold))
    await api.add_order(api.order("ord_1", at=at(1)))
    await api.write(
        tables.payment_events.insert().values(
            provider="cardprovider", event_id="evt_1", order_id="ord_1", type="payment_intent.succeeded",
            received_at=at(2), verdict="applied", body=b"{}", **of,
        )
    )  # fmt: skip
    task = api.task(TASK, at=at(3), status="succeeded")
    progress = Progress(ts=at(4), status="processing", source_ref="poll:1", message="half done")
    state = msgspec.structs.replace(
        task.state,
        status_history=(StatusEntry(status="queued", ts=at(3)), StatusEntry(status="succeeded", ts=at(6))),
        progress=(progress,),
    )
    await api.add_task(msgspec.structs.replace(task, state=state))
    await api.write(
        tables.task_events.insert().values(
            request_id=TASK,
            provider="studio",
            event_id="cb_1",
            received_at=at(5),
            verdict="applied",
            body=b"{}",
            **of,
        )
    )
    await api.write(
        tables.outbox.insert().values(
            event_id="evt_9", created_at=at(7), status="given_up", round_at=at(7), tries=2, done_at=at(9),
            reason="gone", receiver="x", **EVENT, **of,
        )
    )  # fmt: skip
    for number, error in ((1, "timeout"), (2, None)):
        await api.write(
            tables.outbox_attempts.insert().values(
                event_id="evt_9", number=number, at=at(7 + number), duration_ms=9, error=error,
                status_code=None if error else 410, **of,
            )
        )  # fmt: skip
    named = dict.fromkeys(("credential", "origin", "target", "trace_id"), "x")
    await api.write(
        tables.operator_actions.insert().values(
            action_id="act_1", at=at(10), operator="ada", action="resend_event", reason="asked", result="done",
            task_id=TASK, **named, **of,
        )
    )  # fmt: skip
    report = Report(
        kind="crash", at=at(11), path="holdfast/tasks", report_id="rep_1", level="error", key=TASK, task_id=TASK,
        account_id=api.account_id, reason_type="RuntimeError", reason="a bug",
    )  # fmt: skip
    await api.write(tables.reports.insert().values(**report_row(report)))


async def test_a_time_line_shows_one_kind_of_entries(api: Api) -> None:
    await live(api)
    for path, count in ((f"accounts/{api.account_id}", 3), (f"tasks/{TASK}", 2)):
        body = (await ask(api, f"{path}/timeline?source=operation")).json()
        assert [each["source"] for each in body["data"]] == ["operation"] * count
        refused(await ask(api, f"{path}/timeline?source=gossip"), 400, "invalid_parameter")


async def test_an_account_without_entries_of_a_kind_exists(api: Api) -> None:
    body = (await ask(api, f"accounts/{api.account_id}/timeline?source=order")).json()
    assert body == {"data": [], "next_cursor": None}
    unknown = await ask(api, "accounts/acct_9/timeline?source=order")
    refused(unknown, 404, "account_not_found")


async def test_an_account_is_shown_by_time_with_everything_about_it(api: Api) -> None:
    await live(api)
    found = await entries(api, f"accounts/{api.account_id}")
    assert [(each["source"], each["what"], each["subject"]) for each in found] == [
        ("report", "crash", "holdfast/tasks"),
        ("action", "resend_event done", "x"),
        ("event", "task.succeeded", TASK),
        ("operation", "capture", TASK),
        ("task", "created", TASK),
        ("operation", "hold", TASK),
        ("operation", "credit", "ord_1"),
        ("payment_event", "payment_intent.succeeded", "ord_1"),
        ("order", "created", "ord_1"),
        ("session", "signed in", api.session_id),
        ("api_key", "created", api.key_id),
    ]
    by_source = {each["source"]: each for each in found}
    assert "RuntimeError" in by_source["report"]["text"]
    assert by_source["action"]["text"] == "ada: asked"
    assert by_source["event"]["text"] == "given_up after 2 attempts: gone"
    assert (found[3]["amount"], found[3]["balance"]) == ("1.00", "9.00")
    assert [each["at"] for each in found] == sorted((each["at"] for each in found), reverse=True)
    window = "?from=2026-11-20T12:03:00Z&to=2026-11-20T12:07:00Z"
    some = (await ask(api, f"accounts/{api.account_id}/timeline{window}")).json()
    assert [each["what"] for each in some["data"]] == ["capture", "created", "hold"]


async def test_a_task_is_shown_by_time_with_everything_about_it(api: Api) -> None:
    await live(api)
    found = await entries(api, f"tasks/{TASK}")
    assert [(each["source"], each["what"], each["text"]) for each in found] == [
        (
            "report",
            "crash",
            "crashed: RuntimeError: a bug; not restarted; start it on the page of its process",
        ),
        ("action", "resend_event done", "ada: asked"),
        ("delivery", "task.succeeded", "status 410 in 9 ms"),
        ("delivery", "task.succeeded", "timeout in 9 ms"),
        ("event", "task.succeeded", "given_up: gone"),
        ("task", "succeeded", None),
        ("operation", "capture", "why"),
        ("callback", "applied", "studio"),
        ("progress", "processing", "half done"),
        ("task", "queued", None),
        ("operation", "hold", "why"),
    ]


async def test_time_lines_of_nothing_are_not_found(api: Api) -> None:
    refused(await ask(api, "accounts/acct_9/timeline"), 404, "account_not_found")
    refused(await ask(api, "tasks/task_9/timeline"), 404, "task_not_found")
    refused(await ask(api, f"accounts/{api.account_id}/timeline?cursor=x"), 400, "invalid_cursor")
