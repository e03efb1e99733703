"""The provider caller: a failing provider does not affect others."""

from __future__ import annotations

from typing import Any

import trio
from tests.recorded_refs import RecordedRef

from holdfast.actors.task.messages import RecordPoll, RecordSubmission
from holdfast.actors.task.worker_messages import CancelJob, Poll, Submit
from holdfast.actors.workers.provider_calls import CALLS_MAX, TURN_S, ProviderCaller
from holdfast.actors.workers.worker import WorkerRef
from holdfast.providers.media.base import Accepted, Job, NotSent
from holdfast.providers.media.health import ProviderHealth


class Tasks:
    """What the tasks are told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def ref(self, key: str) -> RecordedRef:
        return RecordedRef(lambda message: self.told.append((key, message)))


class Good:
    cancels = True

    def __init__(self) -> None:
        self.health = ProviderHealth("good")

    async def submit(self, job: Job) -> Accepted:
        return Accepted(job.request_id, "queued")

    async def poll(self, request_id: str, attempt: int, provider_ref: str | None) -> None:
        return None


class Stuck(Good):
    """Answers nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def submit(self, job: Job) -> Accepted:
        self.asked += 1
        await trio.sleep_forever()
        raise AssertionError(job)


class Odd(Good):
    """Breaks."""

    async def submit(self, job: Job) -> Accepted:
        raise ZeroDivisionError(job)


async def test_repeated_submit_messages_make_one_call(autojump_clock: Any) -> None:
    tasks, stuck = Tasks(), Stuck()
    providers: Any = {"stuck": stuck}
    submits: set[tuple[str, int]] = set()
    post = WorkerRef("desk")
    desk = ProviderCaller(post, providers=providers, tasks=tasks, submits=submits)
    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: desk.run(task_status=task_status))
            for _ in range(5):
                for number in range(CALLS_MAX + 1):
                    post.tell(submit("stuck", f"task_s{number}"))
                await trio.sleep(1)
            assert len(submits) == CALLS_MAX + 1
            assert stuck.asked == CALLS_MAX
            # No call came free for the last one: it has surely not been sent, and its task is told so.
            await trio.sleep(TURN_S)
            [(request_id, heard)] = tasks.told
            assert (request_id, heard.attempt) == (f"task_s{CALLS_MAX}", 1)
            assert isinstance(heard.submission, NotSent)
            assert len(submits) == CALLS_MAX
            nursery.cancel_scope.cancel()
    assert submits == set()


def submit(provider: str, request_id: str) -> Submit:
    return Submit(provider, Job(request_id, 1, "image-1", {}, "http://127.0.0.1/v2/callback"))


async def test_a_hanging_provider_delays_no_other(autojump_clock: Any) -> None:
    tasks, stuck = Tasks(), Stuck()
    providers: Any = {"good": Good(), "stuck": stuck, "odd": Odd()}
    post = WorkerRef("desk")
    desk = ProviderCaller(post, providers=providers, tasks=tasks)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: desk.run(task_status=task_status))
            for number in range(3 * CALLS_MAX):
                post.tell(submit("stuck", f"task_s{number}"))
            post.tell(submit("odd", "task_o"))
            post.tell(submit("good", "task_1"))
            post.tell(Poll("good", "task_1", 1, "job"))
            post.tell(CancelJob("nobody", "task_1", 1, "job"))
            await trio.sleep(1)
            told = [("task_1", RecordSubmission(1, Accepted("task_1", "queued"))), ("task_1", RecordPoll(1, None))]
            assert sorted(tasks.told, key=str) == sorted(told, key=str)
            assert stuck.asked == CALLS_MAX
            nursery.cancel_scope.cancel()
