"""What requests of OpenAI's clients that are held open keep."""

from __future__ import annotations

import gc

import trio
from trio.testing import wait_all_tasks_blocked

from holdfast.actors.account.messages import TaskAccepted
from holdfast.http.kit.calls import Call

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
