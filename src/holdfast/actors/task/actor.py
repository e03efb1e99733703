"""The task actor: hears everything that happens to one task, and lets the ledger's rules decide what it means.

A step that leaves the money alone is written here, fenced by the task's version. One that settles the hold is
asked of the task's account, whose unit of work carries the task's rows as well: state, money and usage change
in one commit or not at all. What has to be done outside follows the commit, told to the workers.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog

from holdfast.actors.account.messages import SettleTask
from holdfast.actors.runtime.actor import JournaledActor, Reload
from holdfast.actors.runtime.faults import StaleFence
from holdfast.actors.runtime.mailbox import Mailbox
from holdfast.actors.runtime.refs import Directory, TrioActorRef
from holdfast.actors.runtime.turns import Commit, Tell
from holdfast.actors.task.messages import (
    CancelTask,
    DecideReview,
    DropInput,
    ExpireAssets,
    ReceiveProviderUpdate,
    RecordAnnouncement,
    RecordCancel,
    RecordHosting,
    RecordPoll,
    RecordSubmission,
    TaskRef,
    Wake,
)
from holdfast.actors.task.worker_messages import CancelJob, EventsDue, Host, Poll, SlotFreed, Submit
from holdfast.ledger.clock import Now
from holdfast.ledger.ids import new_id
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks import transitions as task_moves
from holdfast.ledger.tasks.decisions import (
    on_assets_announced,
    on_assets_expired,
    on_cancel,
    on_cancel_answered,
    on_input_expired,
    on_review,
    on_wake,
)
from holdfast.ledger.tasks.dispatch import on_submit_failed, on_submitted
from holdfast.ledger.tasks.hosting import on_hosted
from holdfast.ledger.tasks.provider_updates import on_poll, on_update
from holdfast.ledger.tasks.silence import on_silence
from holdfast.ledger.tasks.task import Task, usage_of
from holdfast.ledger.tasks.transitions import HostedOutput, HostingFailure, ProviderTraits, Step
from holdfast.persistence.claims.contents import HEARD_WITHIN_S
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.journal.units import Fence, Unit
from holdfast.persistence.records.outbox import new_event_rows
from holdfast.persistence.records.rows import Row
from holdfast.persistence.records.tasks import (
    AssetsDeletedRow,
    TaskChangedRow,
    TaskEventRow,
    TaskRequestRow,
    UsageChangedRow,
    ended_assets_row,
    new_asset_rows,
)
from holdfast.providers.media.base import Accepted, Ambiguous, Job, NotSent, Rejected
from holdfast.providers.media.health import ProviderHealth

log = structlog.get_logger(__name__)

SETTLE_DEADLINE_S = 30.0
EVENTS_KEPT_MAX = 5_000
"""How many of a provider's events are kept for one task."""


@dataclass(frozen=True, slots=True)
class TaskDependencies:
    """What a task's actor works with: where it asks, where it tells, and what it must know of providers.

    ``now`` tells service time. ``process_id`` is written into the task's row with each step. ``is_submitting`` says
    whether this process is still at work on the submission of an attempt; ``health`` records callbacks, and jobs
    given up without any update.
    """

    accounts: Directory
    dispatcher: TrioActorRef
    desk: TrioActorRef
    hosting: TrioActorRef
    outbox: TrioActorRef
    traits: Callable[[str], ProviderTraits]
    callback_url: Callable[[str], str]
    now: Now
    rng: random.Random
    process_id: str | None = None
    health: Callable[[str], ProviderHealth] = ProviderHealth
    is_submitting: Callable[[str, int], bool] = lambda _request_id, _attempt: False


Load = Callable[[str], Awaitable[tuple[Task, frozenset[tuple[str, str]]]]]
"""Reads a task and the provider events it has heard."""


