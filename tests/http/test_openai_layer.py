"""Requests of OpenAI's clients that are held open: what they keep, and results that cannot be sent."""

from __future__ import annotations

import gc
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import trio
from tests.clients import ok, refused
from trio.testing import wait_all_tasks_blocked

from holdfast.actors.account.messages import TaskAccepted
from holdfast.http.kit.calls import Call
from holdfast.ledger.tasks.task import OutputItem

from .api import Api

PATH = "/v1/images/generations"
ID = "task_" + "1" * 32
ACCEPTED = TaskAccepted(ID, "quo_" + "1" * 32, "queued", None, 12_000, "1 image")


async def test_a_request_that_waits_does_not_keep_its_body(api: Api) -> None:
    await api.add_task(api.task(ID, status="processing"))
    api.accounts.answer = ACCEPTED
    prompt = "a lighthouse " * 40
    async with trio.open_nursery() as nursery:
        nursery.start_soon(api.as_key, "POST", PATH, {"model": "studio/image-1", "prompt": prompt})
        with trio.fail_after(60):
            while api.deps.waiting.count == 0 or not api.accounts.asked:
                await trio.lowlevel.checkpoint()
            await wait_all_tasks_blocked(0.05)
        [call] = [each for each in gc.get_objects() if isinstance(each, Call) and each.route.path == PATH]
        assert (call.raw, call.json, call.files) == (b"", {}, ())
        nursery.cancel_scope.cancel()


async def test_a_key_that_may_not_read_results_gets_none(api: Api) -> None:
    writer = (await api.add_key(api.account_id, "key_" + "7" * 32, scopes=("tasks:write",))).secret
    api.accounts.answer = ACCEPTED
    await api.add_task(api.task(ID, status="processing"))
    image: dict[str, Any] = {"data": {"model": "studio/edit-1"}, "files": {"image": b"a picture"}}
    wanted: dict[str, dict[str, Any]] = {
        PATH: {"json": {"model": "studio/image-1", "prompt": "a pier"}},
        "/v1/audio/speech": {"json": {"model": "studio/tone-1", "input": "rain"}},
        "/v1/images/edits": image,
    }
    for path, sent in wanted.items():
        for _ in range(2):  # the first time its row is read
            error = refused(await api.call("POST", path, credential=writer, **sent), 403, "insufficient_scope")
            assert error["message"] == "The API key does not have the scope tasks:read."
    assert api.accounts.asked == []
    assert ok(await api.as_key("GET", "/v2/files"))["data"] == []
    reader = (await api.add_key(api.account_id, "key_" + "8" * 32, scopes=("tasks:read",))).secret
    error = refused(
        await api.call("POST", "/v1/images/edits", credential=reader, **image), 403, "insufficient_scope"
    )
    assert error["message"] == "The API key does not have the scope tasks:write."


@pytest.mark.parametrize(
    ("attempt", "status", "code"),
    [({}, 424, "outcome_unknown"), ({"X-Stainless-Retry-Count": "0"}, 410, "asset_expired")],
)
@pytest.mark.parametrize("sha256", ["0" * 64, None], ids=["removed from the store", "never stored here"])
async def test_bytes_that_are_not_there_are_no_fault(
    api: Api, attempt: dict[str, str], status: int, code: str, sha256: str | None
) -> None:
    """After a 500 the client would send the request again, and some would pay again."""
    stored = OutputItem(
        index=0, asset_id="asset_" + "1" * 32, content_type="image/png", bytes=1, sha256=sha256,
        expires_at=api.now + timedelta(days=7),
    )  # fmt: skip
    task = api.task(ID, status="succeeded")
    await api.add_task(msgspec.structs.replace(task, state=msgspec.structs.replace(task.state, output=(stored,))))
    api.accounts.answer = ACCEPTED
    wanted = {"model": "studio/image-1", "prompt": "a pier", "response_format": "b64_json"}
    refused(await api.as_key("POST", PATH, wanted, headers=attempt), status, code)
