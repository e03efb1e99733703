"""A media task as a value: the request (immutable) and its current state (changed by steps).

The value mirrors a row of the table ``tasks``: ``request`` and ``state`` are its two JSON columns and decode equal
to what was encoded. Only the decisions in this package create new ones.

Invariant: a task is ``succeeded`` exactly when its charge was captured and its outputs can be fetched.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

import msgspec

from holdfast.ledger.catalog.input_schema import InputFile
from holdfast.ledger.catalog.terms import Terms
from holdfast.ledger.tasks.provider_update import Output, ReportedUsage

TaskStatus = Literal["queued", "processing", "review", "succeeded", "failed", "canceled"]
Dispatch = Literal["none", "intent", "acked", "ambiguous"]
ProgressStatus = Literal[
    "queued", "submitted", "processing", "succeeded", "failed", "canceled", "late", "stale"
]  # fmt: skip
Stage = Literal["dispatch", "queue", "render", "encode", "upload", "hosting", "review"]
ErrorCode = Literal[
    "provider_error", "provider_timeout", "provider_unavailable", "content_policy", "submit_ambiguous",
    "hosting_failed", "canceled_by_provider", "invalid_upstream_input", "partial", "usage_mismatch",
    "provider_removed", "deadline_exceeded", "internal",
]  # fmt: skip
ReviewReason = Literal["hosting_failed", "content_flagged", "provider_conflict", "usage_mismatch", "manual"]
ReviewDecision = Literal["capture_blocked", "capture_approved", "release_approved", "released_by_timeout"]
HostingMode = Literal["rehost", "passthrough", "inline"]
HostingStatus = Literal["pending", "transferring", "ready", "failed", "expired", "skipped"]
HostingSource = Literal["provider", "local"]
AssetsReadyState = Literal["pending", "sent", "failed", "skipped"]
EventKind = Literal[
    "task.processing", "task.review", "task.succeeded", "task.failed", "task.canceled", "task.assets_ready"
]  # fmt: skip
WebhookFormat = Literal["prediction"]

TERMINAL: frozenset[TaskStatus] = frozenset({"succeeded", "failed", "canceled"})
"""The statuses that no task leaves; reaching one settles the hold."""


class TaskRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was requested and on which terms, fixed when the task was created.

    ``input`` is parsed JSON, because a JSON column does not preserve the text. It has a column of its own, and is
    empty in a task that was read without it. ``input_dropped``: it was deleted later, the only change made here.
    ``files`` are those that the input names: the provider gets links to them. ``webhook_events`` are the kinds of
    events sent to ``webhook_url``; None is the default set. ``webhook_format`` is the form of their bodies, None an
    event's own. ``traceparent`` is the trace of the request, and ``http_request_id`` its id
    unless that is the trace's digits. ``deadline_s``: how long after its creation the task is canceled.
    """

    input: dict[str, object] = {}
    terms: Terms
    quote_id: str
    api_key_id: str | None
    hold_id: str
    hold_micro: int
    metadata: dict[str, str] = {}
    webhook_url: str | None = None
    webhook_events: tuple[EventKind, ...] | None = None
    webhook_format: WebhookFormat | None = None
    retry_of: str | None = None
    input_dropped: bool = False
    files: tuple[InputFile, ...] = ()
    traceparent: str | None = None
    http_request_id: str | None = None
    deadline_s: int | None = None

    @property
    def end_user(self) -> str | None:
        """Whom the customer says that the task is for; None if the customer does not."""
        return self.metadata.get("end_user") or None

    @property
    def without_input(self) -> TaskRequest:
        """The request, but for its input."""
        return msgspec.structs.replace(self, input={})


class Progress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One progress entry; ``ts`` is when it was recorded.

    ``source_ref`` is ``callback:<event>``, ``poll:<number>`` or ``system:<what>``. ``percent`` is the highest
    percentage reported so far.
    """

    ts: datetime
    status: ProgressStatus
    source_ref: str
    percent: int | None = None
    stage: Stage | None = None
    message: str | None = None
    raw_status: str | None = None


class StatusEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of the public status, with the amount charged by then."""

    status: TaskStatus
    ts: datetime
    cost_micro: int = 0
    error: str | None = None


class OutputItem(Output, frozen=True, kw_only=True, omit_defaults=True):
    """An output that the task delivers: a stored asset (``asset_id``), or the provider's ``url`` passed through.

    A stored asset has no URL here: each read signs one. ``size_claimed`` and ``duration_claimed``: width and
    height, or the duration, were reported by the provider and not measured.
    """

    index: int = msgspec.field(name="position")
    asset_id: str | None = None
    expires_at: datetime | None = None
    size_claimed: bool = False
    duration_claimed: bool = False


