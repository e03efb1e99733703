"""The task actor: receives every event of one task and applies the rules of :mod:`holdfast.ledger.tasks`.

A step that moves no credit is written here, fenced by the task's version. A step that settles the hold is sent to
the task's account, whose unit of work includes the task's rows: state, credit and usage change in one commit or
not at all. Work outside follows the commit, as messages to the workers.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import assert_never

import structlog

from holdfast.actors.account.messages import SettleTask
from holdfast.actors.runtime.faults import StaleFence
from holdfast.actors.runtime.journaled import Commit, JournaledActor, LogEvent, Reload, Tell, Turn
from holdfast.actors.runtime.mailbox import Envelope, Mailbox, SystemMessage
from holdfast.actors.task.dependencies import TaskDependencies
from holdfast.actors.task.messages import (
    CancelTask,
    DecideReview,
    DeleteResults,
    DropInput,
    EventsDue,
    ExpireAssets,
    JobKnown,
    ReceiveProviderUpdate,
    RecordAnnouncement,
    RecordCancel,
    RecordHosting,
    RecordPoll,
    RecordSubmission,
    SlotFreed,
    TaskCommand,
    TaskReply,
    Wake,
)
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.decisions import (
    on_assets_announced,
    on_assets_expired,
    on_cancel,
    on_cancel_answered,
    on_results_deleted,
    on_review,
    on_wake,
)
from holdfast.ledger.tasks.dispatch import RejectionCode, SubmitOutcome, on_silence, on_submit_failed, on_submitted
from holdfast.ledger.tasks.events import kinds_of
from holdfast.ledger.tasks.hosting import on_hosted
from holdfast.ledger.tasks.inputs import on_input_expired
from holdfast.ledger.tasks.provider_updates import on_poll, on_update
from holdfast.ledger.tasks.task import OutputItem, Task
from holdfast.ledger.tasks.transitions import Context, HostingFailure, Step
from holdfast.ledger.values import new_id
from holdfast.persistence.claims.contents import RESULT_CLAIM_USABLE_S
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.journal.units import Fence, Unit
from holdfast.persistence.queries.loading import RowMissing
from holdfast.persistence.records.resulting_rows import (
    ended_assets_row,
    new_asset_rows,
    new_event_rows,
    usage_counted_row,
)
from holdfast.persistence.records.rows import AssetsDeletedRow, TaskChangedRow, TaskEventRow, TaskRow
from holdfast.providers.media.base import Accepted, Ambiguous, NotSent, Rejected, Submission
from holdfast.telemetry import metrics
from holdfast.telemetry.logs import log_event
from holdfast.telemetry.metrics.batched_histogram import BatchedHistogram
from holdfast.telemetry.scrubbing import scrub

log = structlog.get_logger(__name__)

SETTLE_DEADLINE_S = 30.0
EVENTS_STORED_MAX = 5_000
"""How many provider events are stored for one task."""


Load = Callable[[str], Awaitable[tuple[Task, frozenset[tuple[str, str]]]]]
"""Reads a task and the provider events it has received, as (provider, event id)."""


class TaskActor(JournaledActor):
    """One task."""

    kind = "tasks"
    own_fences = frozenset({"task"})

    def __init__(
        self, request_id: str, mailbox: Mailbox, journal: Journal, *, load: Load, deps: TaskDependencies
    ) -> None:
        super().__init__(mailbox, journal)
        self._request_id = request_id
        self._load = load
        self._deps = deps
        self._task: Task
        self._exists = True

    def state(self) -> tuple[int | None, object]:
        """The task's version, and the task."""
        return self._task.version, self._task

    def log_ids(self) -> dict[str, str]:
        """The task's, and its account's once it is read."""
        own = {"task_id": self._request_id}
        return {**own, "account_id": self._task.account_id} if self._exists and self.is_serving else own

    async def on_start(self) -> None:  # type: ignore[override]  # may await
        """Read the task and the events it has received."""
        try:
            self._task, event_ids = await self._load(self._request_id)
        except RowMissing:
            # A provider may name any task.
            self._exists = False
            return
        self._event_ids: set[tuple[str, str]] = set(event_ids)

    def trace_of(self, envelope: Envelope) -> str | None:
        """Return the trace of the request that created the task: all its work belongs to that one."""
        own = self._task.request.traceparent if self._exists else None
        return envelope.traceparent if own is None else own

    @property
    def _reply(self) -> TaskReply:
        return TaskReply(self._task)

    def on_receive(self, message: TaskCommand) -> Turn[TaskReply] | Awaitable[Turn[TaskReply]]:
        """Decide one command. Refuses: 1. a task that does not exist."""
        if self._exists:
            return self._decide(message)
        # It may come with an account from another cell: the next message has its rows read again.
        self.actor_inbox.put_system(SystemMessage.PASSIVATE)
        return self._not_found()

    async def _decide(self, message: TaskCommand) -> Turn[TaskReply]:
        task = self._task
        ctx = Context(self._deps.now(), new_id("op"), self._deps.rng.random())
        match message:
            case Wake():
                return await self._wake(message, ctx)
            case ReceiveProviderUpdate():
                return await self._receive_update(message, ctx)
            case RecordSubmission(attempt=attempt, submission=submission):
                return await self._apply(_on_submission(task, attempt, submission, ctx))
            case RecordPoll(attempt=attempt, update=update):
                traits = self._deps.traits(task.provider)
                return await self._apply(on_poll(task, update, ctx, attempt=attempt, traits=traits))
            case RecordCancel(attempt=attempt, outcome=outcome):
                return await self._apply(on_cancel_answered(task, attempt, outcome, ctx.now))
            case RecordHosting():
                return await self._record_hosting(message, ctx)
            case RecordAnnouncement(delivered=delivered, rows=rows):
                return await self._apply(on_assets_announced(task, delivered, ctx.now), *rows, confirmed=True)
            case CancelTask():
                step = on_cancel(task, ctx)
                return step if isinstance(step, Refusal) else await self._apply(step)
            case DecideReview():
                return await self._decide_review(message, ctx)
            case ExpireAssets() | DeleteResults():
                return await self._delete_assets(message, ctx)
            case DropInput():
                return await self._apply(on_input_expired(task, ctx.now), confirmed=True)
            case _:
                assert_never(message)

    # -------------------------------------------------------------------------------------------------- messages

    async def _wake(self, wake: Wake, ctx: Context) -> Turn[TaskReply]:
        task = self._task
        if wake.silence is not None:
            return await self._apply(on_silence(task, wake.silence, ctx), confirmed=True)
        step = on_wake(
            task,
            ctx,
            traits=self._deps.traits(task.provider),
            recovering=wake.recovering,
            submitting=self._deps.is_submitting(task.request_id, task.state.attempt),
        )
        # If nothing is due by this state, another process may have moved it on: confirm that it is the newest.
        return await self._apply(step, confirmed=not task.is_terminal)

    async def _delete_assets(self, command: ExpireAssets | DeleteResults, ctx: Context) -> Turn[TaskReply]:
        """Refuses: 1. the owner's wish of a task that has not ended."""
        task = self._task
        if isinstance(command, DeleteResults) and not task.is_terminal:
            message = f"The task has not ended: its status is {task.status}."
            return self._confirm(reply=Refusal(code="task_not_terminal", message=message))
        gone = (AssetsDeletedRow(task.account_id, self._request_id),) if task.is_terminal else ()
        decide = on_results_deleted if isinstance(command, DeleteResults) else on_assets_expired
        return await self._apply(decide(task, ctx.now), *gone, confirmed=True)

    async def _decide_review(self, command: DecideReview, ctx: Context) -> Turn[TaskReply]:
        step = on_review(self._task, command.approve, ctx, note=command.note)
        return self._confirm(reply=step) if isinstance(step, Refusal) else await self._apply(step, confirmed=True)

    async def _receive_update(self, command: ReceiveProviderUpdate, ctx: Context) -> Turn[TaskReply]:
        """Refuses: 1. an update from another provider than the task's."""
        update = command.update
        if update.provider != self._task.provider:
            return self._not_found()
        event = (update.provider, update.event_id)
        self._deps.health(update.provider).succeeded("updates")
        if event in self._event_ids:
            # The first delivery may not be durable yet, and the reply to this one must not precede it.
            return self._confirm()
        step = on_update(self._task, update, ctx)
        if len(self._event_ids) >= EVENTS_STORED_MAX:
            # The update is applied, but its event is not stored.
            return await self._apply(step) if step.verdict == "applied" else self._confirm()
        row = TaskEventRow(self._task.account_id, self._request_id, *event, ctx.now, step.verdict, command.body)
        turn = await self._apply(step, row)
        self._event_ids.add(event)
        return turn

    async def _record_hosting(self, command: RecordHosting, ctx: Context) -> Turn[TaskReply]:
        results = self._in_time(command.results, ctx.now)
        if command.results and not results:
            # Treated as lost: the round is repeated when its deadline has passed.
            return self._reply
        step = on_hosted(self._task, command.attempt, command.round_number, results, ctx)
        return await self._apply(step, *(() if step.task is None else new_asset_rows(self._task, step.task)))

    def _in_time(
        self, results: tuple[OutputItem | HostingFailure, ...], at: datetime
    ) -> tuple[OutputItem | HostingFailure, ...]:
        """Drop outputs stored so long ago that they may be swept before their row is written."""
        retention_s = self._task.request.terms.hosting.retention_s
        soonest = at + timedelta(seconds=retention_s - RESULT_CLAIM_USABLE_S)
        return tuple(
            each
            for each in results
            if isinstance(each, HostingFailure) or each.expires_at is None or each.expires_at >= soonest
        )

    # ------------------------------------------------------------------------------------------------------ steps

    async def _apply(self, step: Step, *rows: TaskRow, confirmed: bool = False) -> Turn[TaskReply]:
        """Write a step, with ``rows`` that belong to it. Its effects follow once it is durable.

        ``confirmed``: the reply to one that changes nothing waits until the task's row confirms that.
        """
        before, after = self._task, step.task
        if after is None and confirmed:
            return self._confirm(*rows)
        _log_mismatch(before, step)
        tells = self._deps.tells_of(after or before, step.effects)
        if after is not None and before.occupies_slot and not after.occupies_slot:
            tells.append(Tell(self._deps.dispatcher, SlotFreed(after.provider, after.request_id)))
        if after is None:
            if not rows and not tells:
                return self._reply
            # By another state the rows might not be all: confirm that this one is the newest.
            return self._confirm(*rows, tells=tuple(tells))
        if _is_job_known(after) and not _is_job_known(before):
            tells.append(Tell(self._deps.provider_calls, JobKnown(self._request_id, after.state.attempt)))
        events = new_event_rows(before, after)
        if events:
            tells.append(Tell(self._deps.outbox, EventsDue(before.account_id)))
        changed = TaskChangedRow(
            after,
            self._deps.member_id,
            has_new_request=after.request is not before.request,
            has_new_usage=(after.status, after.state.error) != (before.status, before.state.error),
            kinds=kinds_of(before, after),
        )
        rows = (changed, *rows, *events)
        if after.is_terminal and not before.is_terminal:
            rows = (*rows, usage_counted_row(after))
            if before.state.output:
                rows = (*rows, ended_assets_row(after))
        if step.settle is None:
            self._task = after
            unit = Unit(fences=(Fence("task", self._request_id, before.version),), rows=rows)
            return Commit(unit, self._reply, tuple(tells), log_event_of(before, after))
        await self._settle_hold(SettleTask(self._request_id, before.version, step.settle, rows))
        self._task = after
        _measure_end(after)
        _log_end(before, after)
        if step.settle.reason == "deadline passed" and after.state.last_update_at is None:
            self._deps.health(after.provider).failed("updates", "a job was given up without any update")
        for tell in tells:
            tell.to.tell(tell.message)
        if after.is_terminal and not events:
            # Ended tasks seldom get a message, and with short jobs they would soon be all that is active.
            self.actor_inbox.put_system(SystemMessage.PASSIVATE)
        return self._reply

    def _confirm(
        self, *rows: TaskRow, reply: TaskReply | Refusal | None = None, tells: tuple[Tell, ...] = ()
    ) -> Commit[TaskReply | Refusal]:
        """Send a reply that changes nothing of the task, once its row confirms that the state is the newest."""
        fence = Fence("task", self._request_id, self._task.version)
        return Commit(Unit(fences=(fence,), rows=rows, advances=False), reply or self._reply, tells)

    def _not_found(self) -> Refusal:
        return Refusal(code="task_not_found", message=f"The task '{self._request_id}' does not exist.")

    async def _settle_hold(self, command: SettleTask) -> None:
        await self.await_durable()
        try:
            reply = await self._deps.accounts.ref(self._task.account_id).ask(command, deadline_s=SETTLE_DEADLINE_S)
        except StaleFence as stale:
            raise Reload(str(stale)) from stale
        if isinstance(reply, Refusal):
            raise Reload(f"the account refused to settle: {reply.code}")


