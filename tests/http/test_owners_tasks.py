"""Tasks and files by their owner's session, which needs no API key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.clients import ok, refused

from holdfast.actors.account.messages import CreateTask, RefuseTask
from holdfast.actors.task.messages import CancelTask, DeleteResults, TaskReply
from holdfast.ledger.refusals import Refusal

from .test_media_tasks import POSTER, accept

if TYPE_CHECKING:
    from tests.http.api import Api

TASKS = "/v2/control/tasks"
OTHER = "hst_" + "B" * 43


async def test_a_session_creates_a_task_without_a_key(api: Api) -> None:
    api.accounts.answer = accept
    made = ok(await api.as_session("POST", TASKS, json=POSTER, headers={"Idempotency-Key": "k"}))
    assert made["api_key_id"] is None
    [(account_id, command)] = api.accounts.asked
    assert isinstance(command, CreateTask)
    assert (account_id, command.request.api_key_id) == (api.account_id, None)
    assert command.idempotency is not None
    assert command.idempotency.route == f"POST {TASKS}"


async def test_a_refused_create_is_stored_for_its_key(api: Api) -> None:
    quote_id = ok(await api.call("POST", "/v2/quote", json=POSTER))["quote_id"]
    later = api.now.replace(hour=13)
    api.change(now=lambda: later)
    api.accounts.answer = Refusal(code="quote_expired", message="Too old.")
    body = {**POSTER, "quote_id": quote_id}
    refused(await api.as_session("POST", TASKS, json=body, headers={"Idempotency-Key": "k"}), 409, "quote_expired")
    [(_, command)] = api.accounts.asked
    assert isinstance(command, RefuseTask)
    assert command.api_key_id == ""


async def test_a_session_reads_and_cancels_the_tasks_of_its_account_only(api: Api) -> None:
    await api.add_task(api.task("task_a"))
    await api.add_session(api.other_account_id, "ses_" + "2" * 32, OTHER)
    listed = ok(await api.as_session("GET", TASKS, params={"status": "queued"}))
    assert [each["request_id"] for each in listed["data"]] == ["task_a"]
    assert ok(await api.as_session("GET", f"{TASKS}/task_a"))["request_id"] == "task_a"
    canceled = api.task("task_a", status="canceled", wake_at=None)
    api.tasks.answer = TaskReply(canceled)
    assert ok(await api.as_session("POST", f"{TASKS}/task_a/cancel"))["status"] == "canceled"
    assert [command for _, command in api.tasks.asked] == [CancelTask()]
    for method, path in (
        ("GET", f"{TASKS}/task_a"),
        ("POST", f"{TASKS}/task_a/cancel"),
        ("POST", f"{TASKS}/task_a/retry"),
        ("DELETE", f"{TASKS}/task_a/results"),
    ):
        response = await api.call(method, path, credential=OTHER)
        refused(response, 404, "task_not_found")
    assert ok(await api.call("GET", TASKS, credential=OTHER))["data"] == []
    assert len(api.tasks.asked) == 1


async def test_an_api_key_is_not_enough(api: Api) -> None:
    for method, path in (
        ("GET", TASKS),
        ("POST", TASKS),
        ("GET", f"{TASKS}/task_a"),
        ("DELETE", f"{TASKS}/task_a/results"),
    ):
        sent = {"json": POSTER} if method == "POST" else {}
        refused(await api.as_key(method, path, **sent), 401, "wrong_credential_type")
    refused(await api.as_session("POST", "/v2/task/create", json=POSTER), 401, "wrong_credential_type")
    assert api.accounts.asked == []


async def test_a_retry_by_a_session_has_no_key(api: Api) -> None:
    api.accounts.answer = accept
    await api.add_task(api.task("task_a", status="canceled", wake_at=None))
    made = ok(await api.as_session("POST", f"{TASKS}/task_a/retry"))
    assert (made["retry_of"], made["api_key_id"]) == ("task_a", None)


async def test_a_file_is_uploaded_by_a_session(api: Api) -> None:
    stored = ok(await api.as_session("POST", "/v2/control/files", files={"file": ("a.png", b"\x89PNG\r\n\x1a\n")}))
    assert (stored["filename"], stored["content_type"]) == ("a.png", "image/png")


async def test_a_session_has_results_deleted(api: Api) -> None:
    await api.add_task(api.task("task_a", status="canceled", wake_at=None))
    api.tasks.answer = TaskReply(api.task("task_a", status="canceled", wake_at=None))
    assert ok(await api.as_session("DELETE", f"{TASKS}/task_a/results"))["request_id"] == "task_a"
    assert api.tasks.asked == [("task_a", DeleteResults())]


async def test_a_session_lists_and_deletes_the_files_of_its_account_only(api: Api) -> None:
    await api.add_session(api.other_account_id, "ses_" + "2" * 32, OTHER)
    stored = ok(await api.as_session("POST", "/v2/control/files", files={"file": ("a.txt", b"a")}))
    path = f"/v2/control/files/{stored['file_id']}"
    assert ok(await api.call("GET", "/v2/control/files", credential=OTHER))["data"] == []
    refused(await api.call("DELETE", path, credential=OTHER), 404, "file_not_found")
    [listed] = ok(await api.as_session("GET", "/v2/control/files"))["data"]
    assert listed["file_id"] == stored["file_id"]
    assert ok(await api.as_session("DELETE", path)) == {"file_id": stored["file_id"], "deleted": True}
    refused(await api.as_session("DELETE", path), 404, "file_not_found")
    assert ok(await api.as_session("GET", "/v2/control/files"))["data"] == []