class HostingState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of copying the outputs to the service's own storage.

    ``wanted`` are outputs still to be stored, ``lost`` those that cannot be; each one's ``index`` is its position.
    ``expected`` is how many the customer may expect. ``round`` numbers the rounds, so that a result is never
    counted for another round; ``tries`` counts failed rounds; ``deadline_at`` ends the current round and is None
    between rounds.
    """

    mode: HostingMode = "rehost"
    status: HostingStatus = "pending"
    source: HostingSource = "provider"
    final_url_ready: bool = False
    assets_ready_event: AssetsReadyState = "pending"
    error: str | None = None
    round: int = 0
    tries: int = 0
    expected: int = 0
    wanted: tuple[Output, ...] = ()
    lost: tuple[Output, ...] = ()
    deadline_at: datetime | None = None


class Review(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a task's hold and outputs are frozen, and how that was decided."""

    case_id: str
    reason: ReviewReason
    decision: ReviewDecision
    deadline_at: datetime


class TaskState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The current state of a task. All timers are stored as times, so that they survive a restart.

    ``attempt`` numbers the jobs submitted to the provider; updates of earlier ones are stale. ``maybe_sent``: a
    submit of this attempt may have arrived unanswered. ``due_at`` is when the current phase (submit, poll, hosting
    round) is due; None leaves only the deadlines. ``final_poll``: the deadline has passed and one last poll is in
    progress.
    """

    status_history: tuple[StatusEntry, ...]
    attempt: int = 0
    dispatch: Dispatch = "none"
    provider_ref: str | None = None
    submit_tries: int = 0
    maybe_sent: bool = False
    dispatch_started_at: datetime | None = None
    run_deadline_at: datetime | None = None
    due_at: datetime | None = None
    last_update_at: datetime | None = None
    last_sequence: int | None = None
    percent: int | None = None
    poll_count: int = 0
    final_poll: bool = False
    flagged: bool = False
    hosting: HostingState = HostingState()
    output: tuple[OutputItem, ...] = ()
    progress: tuple[Progress, ...] = ()
    usage: ReportedUsage | None = None
    error: str | None = None
    review: Review | None = None
    cost_micro: int = 0
    billable_units: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    operation_id: str | None = None
    run_started_at: datetime | None = None
    provider_done_at: datetime | None = None
    completed_at: datetime | None = None
    canceled_at: datetime | None = None


class Task(msgspec.Struct, frozen=True):
    """A task at one version. ``wake_at`` is when its next timer is due; None exactly if it has ended."""

    account_id: str
    request_id: str
    version: int
    status: TaskStatus
    model: str
    provider: str
    created_at: datetime
    updated_at: datetime
    wake_at: datetime | None
    dispatched: bool
    request: TaskRequest
    state: TaskState

    @property
    def is_terminal(self) -> bool:
        """Whether the task has ended and its hold is settled."""
        return self.status in TERMINAL

    @property
    def occupies_slot(self) -> bool:
        """Whether the task's job may still be running at its provider. Before a review it has ended there.

        ``OCCUPIES`` in :mod:`holdfast.persistence.records.reading` is the same condition in SQL.
        """
        is_open = not self.is_terminal and self.status != "review"
        return is_open and self.state.dispatch != "none" and self.state.hosting.status == "pending"

    @property
    def overall_deadline_at(self) -> datetime:
        """When the task is given up, whatever it waits for; a review has a deadline of its own."""
        end = self.created_at + timedelta(seconds=self.request.terms.deadlines.overall_s)
        return end if self.deadline_at is None else min(end, self.deadline_at)

    @property
    def deadline_at(self) -> datetime | None:
        """When the task is canceled for its caller, in any status; None if no deadline was given."""
        given_s = self.request.deadline_s
        return None if given_s is None else self.created_at + timedelta(seconds=given_s)

    @property
    def ended_at(self) -> datetime | None:
        """When the task ended; None before."""
        return self.state.completed_at or self.state.canceled_at

    @property
    def latency_ms(self) -> int | None:
        """How long the task took from its creation to its end; None before."""
        return between_ms(self.created_at, self.ended_at)


def between_ms(start: datetime | None, end: datetime | None) -> int | None:
    """Return the whole milliseconds between two times, never below zero; None if one is not known."""
    if start is None or end is None:
        return None
    return max(0, (end - start) // timedelta(milliseconds=1))


def accept_task(account_id: str, request_id: str, request: TaskRequest, now: datetime) -> Task:
    """Return a new task, queued and due for dispatch at once, to be written together with its hold."""
    terms = request.terms
    return Task(
        account_id=account_id,
        request_id=request_id,
        version=1,
        status="queued",
        model=terms.model,
        provider=terms.provider,
        created_at=now,
        updated_at=now,
        wake_at=now,
        dispatched=False,
        request=request,
        state=TaskState(
            status_history=(StatusEntry(status="queued", ts=now),),
            due_at=now,
            hosting=HostingState(mode=terms.hosting.mode),
        ),
    )
