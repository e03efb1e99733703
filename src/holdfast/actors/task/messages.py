"""The commands to a task, and those to the workers of tasks.

A task's are from its owner, from operators and from the workers, and answered by TaskReply. A worker sends no
reply: it tells the task the result.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

import msgspec

from holdfast.actors.runtime.messages import Command
from holdfast.ledger.catalog.terms import Hosting
from holdfast.ledger.tasks.dispatch import Silence
from holdfast.ledger.tasks.provider_update import CancelOutcome, ProviderUpdate
from holdfast.ledger.tasks.task import OutputItem, Task
from holdfast.ledger.tasks.transitions import CancelJob, HostingFailure, HostOutputs, PollJob
from holdfast.persistence.records.rows import OutboxAttemptRow, OutboxOutcomeRow
from holdfast.providers.media.base import Job, Submission


class TaskReply(msgspec.Struct, frozen=True):
    """The command has taken effect, now or earlier. ``task`` is durable in the state that followed it."""

    task: Task


class CancelTask(Command[TaskReply], frozen=True):
    """Cancel the task for its owner."""

    is_idempotent: ClassVar[bool] = True


class DecideReview(Command[TaskReply], frozen=True):
    """An operator's decision on a task in review. Refuses with ``review_not_open``.

    ``approve`` False: the task fails and its hold is released. ``note`` is shown in the task's progress.
    """

    is_idempotent: ClassVar[bool] = True

    approve: bool
    note: str | None = None


class ReceiveProviderUpdate(Command[TaskReply], frozen=True):
    """A verified update from its ``provider``; ``body`` is stored as received.

    Refuses with ``task_not_found`` a task of another provider.
    """

    is_idempotent: ClassVar[bool] = True

    update: ProviderUpdate
    body: bytes


class Wake(Command[TaskReply], frozen=True):
    """Check what is due by the task's row.

    ``recovering``: the process that worked on the task has ended. ``silence``: the task waits for a slot at a
    provider that does not answer; do not submit it.
    """

    recovering: bool = False
    silence: Silence | None = None


class RecordSubmission(Command[TaskReply], frozen=True):
    """The result of submitting a job to the provider."""

    attempt: int
    submission: Submission


class RecordPoll(Command[TaskReply], frozen=True):
    """The provider's response to a poll; None: it does not know the job."""

    attempt: int
    update: ProviderUpdate | None


class RecordCancel(Command[TaskReply], frozen=True):
    """The provider's response to a cancellation."""

    attempt: int
    outcome: CancelOutcome


class RecordHosting(Command[TaskReply], frozen=True):
    """The results of storing outputs in the round ``round_number``.

    The content of a stored output was claimed when its retention began: at its ``expires_at`` less the retention in
    the task's terms.
    """

    attempt: int
    round_number: int
    results: tuple[OutputItem | HostingFailure, ...]


class ExpireAssets(Command[TaskReply], frozen=True):
    """Delete the rows of an ended task's stored outputs: their retention is over."""

    is_idempotent: ClassVar[bool] = True


class DeleteResults(Command[TaskReply], frozen=True):
    """Delete an ended task's results, as its owner wants; what it cost stays. Refused: ``task_not_terminal``."""

    is_idempotent: ClassVar[bool] = True


class DropInput(Command[TaskReply], frozen=True):
    """Delete an ended task's large input: its retention is over."""

    is_idempotent: ClassVar[bool] = True


class RecordAnnouncement(Command[TaskReply], frozen=True):
    """The ``assets ready`` webhook was delivered, or given up. ``rows`` record that in the same commit."""

    delivered: bool
    rows: tuple[OutboxAttemptRow | OutboxOutcomeRow, ...]


TaskCommand: TypeAlias = (
    Wake
    | ReceiveProviderUpdate
    | RecordSubmission
    | RecordPoll
    | RecordCancel
    | RecordHosting
    | RecordAnnouncement
    | CancelTask
    | DecideReview
    | ExpireAssets
    | DeleteResults
    | DropInput
)


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


class JobKnown(Command[None], frozen=True):
    """To the provider caller: the task's row has the job of an attempt, and the provider's name for it."""

    request_id: str
    attempt: int


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
    receiver: str
    account_id: str
    event_id: str
    reason: str | None


class EventsDue(Command[None], frozen=True):
    """To the outbox worker: events for a receiver are due; the ``webhook_url`` of tasks are by the account."""

    receiver: str
