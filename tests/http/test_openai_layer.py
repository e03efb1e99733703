"""Requests of OpenAI's clients that are held open: what they keep, and results that cannot be sent."""

from __future__ import annotations

import gc
from datetime import timedelta

import msgspec
import pytest
import trio
from tests.clients import refused
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
