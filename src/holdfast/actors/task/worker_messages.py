"""Messages to workers. They have no reply; a worker tells the task the result."""

from __future__ import annotations

from holdfast.actors.runtime.messages import Command
from holdfast.ledger.catalog.terms import Hosting
from holdfast.ledger.tasks.transitions import CancelJob, HostOutputs, PollJob
from holdfast.providers.media.base import Job


class TaskQueued(Command[None], frozen=True):
    """To the dispatcher: a task waits for a slot at its provider."""

    provider: str
    request_id: str


class SlotFreed(Command[None], frozen=True):
    """To the dispatcher: the task has freed its slot at the provider."""

    provider: str
    request_id: str


class CallProvider(Command[None], frozen=True):
    """To the provider caller: submit, poll or cancel a job of an account's task."""

    provider: str
    call: Job | PollJob | CancelJob
    account_id: str | None = None


class Host(Command[None], frozen=True):
    """To the hosting worker: store the outputs of a round, each within ``output_timeout_s``.

    A later round of the same task replaces an earlier one that is still running.
    """

    provider: str
    effect: HostOutputs
    hosting: Hosting
    output_timeout_s: float
    account_id: str | None = None


class DeliveryEnded(Command[None], frozen=True):
    """To the outbox worker that reports of a host: a delivery to it succeeded, or failed for this reason."""

    host: str
    account_id: str
    event_id: str
    reason: str | None


class EventsDue(Command[None], frozen=True):
    """To the outbox worker: events of an account are due."""

    account_id: str
