"""A task whose provider sends an update beside the response to the submission, and crashes between the two."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime
from typing import Any

import msgspec
from tests.persistence.values import make_task

from holdfast.actors.runtime.journaled import Commit
from holdfast.actors.runtime.mailbox import Mailbox
from holdfast.actors.task.actor import TaskActor
from holdfast.actors.task.messages import (
    CallProvider,
    Host,
    JobKnown,
    ReceiveProviderUpdate,
    RecordSubmission,
    SlotFreed,
    TaskReply,
    Wake,
)
from holdfast.ledger.tasks.dispatch import submit_at_once
from holdfast.ledger.tasks.task import Task
from holdfast.ledger.tasks.transitions import Context
from holdfast.providers.media.base import Accepted, Job

from .actor_system import task_dependencies
from .asset_setup import update

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
ACCEPTED = RecordSubmission(1, Accepted("job_1", "queued"))


def submitted_task() -> Task:
    """A task with the intent to submit it, as it is written when it is created with a slot."""
    task = submit_at_once(make_task("acct_1", "task_1", NOON), Context(NOON)).task
    assert task is not None
    return task


SUCCEEDED = update("task_1", "evt_1", "succeeded", outputs=1, provider=submitted_task().provider)


def nameless(message: ReceiveProviderUpdate) -> ReceiveProviderUpdate:
    return ReceiveProviderUpdate(msgspec.structs.replace(message.update, provider_ref=None), message.body)


async def start_actor(task: Task) -> TaskActor:
    async def load(_: str) -> tuple[Task, frozenset[tuple[str, str]]]:
        return task, frozenset()

    unused: Any = None
    accounts: Any = None
    deps = task_dependencies(accounts=accounts, now=lambda: NOON)
    actor = TaskActor("task_1", Mailbox(10), unused, load=load, deps=deps)
    await actor.on_start()
    return actor


async def decided(actor: TaskActor, message: Any) -> Any:
    turn = actor.on_receive(message)
    return await turn if inspect.isawaitable(turn) else turn


def sent(commit: Any) -> list[type]:
    assert isinstance(commit, Commit)
    return [type(tell.message) for tell in commit.tells]


async def test_an_update_that_names_the_job_needs_no_response() -> None:
    task = submitted_task()
    actor = await start_actor(task)
    learned = await decided(actor, SUCCEEDED)
    assert sent(learned) == [Host, SlotFreed, JobKnown]
    assert learned.tells[-1].message == JobKnown("task_1", 1)
    # The response may have been recorded all the same: it says nothing new, and nothing is written.
    assert isinstance(await decided(actor, ACCEPTED), TaskReply)


async def test_the_response_is_needed_if_the_update_does_not_name_the_job() -> None:
    task = submitted_task()
    actor = await start_actor(task)
    assert sent(await decided(actor, nameless(SUCCEEDED))) == [Host, SlotFreed]
    assert sent(await decided(actor, ACCEPTED)) == [JobKnown]
    known = actor.state()[1]
    assert isinstance(known, Task)
    assert known.state.provider_ref == "job_1"


async def test_a_response_lost_before_any_update_is_repeated() -> None:
    # The process was killed while the response waited, so the row still has the intent.
    actor = await start_actor(submitted_task())
    [call] = [tell.message for tell in (await decided(actor, Wake(recovering=True))).tells]
    assert isinstance(call, CallProvider)
    assert isinstance(call.call, Job)
    assert (call.call.request_id, call.call.attempt) == ("task_1", 1)


async def test_an_update_that_was_written_outlives_its_response() -> None:
    # The process was killed after the update was written, before the response was recorded or forgotten.
    task = submitted_task()
    [changed, *_] = (await decided(await start_actor(task), SUCCEEDED)).unit.rows
    actor = await start_actor(changed.task)
    assert isinstance(await decided(actor, ACCEPTED), TaskReply)
