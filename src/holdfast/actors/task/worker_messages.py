"""Messages to workers. They have no reply; a worker tells the task the result."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.actors.runtime.messages import Command
from holdfast.ledger.catalog.terms import Hosting
from holdfast.ledger.tasks.transitions import CancelJob, HostOutputs, PollJob
from holdfast.providers.media.base import Job


@dataclass(frozen=True, slots=True)
class TaskQueued(Command[None]):
    """To the dispatcher: a task waits for a slot at its provider."""

    provider: str
    request_id: str


@dataclass(frozen=True, slots=True)
class SlotFreed(Command[None]):
    """To the dispatcher: the task has freed its slot at the provider."""

    provider: str
    request_id: str


@dataclass(frozen=True, slots=True)
class CallProvider(Command[None]):
    """To the provider caller: submit, poll or cancel a job of an account's task."""

    provider: str
    call: Job | PollJob | CancelJob
    account_id: str | None = None


@dataclass(frozen=True, slots=True)
class Host(Command[None]):
    """To the hosting worker: store the outputs of a round, each within ``output_timeout_s``.

    A later round of the same task replaces an earlier one that is still running.
    """

    provider: str
    effect: HostOutputs
    hosting: Hosting
    output_timeout_s: float
    account_id: str | None = None


@dataclass(frozen=True, slots=True)
class EventsDue(Command[None]):
    """To the outbox worker: events are due."""