def _on_submission(task: Task, attempt: int, submission: Submission, ctx: Context) -> Step:
    code: RejectionCode = "provider_error"
    outcome: SubmitOutcome
    match submission:
        case Accepted(provider_ref=ref):
            return on_submitted(task, attempt, ref, ctx.now)
        case NotSent(reason=reason, retry_after_s=retry_after_s):
            outcome = "busy" if retry_after_s else "not_sent"
        case Ambiguous(reason=reason):
            outcome = "ambiguous"
        case Rejected(code=rejected, reason=reason):
            outcome = "rejected"
            if rejected == "invalid_upstream_input":
                code = "invalid_upstream_input"
    return on_submit_failed(task, attempt, outcome, reason, ctx, error_code=code)


def _is_job_known(task: Task) -> bool:
    """Whether the response to the submission would say nothing new."""
    return task.state.dispatch == "acked" and task.state.provider_ref is not None


def _log_mismatch(task: Task, step: Step) -> None:
    if step.mismatch is not None:
        log.warning(
            "usage report differs from the measured usage",
            task_id=task.request_id,
            account_id=task.account_id,
            provider=task.provider,
            model=task.model,
            difference=step.mismatch,
        )


def _measure_end(task: Task) -> None:
    if task.is_terminal:
        lasted_s = (task.updated_at - task.created_at).total_seconds()
        _lifetime(task.provider, task.status).observe(lasted_s)


