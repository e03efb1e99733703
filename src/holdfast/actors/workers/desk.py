"""The provider desk: every call to a media provider happens here, outside all turns, and its news comes back.

A call that is lost with this process is not lost for the task: its row says what was meant, and the dispatcher
wakes it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog
import trio

from holdfast import metrics
from holdfast.actors.task_messages import HearCancel, HearPoll, HearSubmission
from holdfast.actors.turns import Teller
from holdfast.actors.worker_messages import CancelJob, Poll, Submit
from holdfast.actors.workers.worker import POST_MAX, Worker, WorkerPost
from holdfast.providers.media.base import MediaProvider, NotSent, PollFault

log = structlog.get_logger(__name__)

CALLS_MAX = 32
"""How many calls to one provider are under way at once: one that does not answer holds up its own tasks only."""


class ProviderDesk(Worker):
    """Carries jobs, polls and cancels to the providers, to each a bounded number at a time."""

    def __init__(self, post: WorkerPost, *, providers: Mapping[str, MediaProvider], tasks: Teller) -> None:
        super().__init__(post)
        self._providers = providers
        self._tasks = tasks
        self._calls: dict[str, trio.CapacityLimiter] = {}
        self._errands = 0

    async def on_receive(self, message: Any) -> None:
        """Start an errand, or drop it where too many wait already: the task's row brings it up again."""
        if self._errands >= POST_MAX:
            metrics.DEAD_LETTERS.labels("full").inc()
            log.warning("too many errands wait", message=type(message).__name__)
            return
        self._errands += 1
        self.nursery.start_soon(self._errand, message)

    async def _errand(self, message: Any) -> None:
        try:
            async with self._calls.setdefault(message.provider, trio.CapacityLimiter(CALLS_MAX)):
                if isinstance(message, Submit):
                    await self._submit(message)
                elif isinstance(message, Poll):
                    await self._poll(message)
                elif isinstance(message, CancelJob):
                    await self._cancel(message)
        except Exception:
            # One provider's odd answer must not end everybody's errands; the task's row brings it up again.
            log.exception("errand broke", message=type(message).__name__)
        finally:
            self._errands -= 1

    async def _submit(self, submit: Submit) -> None:
        provider = self._providers.get(submit.provider)
        job = submit.job
        if provider is None:
            submission: Any = NotSent(f"no provider {submit.provider!r} is configured")
        else:
            submission = await provider.submit(job)
        self._tasks.tell(job.request_id, HearSubmission(job.attempt, submission))

    async def _poll(self, poll: Poll) -> None:
        provider = self._providers.get(poll.provider)
        if provider is None:
            return
        try:
            news = await provider.poll(poll.request_id, poll.attempt, poll.provider_ref)
        except PollFault as fault:
            log.info("poll failed", provider=poll.provider, request_id=poll.request_id, reason=str(fault))
            return
        self._tasks.tell(poll.request_id, HearPoll(poll.attempt, news))

    async def _cancel(self, cancel: CancelJob) -> None:
        provider = self._providers.get(cancel.provider)
        if provider is None or not provider.cancels:
            return
        try:
            outcome = await provider.cancel(cancel.request_id, cancel.attempt, cancel.provider_ref)
        except PollFault as fault:
            log.info("cancel failed", provider=cancel.provider, request_id=cancel.request_id, reason=str(fault))
            return
        self._tasks.tell(cancel.request_id, HearCancel(cancel.attempt, outcome))
