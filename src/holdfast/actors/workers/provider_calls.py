"""The provider caller: makes all calls to media providers, outside actor turns, and reports their results.

A call that is lost with this process is repeated: the task's row records the intent, and the dispatcher wakes the
task again.

A provider that ends a job at once sends its update together with the response to the submission, and the update
says all that the response says. So the acceptance of a submission that may be repeated is recorded a moment later,
and not at all if the task has learned of it from an update.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import structlog
import trio
from structlog.contextvars import bind_contextvars

from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import WORKER_MAILBOX_MAX, Directory, TellRef, WorkerRef
from holdfast.actors.task.messages import CallProvider, JobKnown, RecordCancel, RecordPoll, RecordSubmission
from holdfast.actors.workers.worker import Worker
from holdfast.ledger.tasks.transitions import CancelJob, PollJob
from holdfast.providers.media.base import Accepted, Ambiguous, Job, JobCallFault, MediaProvider, NotSent, Submission
from holdfast.providers.media.client import CONNECTIONS_MAX_COUNT
from holdfast.telemetry import metrics
from holdfast.telemetry.traces import traceparent, within_trace

log = structlog.get_logger(__name__)

CALLS_MAX = CONNECTIONS_MAX_COUNT // 2
"""How many polls of one provider run at once, and how many other calls beside them.

So a provider that hangs delays only its own tasks, and many polls, as after a restart, delay no submission.
"""
SEND_WAIT_S = 10.0
"""How long a call waits until it may be sent. Shorter than a submission's lease."""

ACCEPTED_WAIT_S: Final = 0.1
"""How long an accepted submission at least waits for an update until it is recorded; at most twice as long."""

SubmitKey: TypeAlias = tuple[str, int]
"""The task and the attempt that a submission is for."""


class ProviderCallerRef:
    """The address of the provider caller. It forgets at once which submissions need not be recorded any more."""

    def __init__(self, caller: TellRef, submits: set[SubmitKey]) -> None:
        self._caller = caller
        self._submits = submits

    def tell(self, message: Command[object]) -> None:
        """Send a message."""
        if isinstance(message, JobKnown):
            self._submits.discard((message.request_id, message.attempt))
        else:
            self._caller.tell(message)


class _Accepted(NamedTuple):
    """A submission that was accepted at a time (trio's clock), in the trace of its call."""

    submission: Accepted
    at: float
    trace: str | None


