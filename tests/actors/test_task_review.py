"""A task's actor and its review: the place at the provider, and what is said only of the newest version."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

import msgspec
import pytest
from tests.recorded_refs import RecordedRef

from holdfast.actors.account.messages import SettleTask
from holdfast.actors.runtime.journaled import Commit, Reload
from holdfast.actors.runtime.mailbox import Mailbox, SystemMessage
from holdfast.actors.task.actor import Load, TaskActor
from holdfast.actors.task.messages import (
    CancelTask,
    DecideReview,
    Host,
    ReceiveProviderUpdate,
    RecordHosting,
    SlotFreed,
    TaskReply,
)
from holdfast.ledger.catalog.catalog import load_catalog
from holdfast.ledger.catalog.pricing import quote_input
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.decisions import on_wake
from holdfast.ledger.tasks.dispatch import on_submitted
from holdfast.ledger.tasks.events import CHOSEN_BY_DEFAULT
from holdfast.ledger.tasks.provider_update import Moderation, Output, ProviderUpdate
from holdfast.ledger.tasks.task import Task, TaskRequest, accept_task
from holdfast.ledger.tasks.transitions import Context, HostingFailure, ProviderTraits
from holdfast.persistence.journal.units import Fence
from holdfast.persistence.queries.loading import RowMissing
from holdfast.persistence.records.rows import TaskEventRow
from holdfast.providers.media.kinds import kind_rules

from .actor_system import task_dependencies

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
TRAITS = ProviderTraits(idempotent_submit=True, polls=True, cancels=True)


def running_task() -> Task:
    """A task whose provider has taken its job."""
    priced = quote_input(load_catalog(None, kind_rules()), "studio/image-1", {"prompt": "a lighthouse"})
    assert not isinstance(priced, Refusal)
    task = accept_task(
        "acct_1",
        "task_1",
        TaskRequest(
            input=priced.input,
            terms=priced.terms,
            quote_id="quo_1",
            api_key_id="key_1",
            hold_id="hold_1",
            hold_micro=priced.terms.hold_micro,
        ),
        NOON,
    )
    submitted = on_wake(task, Context(NOON, "op_1"), traits=TRAITS).task
    assert submitted is not None
    taken = on_submitted(submitted, 1, "job_1", NOON).task
    assert taken is not None
    return taken


def flagged(task: Task) -> ReceiveProviderUpdate:
    update = ProviderUpdate(
        source="callback",
        provider=task.provider,
        event_id="evt_1",
        request_id=task.request_id,
        attempt=1,
        status="succeeded",
        outputs=(Output(index=0, url="https://studio.test/0.png"),),
        moderation=Moderation(flagged=True),
    )
    return ReceiveProviderUpdate(update, b"{}")


@pytest.fixture
async def actor() -> TaskActor:
    """The actor of a running task. Nothing it decides is written."""
    return await start_actor()


class SettlingAccounts:
    """Accounts that settle every hold, or refuse to."""

    def __init__(self, refusal: Refusal | None = None) -> None:
        self._refusal = refusal

    def ref(self, _key: str) -> RecordedRef:
        return RecordedRef(lambda _: None, self._settle)

    async def _settle(self, message: SettleTask) -> Any:
        assert isinstance(message, SettleTask)
        return self._refusal or message.settlement


async def load_running(_: str) -> tuple[Task, frozenset[tuple[str, str]]]:
    return running_task(), frozenset()


async def start_actor(load: Load = load_running, *, refusal: Refusal | None = None) -> TaskActor:
    unused: Any = None
    dependencies = task_dependencies(
        accounts=SettlingAccounts(refusal),
        callback_url=lambda _: "https://holdfast.test/v2/callback",
        now=lambda: NOON,
    )
    actor = TaskActor("task_1", Mailbox(10), unused, load=load, deps=dependencies)
    await actor.on_start()
    return actor


async def decided(actor: TaskActor, message: Any) -> Commit[object]:
    turn = actor.on_receive(message)
    commit = await turn if inspect.isawaitable(turn) else turn
    assert isinstance(commit, Commit)
    return commit


def sent_messages(commit: Commit[object]) -> Sequence[Any]:
    return [tell.message for tell in commit.tells]


async def test_a_task_in_review_frees_its_slot_at_the_provider(actor: TaskActor) -> None:
    task = running_task()
    frozen = await decided(actor, flagged(task))
    assert sent_messages(frozen) == [SlotFreed(task.provider, task.request_id)]
    # It takes none while outputs are being stored after an approval, and so frees none.
    approved = await decided(actor, DecideReview(approve=True))
    assert [type(command) for command in sent_messages(approved)] == [Host]
    failure = HostingFailure(position=0, message="not_found", final=True)
    assert sent_messages(await decided(actor, RecordHosting(1, 1, (failure,)))) == []


async def test_a_task_whose_hold_is_not_open_is_read_again() -> None:
    actor = await start_actor(refusal=Refusal(code="hold_not_open", message="Settled before."))
    with pytest.raises(Reload, match="refused to settle: hold_not_open"):
        await decided(actor, CancelTask())


async def test_a_repeated_update_is_answered_once_the_first_is_durable(actor: TaskActor) -> None:
    first = await decided(actor, flagged(running_task()))
    again = await decided(actor, flagged(running_task()))
    assert again.reply == first.reply
    assert (again.unit.advances, again.unit.rows) == (False, ())
    assert again.unit.fences == (Fence("task", "task_1", first.unit.fences[0].expected + 1),)


async def test_updates_above_the_limit_are_applied_and_not_stored(
    actor: TaskActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.actors.task.actor.EVENTS_STORED_MAX", 2)

    def update(number: int, **fields: Any) -> ReceiveProviderUpdate:
        values = {
            "event_id": f"evt_{number}",
            "status": "processing",
            "sequence": number,
            "outputs": (),
            **fields,
        }
        return ReceiveProviderUpdate(msgspec.structs.replace(flagged(running_task()).update, **values), b"{}")

    stored = [await decided(actor, update(number)) for number in (1, 2, 3)]
    assert [[type(row) for row in commit.unit.rows].count(TaskEventRow) for commit in stored] == [1, 1, 0]
    assert stored[2].unit.advances
    late = await decided(actor, update(4, sequence=1))
    assert (late.unit.advances, late.unit.rows) == (False, ())
    done = await decided(actor, update(5, status="succeeded", outputs=flagged(running_task()).update.outputs))
    assert done.unit.advances


async def test_an_unchanged_task_is_confirmed_by_its_newest_version(actor: TaskActor) -> None:
    early = await decided(actor, DecideReview(approve=True))
    assert isinstance(early.reply, Refusal)
    assert early.reply.code == "review_not_open"
    await decided(actor, flagged(running_task()))
    moved = await decided(actor, DecideReview(approve=True))
    again = await decided(actor, DecideReview(approve=True))
    assert again.reply == moved.reply
    for commit in (early, again):
        assert (commit.unit.advances, commit.unit.rows, commit.tells) == (False, (), ())
    first = early.unit.fences[0]
    assert first == Fence("task", "task_1", running_task().version)
    assert again.unit.fences == (Fence("task", "task_1", first.expected + 2),)


async def test_an_ignored_update_is_stored_by_the_newest_version(actor: TaskActor) -> None:
    another_job = msgspec.structs.replace(flagged(running_task()).update, provider_ref="another")
    ignored = await decided(actor, ReceiveProviderUpdate(another_job, b"{}"))
    assert [type(row) for row in ignored.unit.rows] == [TaskEventRow]
    assert (ignored.unit.advances, ignored.unit.fences) == (
        False,
        (Fence("task", "task_1", running_task().version),),
    )


async def test_updates_of_unknown_or_other_providers_tasks_are_refused(actor: TaskActor) -> None:
    async def missing(request_id: str) -> NoReturn:
        raise RowMissing(f"task {request_id}")

    update = flagged(running_task())
    foreign = ReceiveProviderUpdate(msgspec.structs.replace(update.update, provider="other"), b"{}")
    for refusing, command in ((await start_actor(missing), update), (actor, foreign)):
        turn = refusing.on_receive(command)
        refusal = await turn if inspect.isawaitable(turn) else turn
        assert isinstance(refusal, Refusal)
        assert refusal.code == "task_not_found"


@pytest.mark.parametrize(
    ("webhook_url", "expected"), [(None, SystemMessage.PASSIVATE), ("https://x.test/hook", None)]
)
async def test_an_ended_task_is_passivated_unless_it_has_events(
    webhook_url: str | None, expected: SystemMessage | None
) -> None:
    task = running_task()
    request = msgspec.structs.replace(task.request, webhook_url=webhook_url, webhook_events=CHOSEN_BY_DEFAULT)

    async def load(_: str) -> tuple[Task, frozenset[tuple[str, str]]]:
        return msgspec.structs.replace(task, request=request), frozenset()

    actor = await start_actor(load)
    update = msgspec.structs.replace(flagged(task).update, status="failed", outputs=(), moderation=None)
    turn = actor.on_receive(ReceiveProviderUpdate(update, b"{}"))
    reply = await turn if inspect.isawaitable(turn) else turn
    assert isinstance(reply, TaskReply)
    assert reply.task.status == "failed"
    assert actor.actor_inbox.get_system() == expected
