"""The provider desk: every call to a media provider happens here, outside all turns, and its news comes back.

A call that is lost with this process is not lost for the task: its row says what was meant, and the dispatcher
wakes it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import structlog
import trio

from holdfast import metrics
from holdfast.actors.runtime.refs import Directory
from holdfast.actors.task.messages import RecordCancel, RecordPoll, RecordSubmission
from holdfast.actors.task.worker_messages import CancelJob, Poll, Submit
from holdfast.actors.workers.worker import WORKER_MAILBOX_MAX, Worker, WorkerRef
from holdfast.providers.media.base import Ambiguous, MediaProvider, NotSent, PollFault

log = structlog.get_logger(__name__)

CALLS_MAX = 32
"""How many calls to one provider are under way at once: one that does not answer holds up its own tasks only."""
TURN_S = 10.0
"""How long a submission waits for one of those calls; then it has surely not been sent. Shorter than its lease."""

SubmitKey: TypeAlias = tuple[str, int]
"""The task and the attempt that a submission is for."""


class ProviderCaller(Worker):
    """Carries jobs, polls and cancels to the providers, to each a bounded number at a time.

    ``submits`` always holds those submissions that are in its hands, for whoever wants to know.
    """

    def __init__(
        self,
        post: WorkerRef,
        *,
        providers: Mapping[str, MediaProvider],
        tasks: Directory,
        submits: set[SubmitKey] | None = None,
    ) -> None:
        super().__init__(post)
        self._providers = providers
        self._tasks = tasks
        self._submits: set[SubmitKey] = set() if submits is None else submits
        self._calls: dict[str, trio.CapacityLimiter] = {}
        self._errands = 0

    async def on_receive(self, message: Any) -> None:
        """Start an errand, or drop it where too many wait already: the task's row brings it up again."""
        if self._errands >= WORKER_MAILBOX_MAX:
            metrics.DEAD_LETTERS.labels("full").inc()
            log.warning("too many errands wait", message=type(message).__name__)
            return
        if isinstance(message, Submit):
            key = message.job.request_id, message.job.attempt
            if key in self._submits:
                # It was asked for again before the first call was answered: one call is enough.
                return
            self._submits.add(key)
        self._errands += 1
        self.nursery.start_soon(self._run_job, message)

    async def _run_job(self, message: Any) -> None:
        try:
            calls = self._calls.setdefault(message.provider, trio.CapacityLimiter(CALLS_MAX))
            if await self._has_turn(calls):
                try:
                    await self._call(message)
                finally:
                    calls.release()
            elif isinstance(message, Submit):
                none_free = NotSent("earlier calls to the provider are not answered yet")
                self._tasks.ref(message.job.request_id).tell(RecordSubmission(message.job.attempt, none_free))
        except Exception:
            # One provider's odd answer must not end everybody's errands; the task's row brings it up again.
            log.exception("errand broke", message=type(message).__name__)
        finally:
            self._errands -= 1
            if isinstance(message, Submit):
                self._submits.discard((message.job.request_id, message.job.attempt))

    async def _has_turn(self, calls: trio.CapacityLimiter) -> bool:
        with trio.move_on_after(TURN_S):
            await calls.acquire()
            return True
        return False

    async def _call(self, message: Any) -> None:
        if isinstance(message, Submit):
            await self._submit(message)
        elif isinstance(message, Poll):
            await self._poll(message)
        elif isinstance(message, CancelJob):
            await self._cancel(message)

    async def _submit(self, submit: Submit) -> None:
        provider = self._providers.get(submit.provider)
        job = submit.job
        if provider is None:
            submission: Any = NotSent(f"no provider {submit.provider!r} is configured")
        else:
            submission = await provider.submit(job)
            match submission:
                case Ambiguous(reason=reason) | NotSent(reason=reason, answered=False):
                    provider.health.failed("submissions", reason)
                case _:
                    provider.health.succeeded("submissions")
        self._tasks.ref(job.request_id).tell(RecordSubmission(job.attempt, submission))

    async def _poll(self, poll: Poll) -> None:
        provider = self._providers.get(poll.provider)
        if provider is None:
            return
        try:
            news = await provider.poll(poll.request_id, poll.attempt, poll.provider_ref)
        except PollFault as fault:
            # At debug level only: the change of the provider's state is logged once.
            log.debug("poll failed", provider=poll.provider, request_id=poll.request_id, reason=str(fault))
            provider.health.failed("news", str(fault))
            return
        provider.health.succeeded("news")
        self._tasks.ref(poll.request_id).tell(RecordPoll(poll.attempt, news))

    async def _cancel(self, cancel: CancelJob) -> None:
        provider = self._providers.get(cancel.provider)
        if provider is None or not provider.cancels:
            return
        try:
            outcome = await provider.cancel(cancel.request_id, cancel.attempt, cancel.provider_ref)
        except PollFault as fault:
            log.info("cancel failed", provider=cancel.provider, request_id=cancel.request_id, reason=str(fault))
            return
        self._tasks.ref(cancel.request_id).tell(RecordCancel(cancel.attempt, outcome))
