"""The provider caller: a failing provider does not affect others."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from tests.recorded_refs import RecordedRef

from holdfast.actors.runtime.refs import WORKER_MAILBOX_MAX, WorkerRef
from holdfast.actors.task.messages import CallProvider, JobKnown, RecordPoll, RecordSubmission
from holdfast.actors.workers.provider_calls import (
    ACCEPTED_WAIT_S,
    CALLS_MAX,
    SEND_WAIT_S,
    ProviderCaller,
    ProviderCallerRef,
)
from holdfast.ledger.tasks.transitions import CancelJob, PollJob
from holdfast.providers.media.base import Accepted, Job, NotSent
from holdfast.providers.media.health import ProviderHealth
from holdfast.telemetry.traces import traceparent, within_trace

TRACE = f"00-{'a' * 32}-{'b' * 16}-00"


class Tasks:
    """Records the messages to tasks."""

    def __init__(self) -> None:
        self.received: list[tuple[str, Any]] = []
        self.traces: list[str | None] = []

    def ref(self, key: str) -> RecordedRef:
        return RecordedRef(partial(self.receive, key))

    def receive(self, key: str, message: object) -> None:
        self.received.append((key, message))
        self.traces.append(traceparent.get())


class Good:
    cancels = True
    idempotent_submit = False

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


class Idempotent(Good):
    """Takes a job any number of times."""

    idempotent_submit = True


@dataclass
class Calls:
    """A running caller's address, and what it changes."""

    address: ProviderCallerRef
    tasks: Tasks
    submits: set[tuple[str, int]]


@pytest.fixture
async def calls(mock_clock: trio.testing.MockClock, nursery: trio.Nursery) -> Calls:
    tasks, submits = Tasks(), set[tuple[str, int]]()
    providers: Any = {"idempotent": Idempotent(), "good": Good()}
    ref = WorkerRef("provider-calls")
    caller = ProviderCaller(ref, providers=providers, tasks=tasks, submits=submits)
    await nursery.start(lambda task_status: caller.run(task_status=task_status))
    return Calls(ProviderCallerRef(ref, submits), tasks, submits)


def recorded(request_id: str) -> tuple[str, RecordSubmission]:
    return request_id, RecordSubmission(1, Accepted(request_id, "queued"))


async def test_an_acceptance_is_recorded_unless_an_update_says_it(
    calls: Calls, mock_clock: trio.testing.MockClock
) -> None:
    with within_trace(TRACE):
        for number in (1, 2):
            calls.address.tell(submit("idempotent", f"task_{number}"))
        await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(ACCEPTED_WAIT_S * 0.9)
    calls.address.tell(submit("idempotent", "task_3"))
    await trio.testing.wait_all_tasks_blocked()
    assert calls.tasks.received == []
    assert calls.submits == {("task_1", 1), ("task_2", 1), ("task_3", 1)}
    calls.address.tell(JobKnown("task_1", 1))
    mock_clock.jump(ACCEPTED_WAIT_S * 0.1)
    await trio.testing.wait_all_tasks_blocked()
    assert calls.tasks.received == [recorded("task_2")]
    assert calls.tasks.traces == [TRACE]
    assert calls.submits == {("task_3", 1)}
    mock_clock.jump(ACCEPTED_WAIT_S)
    await trio.testing.wait_all_tasks_blocked()
    assert calls.tasks.received == [recorded("task_2"), recorded("task_3")]
    assert calls.submits == set()


async def test_an_acceptance_that_no_repeat_would_find_is_recorded_at_once(calls: Calls) -> None:
    calls.address.tell(submit("good", "task_1"))
    await trio.testing.wait_all_tasks_blocked()
    assert calls.tasks.received == [recorded("task_1")]
    assert calls.submits == set()


@pytest.mark.parametrize("ends", ["stops", "crashes"])
@pytest.mark.usefixtures("mock_clock")
async def test_acceptances_are_recorded_when_the_caller_ends(ends: str) -> None:
    tasks, submits = Tasks(), set[tuple[str, int]]()
    ref = WorkerRef("provider-calls")
    providers: Any = {"idempotent": Idempotent()}
    caller = ProviderCaller(ref, providers=providers, tasks=tasks, submits=submits)
    crash = pytest.RaisesGroup(AssertionError, flatten_subgroups=True)
    with crash if ends == "crashes" else nullcontext():
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: caller.run(task_status=task_status))
            ref.tell(submit("idempotent", "task_1"))
            await trio.testing.wait_all_tasks_blocked()
            assert tasks.received == []
            if ends == "stops":
                await caller.stop()
            else:
                # What it does not expect ends it.
                ref.tell(JobKnown("task_2", 1))
    assert tasks.received == [recorded("task_1")]
    assert submits == set()


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