class TaskActor(JournaledActor):
    """One task."""

    own_fence = "task"

    def __init__(
        self, request_id: str, mailbox: Mailbox, journal: Journal, *, load: Load, world: TaskDependencies
    ) -> None:
        super().__init__(mailbox, journal)
        self._request_id = request_id
        self._load = load
        self._world = world
        self._task: Task
        self._heard: set[tuple[str, str]] = set()

    async def on_start(self) -> None:  # type: ignore[override]  # may await
        """Read the task's row and the events it has heard."""
        self._task, heard = await self._load(self._request_id)
        self._heard = set(heard)

    async def on_receive(self, message: Any) -> Any:
        """Decide one message; what it answers is :class:`TaskRef` once the step stands."""
        return await _HANDLERS[type(message)](self, message)

    # -------------------------------------------------------------------------------------------------- messages

    async def _wake(self, wake: Wake) -> Any:
        task = self._task
        if wake.silence is not None:
            step = on_silence(task, wake.silence, self._world.now(), operation_id=new_id("op"))
            return self._confirm(self._ref()) if step.task is None else await self._take(step)
        step = on_wake(
            task,
            self._world.now(),
            traits=self._world.traits(task.provider),
            operation_id=new_id("op"),
            jitter=self._world.rng.random(),
            recovering=wake.recovering,
            submitting=self._world.is_submitting(task.request_id, task.state.attempt),
        )
        if step.task is None and not task.is_terminal:
            # Who is woken for nothing may remember less than the row says: another process moved it and is gone.
            return self._confirm(self._ref())
        return await self._take(step)

    async def _receive_update(self, command: ReceiveProviderUpdate) -> Any:
        news, at = command.news, self._world.now()
        event = (news.provider, news.event_id)
        self._world.health(news.provider).succeeded("news")
        if event in self._heard:
            # The first telling may still be on its way to the disk; the sender of this one must not outrun it.
            return self._confirm(self._ref())
        step = on_update(self._task, news, at, operation_id=new_id("op"))
        if len(self._heard) >= EVENTS_KEPT_MAX:
            # Somebody who talks without end is listened to, and no longer written down.
            return await self._take(step) if step.verdict == "applied" else self._confirm(self._ref())
        row = TaskEventRow(self._task.account_id, self._request_id, *event, at, step.verdict, command.body)
        taken = await self._take(step, row)
        self._heard.add(event)
        return taken

    async def _record_submission(self, command: RecordSubmission) -> Any:
        task, attempt, at = self._task, command.attempt, self._world.now()
        match command.submission:
            case Accepted(provider_ref=ref):
                return await self._take(on_submitted(task, attempt, ref, at))
            case NotSent(reason=reason, retry_after_s=retry_after_s):
                outcome, code = ("busy" if retry_after_s else "not_sent"), "provider_error"
            case Ambiguous(reason=reason):
                outcome, code = "ambiguous", "provider_error"
            case Rejected(code=code, reason=reason):
                outcome = "rejected"
        step = on_submit_failed(
            task,
            attempt,
            outcome,  # type: ignore[arg-type]  # one of its words
            reason,
            at,
            operation_id=new_id("op"),
            error_code="invalid_upstream_input" if code == "invalid_upstream_input" else "provider_error",
            jitter=self._world.rng.random(),
        )
        return await self._take(step)

    async def _record_poll(self, command: RecordPoll) -> Any:
        step = on_poll(
            self._task,
            command.news,
            self._world.now(),
            attempt=command.attempt,
            traits=self._world.traits(self._task.provider),
            operation_id=new_id("op"),
            jitter=self._world.rng.random(),
        )
        return await self._take(step)

    async def _record_cancel(self, command: RecordCancel) -> Any:
        return await self._take(on_cancel_answered(self._task, command.attempt, command.outcome, self._world.now()))

    async def _record_hosting(self, command: RecordHosting) -> Any:
        at = self._world.now()
        results = self._in_time(command.results, at)
        if command.results and not results:
            # As if never answered: the round is asked for again when its lease is over.
            return self._ref()
        step = on_hosted(
            self._task,
            command.attempt,
            command.round_number,
            results,
            at,
            operation_id=new_id("op"),
            jitter=self._world.rng.random(),
        )
        if step.task is None:
            return await self._take(step)
        rows = new_asset_rows(self._task, step.task, results)
        return await self._take(step, *rows)

    def _in_time(
        self, results: tuple[HostedOutput | HostingFailure, ...], at: datetime
    ) -> tuple[HostedOutput | HostingFailure, ...]:
        """Without outputs that were stored so long ago that they may be swept before their row is written."""
        retention_s = self._task.request.terms.hosting.retention_s
        soonest = at + timedelta(seconds=retention_s - HEARD_WITHIN_S)
        return tuple(each for each in results if isinstance(each, HostingFailure) or each.expires_at >= soonest)

    async def _expire_assets(self, _: ExpireAssets) -> Any:
        gone = AssetsDeletedRow(self._task.account_id, self._request_id)
        step = on_assets_expired(self._task, self._world.now())
        if step.task is not None:
            return await self._take(step, gone)
        return self._confirm(self._ref(), *((gone,) if self._task.is_terminal else ()))

    async def _drop_input(self, _: DropInput) -> Any:
        step = on_input_expired(self._task, self._world.now())
        return self._confirm(self._ref()) if step.task is None else await self._take(step)

    async def _record_announcement(self, command: RecordAnnouncement) -> Any:
        step = on_assets_announced(self._task, command.delivered, self._world.now())
        if step.task is None:
            return self._confirm(self._ref(), *command.rows)
        return await self._take(step, *command.rows)

    async def _cancel(self, _: CancelTask) -> Any:
        step = on_cancel(self._task, self._world.now(), operation_id=new_id("op"))
        return step if isinstance(step, Refusal) else await self._take(step)

    async def _decide_review(self, command: DecideReview) -> Any:
        step = on_review(
            self._task, command.approve, self._world.now(), operation_id=new_id("op"), note=command.note
        )
        if isinstance(step, Step) and step.task is not None:
            return await self._take(step)
        return self._confirm(step if isinstance(step, Refusal) else self._ref())

    # ------------------------------------------------------------------------------------------------------ steps

    async def _take(self, step: Step, *rows: Row) -> Any:
        """Write a step with ``rows`` that belong to it; its effects follow once it stands."""
        before, after = self._task, step.task
        if step.mismatch is not None:
            log.warning(
                "usage report differs from the measure",
                request_id=before.request_id,
                provider=before.provider,
                model=before.model,
                difference=step.mismatch,
            )
        tells = [*self._effects(after or before, step), *self._freed_slot(before, after)]
        if after is None:
            if not rows and not tells:
                return self._ref()
            return Commit(Unit(rows=tuple(rows)), self._ref(), tuple(tells))
        events = new_event_rows(before, after)
        if events:
            tells.append(Tell(self._world.outbox, EventsDue()))
        rows = (TaskChangedRow(after, self._world.process_id), *rows, *events)
        if after.request is not before.request:
            rows = (*rows, TaskRequestRow(self._request_id, after.request))
        usage = usage_of(after)
        if usage != usage_of(before):
            rows = (*rows, UsageChangedRow(usage))
        if after.is_terminal and not before.is_terminal and before.state.output:
            rows = (*rows, ended_assets_row(after))
        if step.settle is None:
            self._task = after
            unit = Unit(fences=(Fence("task", self._request_id, before.version),), rows=rows)
            return Commit(unit, self._ref(), tuple(tells))
        await self._settle_hold(before, after, step.settle, rows)
        self._task = after
        if step.settle.reason == "deadline passed" and after.state.last_news_at is None:
            self._world.health(after.provider).failed("news", "a job was given up without any update")
        for tell in tells:
            tell.to.tell(tell.message)
        return self._ref()

    def _confirm(self, reply: Any, *rows: Row) -> Commit:
        """Answer what leaves the task as it is; only of its newest version, for others may have moved it."""
        fence = Fence("task", self._request_id, self._task.version)
        return Commit(Unit(fences=(fence,), rows=rows, moves=False), reply)

    async def _settle_hold(
        self, before: Task, after: Task, settlement: task_moves.Settlement, rows: tuple[Row, ...]
    ) -> None:
        command = SettleTask(
            self._request_id,
            before.version,
            settlement.hold_id,
            settlement.charge_micro if settlement.kind == "capture" else None,
            settlement.operation_id,
            settlement.reason,
            after.updated_at,
            rows,
        )
        await self.await_durable()
        try:
            reply = await self._world.accounts.ref(before.account_id).ask(command, deadline_s=SETTLE_DEADLINE_S)
        except StaleFence as stale:
            raise Reload(str(stale)) from stale
        if isinstance(reply, Refusal):
            raise Reload(f"the account refused to settle: {reply.code}")

    def _effects(self, task: Task, step: Step) -> list[Tell]:
        """What is to be done outside, as messages to who does it."""
        world, tells = self._world, []
        for effect in step.effects:
            match effect:
                case task_moves.SubmitJob(attempt=attempt):
                    job = Job(
                        task.request_id,
                        attempt,
                        task.request.terms.upstream_model,
                        task.request.input,
                        world.callback_url(task.provider),
                    )
                    tells.append(Tell(world.desk, Submit(task.provider, job)))
                case task_moves.PollJob(attempt=attempt, provider_ref=ref):
                    poll = Poll(task.provider, task.request_id, attempt, ref)
                    tells.append(Tell(world.desk, poll))
                case task_moves.CancelJob(attempt=attempt, provider_ref=ref):
                    cancel = CancelJob(task.provider, task.request_id, attempt, ref)
                    tells.append(Tell(world.desk, cancel))
                case task_moves.HostOutputs(attempt=attempt, round=round_number, outputs=outputs):
                    terms = task.request.terms
                    host = Host(
                        task.request_id,
                        attempt,
                        round_number,
                        task.provider,
                        outputs,
                        terms.hosting,
                        output_timeout_s=terms.deadlines.hosting_s,
                    )
                    tells.append(Tell(world.hosting, host))
        return tells

    def _freed_slot(self, before: Task, after: Task | None) -> list[Tell]:
        """Word to the dispatcher when the task has stopped occupying its provider."""
        if after is None or not _occupies(before) or _occupies(after):
            return []
        freed = SlotFreed(after.provider, after.request_id)
        return [Tell(self._world.dispatcher, freed)]

    def _ref(self) -> TaskRef:
        return TaskRef(self._request_id, self._task.account_id)


def _occupies(task: Task) -> bool:
    """Whether a task's job may be running at its provider; before a review it has ended there."""
    is_open = not task.is_terminal and task.status != "review"
    return is_open and task.state.dispatch != "none" and task.state.hosting.status == "pending"


_HANDLERS: dict[type[Any], Callable[[TaskActor, Any], Awaitable[Any]]] = {
    Wake: TaskActor._wake,
    ReceiveProviderUpdate: TaskActor._receive_update,
    RecordSubmission: TaskActor._record_submission,
    RecordPoll: TaskActor._record_poll,
    RecordCancel: TaskActor._record_cancel,
    RecordHosting: TaskActor._record_hosting,
    RecordAnnouncement: TaskActor._record_announcement,
    CancelTask: TaskActor._cancel,
    DecideReview: TaskActor._decide_review,
    ExpireAssets: TaskActor._expire_assets,
    DropInput: TaskActor._drop_input,
}
