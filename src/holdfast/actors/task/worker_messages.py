"""Messages to workers. They have no reply; the worker sends the result to the task as a message."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.actors.runtime.messages import Command
from holdfast.ledger.catalog.terms import Hosting
from holdfast.ledger.tasks.provider_update import Output
from holdfast.providers.media.base import Job


@dataclass(frozen=True, slots=True)
class TaskQueued(Command[None]):
    """To the dispatcher: a task waits for one of its provider's places."""

    provider: str
    request_id: str


@dataclass(frozen=True, slots=True)
class SlotFreed(Command[None]):
    """To the dispatcher: the task no longer occupies its provider."""

    provider: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Submit(Command[None]):
    """To the provider desk: hand a job over, and tell the task what came of it."""

    provider: str
    job: Job


@dataclass(frozen=True, slots=True)
class Poll(Command[None]):
    """To the provider desk: ask how a job stands, and tell the task."""

    provider: str
    request_id: str
    attempt: int
    provider_ref: str | None


@dataclass(frozen=True, slots=True)
class Cancel(Command[None]):
    """To the provider desk: ask for a job to be stopped, and tell the task what the provider made of it."""

    provider: str
    request_id: str
    attempt: int
    provider_ref: str


@dataclass(frozen=True, slots=True)
class Host(Command[None]):
    """To the hosting worker: store these outputs, each within ``output_timeout_s``, and tell the task.

    A later round of the same task takes the place of an earlier one that is still under way.
    """

    request_id: str
    attempt: int
    round_number: int
    provider: str
    outputs: tuple[Output, ...]
    hosting: Hosting
    output_timeout_s: float


@dataclass(frozen=True, slots=True)
class EventsDue(Command[None]):
    """To the outbox worker: a commit has made events due."""
