"""Creates and retries that respond when their task has ended, on real rows."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest
import trio
from sqlalchemy import update
from tests.clients import ok, refused
from trio.testing import MockClock, wait_all_tasks_blocked

from holdfast.actors.account.messages import CreateTask, TaskAccepted
from holdfast.actors.runtime.messages import Replayed
from holdfast.http.kit.waiting_calls import WaitingCalls
from holdfast.http.schemas.tasks import CreateTaskRequest
from holdfast.ledger.tasks.task import TaskRequest
from holdfast.persistence.journal.changes import Extent
from holdfast.persistence.records import tables

from .api import Api
from .identities import ACCOUNT, NOW
from .stage import Stage
from .test_replicate_layer import AwayRows
from .test_waiting import begun, progressed, write

ID = "task_" + "1" * 32
ENDED_ID = "task_" + "2" * 32
WANTED = {"model": "studio/image-1", "input": {"prompt": "a lighthouse"}}
ACCEPTED = TaskAccepted(ID, "quo_" + "1" * 32, "queued", None, 12_000, "1 image", NOW)


@pytest.fixture
async def made(api: Api) -> Api:
    """The API, whose account has just created a task, and would create it for any request."""
    await api.add_task(api.task(ID))
    await api.add_task(progressed(api.task(ENDED_ID), 2, "failed"))
    api.accounts.answer = ACCEPTED
    return api


class Creating:
    """A request that waits, and its response."""

    def __init__(self, nursery: trio.Nursery, send: Callable[[], Awaitable[httpx2.Response]]) -> None:
        self._send = send
        self.response: httpx2.Response | None = None
        nursery.start_soon(self._run)

    async def _run(self) -> None:
        self.response = await self._send()

    def answer(self) -> dict[str, Any]:
        assert self.response is not None, "it still waits"
        return ok(self.response)


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v2/task/create?wait=50", {}),
        ("/v2/task/create", {"Prefer": "wait=50"}),
        ("/v2/task/create", {"Prefer": "wait"}),
        (f"/v2/task/{ENDED_ID}/retry?wait=50", {}),
        (f"/v2/task/{ENDED_ID}/retry", {"Prefer": "wait"}),
        ("/v2/control/tasks?wait=50", {}),
        (f"/v2/control/tasks/{ENDED_ID}/retry", {"Prefer": "wait=50"}),
    ],
)
async def test_a_create_is_answered_with_the_end_of_its_task(made: Api, path: str, headers: dict[str, str]) -> None:
    send = made.as_session if "control" in path else made.as_key
    body = {} if "retry" in path else WANTED
    async with trio.open_nursery() as nursery:
        creating = Creating(nursery, lambda: send("POST", path, body, headers=headers))
        await begun(made)
        await write(made, progressed(made.task(ID), 2, "processing"), Extent.STATUS)
        await wait_all_tasks_blocked()
        assert creating.response is None
        await write(made, progressed(made.task(ID), 3, "failed"), Extent.END)
    answer = creating.answer()
    assert (answer["request_id"], answer["status"], answer["error"]) == (ID, "failed", "version 3")
    read = ok(await made.as_key("GET", f"/v2/task/{ID}"))
    assert answer == read
    assert made.deps.following.waiting.count == 0
    [(_, command)] = made.accounts.asked
    assert isinstance(command, CreateTask)
    # The wait is for the task, not for its account.
    assert (made.accounts.while_down, made.accounts.deadlines_s) == (["queue"], [10])


async def test_a_wait_that_is_over_shows_the_task_as_it_is(made: Api, mock_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        creating = Creating(nursery, lambda: made.as_key("POST", "/v2/task/create?wait=20", WANTED))
        await begun(made)
        await write(made, progressed(made.task(ID), 2, "processing"), Extent.STATUS)
        mock_clock.jump(19.9)
        await wait_all_tasks_blocked()
        assert creating.response is None
        mock_clock.jump(0.2)
    assert creating.answer()["status"] == "processing"


async def test_what_waits_keeps_nothing_of_its_input(made: Api) -> None:
    events = ["task.failed"]
    async with trio.open_nursery() as nursery:
        # A list, because the garbage collector does not know structs without any.
        wanted = {**WANTED, "webhook_url": "https://example.com/hook", "webhook_events": events}
        Creating(nursery, lambda: made.as_key("POST", "/v2/task/create?wait=50", wanted))
        await begun(made)
        await wait_all_tasks_blocked()
        made.accounts.asked.clear()
        gc.collect()
        kept = [each for each in gc.get_objects() if isinstance(each, CreateTaskRequest | TaskRequest)]
        assert [each for each in kept if each.webhook_url == wanted["webhook_url"]] == []
        await write(made, progressed(made.task(ID), 2, "failed"), Extent.END)


async def test_a_repeat_under_its_key_waits_and_shows_the_task_as_it_is_now(made: Api) -> None:
    made.accounts.answer = Replayed(ACCEPTED)
    async with trio.open_nursery() as nursery:
        repeat = Creating(nursery, lambda: made.as_key("POST", "/v2/task/create?wait=50", WANTED, key="k"))
        await begun(made)
        await write(made, progressed(made.task(ID), 2, "failed"), Extent.END)
    assert repeat.answer()["status"] == "failed"
    later = await made.as_key("POST", "/v2/task/create", WANTED, key="k", headers={"Prefer": "wait=1"})
    assert ok(later)["status"] == "failed"
    without = await made.as_key("POST", "/v2/task/create", WANTED, key="k")
    assert ok(without)["status"] == "queued"
    assert {each.headers["Idempotent-Replayed"] for each in (later, without)} == {"true"}
    # All of them are one request to the account: a wait is no part of what is asked for.
    keys = {command.idempotency for _, command in made.accounts.asked if isinstance(command, CreateTask)}
    assert len(keys) == 1


async def test_a_wait_that_cannot_be_read_creates_nothing(made: Api) -> None:
    for query in ("wait=61", "wait=-1", "wait=soon", "wait=1&wait=2", "waits=1"):
        for path in ("/v2/task/create", f"/v2/task/{ENDED_ID}/retry", "/v2/control/tasks"):
            send = made.as_session if "control" in path else made.as_key
            body = {} if "retry" in path else WANTED
            refused(await send("POST", f"{path}?{query}", body), 400, "invalid_parameter")
    assert made.accounts.asked == []


async def test_a_key_that_may_not_read_is_answered_at_once(made: Api) -> None:
    await write(made, progressed(made.task(ID), 2, "failed"), Extent.END)
    writer = (await made.add_key(ACCOUNT, "key_" + "7" * 32, scopes=("tasks:write",))).secret
    path = "/v2/task/create?wait=50"
    assert ok(await made.call("POST", path, WANTED, credential=writer))["status"] == "queued"
    # So is one that might read when it was last looked up.
    made.know_key()
    await made.write(update(tables.api_keys).values(scopes=["tasks:write"]))
    assert ok(await made.as_key("POST", path, WANTED))["status"] == "queued"


async def test_a_created_task_is_answered_though_it_cannot_be_waited_for(made: Api) -> None:
    made.change(waiting=WaitingCalls(per_account_max=0, all_max=1))
    assert ok(await made.as_key("POST", "/v2/task/create?wait=50", WANTED))["status"] == "queued"


async def test_a_created_task_is_answered_though_it_cannot_be_read(stage: Stage) -> None:
    stage.know_key()
    stage.accounts.answer = ACCEPTED
    stage.change(database=AwayRows())
    answer = ok(await stage.as_key("POST", "/v2/task/create?wait=50", WANTED))
    assert (answer["request_id"], answer["status"]) == (ID, "queued")


async def test_a_client_that_hangs_up_frees_its_place_and_cancels_nothing(made: Api) -> None:
    async with trio.open_nursery() as nursery:
        Creating(nursery, lambda: made.as_key("POST", "/v2/task/create?wait=50", WANTED))
        await begun(made)
        nursery.cancel_scope.cancel()
    assert made.deps.following.waiting.count == 0
    assert made.tasks.asked == []
    assert ok(await made.as_key("GET", f"/v2/task/{ID}"))["status"] == "queued"