def _log_end(before: Task, after: Task) -> None:
    event = log_event_of(before, after)
    if event is not None:
        log_event(event.event, event.fields)


def log_event_of(before: Task, after: Task) -> LogEvent | None:
    """Return the event to log for a change of a task, or None if the change is not logged."""
    if after.is_terminal and not before.is_terminal:
        return _event(
            f"task {after.status}",
            after,
            attempt=after.state.attempt or None,
            charge_micro=after.state.cost_micro,
            latency_ms=after.latency_ms,
            # It may quote a provider's own words.
            error=after.state.error and scrub(after.state.error),
        )
    if after.status == "review" and before.status != "review":
        review = after.state.review
        return _event("task in review", after, reason=None if review is None else review.reason)
    was_acked = before.state.dispatch == "acked" and before.state.attempt == after.state.attempt
    if after.state.dispatch == "acked" and not was_acked:
        return _event("task submitted", after, attempt=after.state.attempt)
    return None


def _event(event: str, task: Task, **fields: str | int | None) -> LogEvent:
    about = {"task_id": task.request_id, "account_id": task.account_id, "provider": task.provider}
    return LogEvent(event, {**about, **fields})


@functools.cache
def _lifetime(provider: str, status: str) -> BatchedHistogram:
    return metrics.TASK_S.labels(provider, status)
