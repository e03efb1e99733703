"""The provider caller: a failing provider does not affect others."""

from __future__ import annotations

from typing import Any

import trio
import trio.testing
from tests.recorded_refs import RecordedRef

from holdfast.actors.runtime.refs import WORKER_MAILBOX_MAX, WorkerRef
from holdfast.actors.task.messages import CallProvider, RecordPoll, RecordSubmission
from holdfast.actors.workers.provider_calls import CALLS_MAX, SEND_WAIT_S, ProviderCaller
from holdfast.ledger.tasks.transitions import CancelJob, PollJob
from holdfast.providers.media.base import Accepted, Job, NotSent
from holdfast.providers.media.health import ProviderHealth


class Tasks:
    """Records the messages to tasks."""

    def __init__(self) -> None:
        self.received: list[tuple[str, Any]] = []

    def ref(self, key: str) -> RecordedRef:
        return RecordedRef(lambda message: self.received.append((key, message)))


class Good:
    cancels = True

    def __init__(self) -> None:
        self.health = ProviderHealth("good")

    async def submit(self, job: Job) -> Accepted:
        return Accepted(job.request_id, "queued")

    async def poll(self, request_id: str, attempt: int, provider_ref: str | None) -> None:
        return None


class Stuck(Good):
    """Never responds."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    async def submit(self, job: Job) -> Accepted:
        self.calls += 1
        await trio.sleep_forever()
        raise AssertionError(job)


class Broken(Good):
    """Raises."""

    async def submit(self, job: Job) -> Accepted:
        raise ZeroDivisionError(job)


class Silent(Good):
    """Accepts jobs, and does not answer polls."""

    async def poll(self, request_id: str, attempt: int, provider_ref: str | None) -> None:
        await trio.sleep_forever()


async def test_repeated_submit_messages_make_one_call(autojump_clock: Any) -> None:
    tasks, stuck = Tasks(), Stuck()
    providers: Any = {"stuck": stuck}
    submits: set[tuple[str, int]] = set()
    ref = WorkerRef("provider-calls")
    caller = ProviderCaller(ref, providers=providers, tasks=tasks, submits=submits)
    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: caller.run(task_status=task_status))
            for _ in range(5):
                for number in range(CALLS_MAX + 1):
                    ref.tell(submit("stuck", f"task_s{number}"))
                await trio.sleep(1)
            assert len(submits) == CALLS_MAX + 1
            assert stuck.calls == CALLS_MAX
            # The last one got no call: it was certainly not sent, and its task is informed.
            await trio.sleep(SEND_WAIT_S)
            [(request_id, message)] = tasks.received
            assert (request_id, message.attempt) == (f"task_s{CALLS_MAX}", 1)
            assert isinstance(message.submission, NotSent)
            assert len(submits) == CALLS_MAX
            nursery.cancel_scope.cancel()
    assert submits == set()


def submit(provider: str, request_id: str) -> CallProvider:
    return CallProvider(provider, Job(request_id, 1, "image-1", {}, "http://127.0.0.1/v2/callback"))


async def test_a_hanging_provider_delays_no_other(autojump_clock: Any) -> None:
    tasks, stuck = Tasks(), Stuck()
    providers: Any = {"good": Good(), "stuck": stuck, "broken": Broken()}
    ref = WorkerRef("provider-calls")
    caller = ProviderCaller(ref, providers=providers, tasks=tasks, submits=set())
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: caller.run(task_status=task_status))
            for number in range(3 * CALLS_MAX):
                ref.tell(submit("stuck", f"task_s{number}"))
            ref.tell(submit("broken", "task_o"))
            ref.tell(submit("good", "task_1"))
            ref.tell(CallProvider("good", PollJob("task_1", 1, "job")))
            ref.tell(CallProvider("unknown", CancelJob("task_1", 1, "job")))
            await trio.sleep(1)
            received = [
                ("task_1", RecordSubmission(1, Accepted("task_1", "queued"))),
                ("task_1", RecordPoll(1, None)),
            ]
            assert sorted(tasks.received, key=str) == sorted(received, key=str)
            assert stuck.calls == CALLS_MAX
            nursery.cancel_scope.cancel()


async def test_polls_that_wait_delay_no_new_task(autojump_clock: Any) -> None:
    tasks = Tasks()
    providers: Any = {"silent": Silent()}
    ref = WorkerRef("provider-calls")
    caller = ProviderCaller(ref, providers=providers, tasks=tasks, submits=set())
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: caller.run(task_status=task_status))
            for number in range(WORKER_MAILBOX_MAX):
                ref.tell(CallProvider("silent", PollJob(f"task_{number}", 1, "job")))
            await trio.testing.wait_all_tasks_blocked()
            ref.tell(submit("silent", "task_new"))
            await trio.testing.wait_all_tasks_blocked()
            assert tasks.received == [("task_new", RecordSubmission(1, Accepted("task_new", "queued")))]
            nursery.cancel_scope.cancel()
