"""What is asked of a task, and what it is told of its job. Every one is answered :class:`TaskRef` or refused."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.actors.runtime.messages import Command
from holdfast.ledger.tasks.provider_update import ProviderUpdate
from holdfast.ledger.tasks.silence import Silence
from holdfast.ledger.tasks.transitions import HostedOutput, HostingFailure
from holdfast.persistence.records.rows import Row
from holdfast.providers.media.base import CancelOutcome, Submission


@dataclass(frozen=True, slots=True)
class TaskRef:
    """The command took effect, or had before; the task's row tells the rest."""

    request_id: str
    account_id: str


@dataclass(frozen=True, slots=True)
class CancelTask(Command[TaskRef]):
    """Cancel by the owner. Reply: :class:`TaskRef` once it stands as canceled, or a Refusal."""


@dataclass(frozen=True, slots=True)
class DecideReview(Command[TaskRef]):
    """An operator's word on a task in review. Reply: :class:`TaskRef`, or a Refusal ``review_not_open``.

    ``approve`` False: the task fails and its hold is released. ``note`` is told in the task's progress.
    """

    approve: bool
    note: str | None = None


@dataclass(frozen=True, slots=True)
class ReceiveProviderUpdate(Command[TaskRef]):
    """A provider's verified news of a task; ``body`` is kept as received. Reply: :class:`TaskRef`."""

    news: ProviderUpdate
    body: bytes


@dataclass(frozen=True, slots=True)
class Wake(Command[TaskRef]):
    """Something may be due: look. The task's row says what.

    ``recovering``: an earlier life of this process, or another process, was at work on it and is gone.
    ``silence``: the task waits for a place at a provider that does not answer; it is not to be submitted.
    """

    recovering: bool = False
    silence: Silence | None = None


@dataclass(frozen=True, slots=True)
class RecordSubmission(Command[TaskRef]):
    """What came of handing a job to its provider."""

    attempt: int
    submission: Submission


@dataclass(frozen=True, slots=True)
class RecordPoll(Command[TaskRef]):
    """What a provider answered when polled; None: it does not know the job."""

    attempt: int
    news: ProviderUpdate | None


@dataclass(frozen=True, slots=True)
class RecordCancel(Command[TaskRef]):
    """What a provider made of a cancel."""

    attempt: int
    outcome: CancelOutcome


@dataclass(frozen=True, slots=True)
class RecordHosting(Command[TaskRef]):
    """How a round of storing outputs went; ``round_number`` is the one it was asked for under.

    Each stored output was claimed at its ``expires_at`` less the retention its terms promise.
    """

    attempt: int
    round_number: int
    results: tuple[HostedOutput | HostingFailure, ...]


@dataclass(frozen=True, slots=True)
class ExpireAssets(Command[TaskRef]):
    """The time of an ended task's stored outputs is over. Reply: :class:`TaskRef` once their rows are gone."""


@dataclass(frozen=True, slots=True)
class DropInput(Command[TaskRef]):
    """The time of an ended task's large input is over. Reply: :class:`TaskRef` once it has gone."""


@dataclass(frozen=True, slots=True)
class RecordAnnouncement(Command[TaskRef]):
    """The ``assets ready`` webhook was delivered, or given up. ``rows`` record it, in the same commit."""

    delivered: bool
    rows: tuple[Row, ...]