class ProviderCaller(Worker):
    """Sends submissions, polls and cancels to the providers, a bounded number at a time to each.

    ``submits`` holds the submissions whose outcomes their tasks do not know yet; task actors read it.
    """

    kind = "provider-calls"

    def __init__(
        self,
        ref: WorkerRef,
        *,
        providers: Mapping[str, MediaProvider],
        tasks: Directory,
        submits: set[SubmitKey],
    ) -> None:
        super().__init__(ref)
        self._providers = providers
        self._tasks = tasks
        self._submits = submits
        self._free = defaultdict[tuple[str, bool], trio.Semaphore](partial(trio.Semaphore, CALLS_MAX))
        # The calls that are waiting or running: polls (True) apart from the others, as in the semaphores' keys.
        self._unfinished = Counter[bool]()
        # Those that wait to be recorded, the oldest first.
        self._accepted: dict[SubmitKey, _Accepted] = {}
        self._any_accepted = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Make calls until stopped. However it ends, what was accepted is recorded."""
        try:
            await super().run(task_status=task_status)
        finally:
            self._record(until=math.inf)

    def background_loops(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the loop that records accepted submissions."""
        return (self._record_accepted,)

    def on_receive(self, message: object) -> None:
        """Start a call, or drop it if too many are unfinished: the task's row makes it due again."""
        assert isinstance(message, CallProvider)
        call = message.call
        is_poll = isinstance(call, PollJob)
        if self._unfinished[is_poll] >= WORKER_MAILBOX_MAX:
            metrics.DEAD_LETTERS.labels("full").inc()
            log.warning("too many provider calls wait", call=type(call).__name__)
            return
        if isinstance(call, Job):
            key = call.request_id, call.attempt
            if key in self._submits:
                # Requested again before the first call was answered: one call is enough.
                return
            self._submits.add(key)
        self._unfinished[is_poll] += 1
        self.nursery.start_soon(self._run, message.provider, message.account_id, call)

    async def _run(self, name: str, account_id: str | None, call: Job | PollJob | CancelJob) -> None:
        # For all lines of this trio task, also those of the provider's adapter.
        bind_contextvars(task_id=call.request_id, account_id=account_id, provider=name)
        is_poll = isinstance(call, PollJob)
        try:
            free = self._free[name, is_poll]
            if await _acquire(free):
                try:
                    await self._call(name, call)
                finally:
                    free.release()
            elif isinstance(call, Job):
                not_sent = NotSent("earlier calls to the provider are not answered yet")
                self._tasks.ref(call.request_id).tell(RecordSubmission(call.attempt, not_sent))
        except Exception:
            # A defect in one provider's adapter must not end all calls; the task's row makes this one due again.
            log.exception("provider call failed", call=type(call).__name__)
        finally:
            self._unfinished[is_poll] -= 1
            if isinstance(call, Job) and (key := (call.request_id, call.attempt)) not in self._accepted:
                self._submits.discard(key)

    async def _record_accepted(self) -> None:
        while True:
            await self._any_accepted.wait()
            self._any_accepted = trio.Event()
            while self._accepted:
                await trio.sleep(ACCEPTED_WAIT_S)
                self._record(until=trio.current_time() - ACCEPTED_WAIT_S)

    def _record(self, *, until: float) -> None:
        """Tell the tasks of submissions accepted ``until`` then, unless they have learned it from an update."""
        while self._accepted:
            key, (submission, at, trace) = next(iter(self._accepted.items()))
            if at > until:
                return
            del self._accepted[key]
            if key in self._submits:
                self._submits.remove(key)
                with within_trace(trace):
                    self._tasks.ref(key[0]).tell(RecordSubmission(key[1], submission))

    async def _call(self, name: str, call: Job | PollJob | CancelJob) -> None:
        """Make a call and tell the task its result. A poll or cancel that has no provider is dropped."""
        provider = self._providers.get(name)
        match call:
            case Job():
                if provider is None:
                    submission: Submission = NotSent(f"no provider {name!r} is configured")
                else:
                    submission = await _submit(provider, call)
                    if provider.idempotent_submit and isinstance(submission, Accepted):
                        accepted = _Accepted(submission, trio.current_time(), traceparent.get())
                        self._accepted[call.request_id, call.attempt] = accepted
                        self._any_accepted.set()
                        return
                self._tasks.ref(call.request_id).tell(RecordSubmission(call.attempt, submission))
            case PollJob() if provider is not None:
                await self._poll(provider, call)
            case CancelJob() if provider is not None and provider.cancels:
                await self._cancel(provider, call)

    async def _poll(self, provider: MediaProvider, poll: PollJob) -> None:
        try:
            update = await provider.poll(poll.request_id, poll.attempt, poll.provider_ref)
        except JobCallFault as fault:
            # At debug level only: the change of the provider's state is logged once.
            log.debug("poll failed", reason=str(fault))
            provider.health.failed("updates", str(fault))
            return
        provider.health.succeeded("updates")
        self._tasks.ref(poll.request_id).tell(RecordPoll(poll.attempt, update))

    async def _cancel(self, provider: MediaProvider, cancel: CancelJob) -> None:
        try:
            outcome = await provider.cancel(cancel.request_id, cancel.attempt, cancel.provider_ref)
        except JobCallFault as fault:
            log.info("cancel failed", reason=str(fault))
            return
        self._tasks.ref(cancel.request_id).tell(RecordCancel(cancel.attempt, outcome))


async def _acquire(free: trio.Semaphore) -> bool:
    try:
        free.acquire_nowait()
    except trio.WouldBlock:
        with trio.move_on_after(SEND_WAIT_S) as waiting:
            await free.acquire()
        return not waiting.cancelled_caught
    return True


async def _submit(provider: MediaProvider, job: Job) -> Submission:
    submission = await provider.submit(job)
    match submission:
        case Ambiguous(reason=reason) | NotSent(reason=reason, answered=False):
            provider.health.failed("submissions", reason)
        case _:
            provider.health.succeeded("submissions")
    return submission
