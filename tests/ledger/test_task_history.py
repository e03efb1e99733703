"""Random histories of a task, checked against invariants that are independent of the decisions' code.

The machine plays everyone around a task: the clock, a provider that answers or does not, a store, the owner, an
operator, and crashes that lose work and reload the task from its JSON. After each step the auditor checks what
must hold for any history; at the end it lets time pass until the task has ended by itself.
"""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.made_requests import make_request, make_terms

from holdfast.ledger.catalog.terms import Hosting, PricingMode, Rate, Units
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.decisions import on_cancel, on_cancel_answered, on_review, on_wake
from holdfast.ledger.tasks.dispatch import SubmitOutcome, on_submit_failed, on_submitted
from holdfast.ledger.tasks.hosting import on_hosted
from holdfast.ledger.tasks.provider_update import Moderation, Output, ProviderUpdate, ReportedUsage, UpdateStatus
from holdfast.ledger.tasks.provider_updates import on_poll, on_update
from holdfast.ledger.tasks.task import OutputItem, Task, accept_task
from holdfast.ledger.tasks.transitions import (
    CancelJob,
    Context,
    Effect,
    HostingFailure,
    HostOutputs,
    PollJob,
    ProviderTraits,
    Step,
    SubmitJob,
)

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
ENDED = ("succeeded", "failed", "canceled")
STATUSES: tuple[UpdateStatus, ...] = ("queued", "failed", "canceled", "processing", "succeeded")
LIKELY: tuple[UpdateStatus, ...] = ("processing", "succeeded")
"""Weighted towards success, so that histories get far."""
DRAIN_MAX_WAKES = 200
# Shrinking a history of forty steps takes minutes; the failing one is short enough to read.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)


class Auditor:
    """Checks each step of one task against invariants that are independent of the state machine."""

    def __init__(self, task: Task, *, one_shot: bool) -> None:
        self.task = task
        self.one_shot = one_shot
        self.settled: list[tuple[str, int]] = []
        self.in_store: set[str] = set()
        self.maybe_sent: set[int] = set()

    def see(self, step: Step, now: datetime) -> None:
        old, new = self.task, step.task
        for effect in step.effects:
            assert effect.attempt <= (new or old).state.attempt
            if isinstance(effect, SubmitJob):
                assert self.one_shot is False or effect.attempt not in self.maybe_sent, "a second job was started"
                self.maybe_sent.add(effect.attempt)
        if new is None:
            assert step.settle is None
            assert step.verdict != "applied"
            return
        assert new.version == old.version + 1
        assert new.updated_at == now
        assert (new.request, new.created_at, new.request_id) == (old.request, old.created_at, old.request_id)
        self._money(step, old, new)
        self._story(old, new)
        for part in (new.request, new.state):
            assert msgspec.json.decode(msgspec.json.encode(part), type=type(part)) == part
        self.task = new

    def _money(self, step: Step, old: Task, new: Task) -> None:
        ends = new.status in ENDED
        assert (step.settle is not None) == (ends and old.status not in ENDED)
        if step.settle is not None:
            self.settled.append((step.settle.kind, step.settle.charge_micro))
            assert step.settle.hold_id == new.request.hold_id
            assert (step.settle.charge_micro, step.settle.operation_id) == (
                new.state.cost_micro,
                new.state.operation_id,
            )
        assert len(self.settled) == (1 if ends else 0)
        captured = self.settled[:1] and self.settled[0][0] == "capture"
        assert bool(captured) == (new.status == "succeeded")
        assert 0 <= new.state.cost_micro <= new.request.hold_micro
        assert captured or new.state.cost_micro == 0
        if new.status == "succeeded":
            self._delivered(new)
        elif ends:
            assert not new.state.output

    def _delivered(self, task: Task) -> None:
        items, hosting = task.state.output, task.state.hosting
        assert items
        positions = [item.index for item in items]
        assert positions == sorted(set(positions))
        if len(items) < hosting.expected:
            assert task.state.error == f"partial: {len(items)} of {hosting.expected}"
        else:
            assert task.state.error is None
        for item in items:
            assert (item.asset_id in self.in_store) if item.url is None else (hosting.mode == "passthrough")

    def _story(self, old: Task, new: Task) -> None:
        if old.status in ENDED:
            assert new.status == old.status
            for name in ("output", "error", "cost_micro", "operation_id", "completed_at", "canceled_at"):
                assert getattr(new.state, name) == getattr(old.state, name)
        before, after = old.state.status_history, new.state.status_history
        assert after[: len(before)] == before
        assert len(after) - len(before) == (new.status != old.status)
        assert (after[-1].status, after[-1].cost_micro) == (new.status, new.state.cost_micro)
        assert (new.wake_at is None) == (new.status in ENDED)
        assert (new.state.percent or 0) >= (old.state.percent or 0)
        percents = [note.percent for note in new.state.progress if note.percent is not None]
        assert percents == sorted(percents)
        assert all(0 <= percent <= 100 for percent in percents)
        assert len(new.state.progress) <= 100


class TaskLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = NOON
        self.todo: list[Effect] = []
        self.numbers = itertools.count(1)
        self.sent_updates: list[ProviderUpdate] = []

    @initialize(
        mode=st.sampled_from(["per_image", "per_second", "per_request", "per_token", "per_megapixel"]),
        units=st.integers(1, 4),
        hosting=st.sampled_from(["rehost", "passthrough"]),
        idempotent=st.booleans(),
        polls=st.booleans(),
        hold_micro=st.sampled_from([0, 30_000, 240_000]),
        begin=st.sampled_from(["queued", "acked", "hosting"]),
        output_count=st.integers(1, 4),
    )
    def accept(
        self,
        *,
        mode: PricingMode,
        units: int,
        hosting: Literal["rehost", "passthrough"],
        idempotent: bool,
        polls: bool,
        hold_micro: int,
        begin: Literal["queued", "acked", "hosting"],
        output_count: int,
    ) -> None:
        self.traits = ProviderTraits(idempotent_submit=idempotent, polls=polls, cancels=True)
        measured = Units(units=units, tokens_in=5, tokens_out=units)
        rate = Rate(mode=mode, unit="u", unit_price="0.06", input_price="0.001", output_price="0.002")
        self.terms = make_terms(
            hold_micro, units=measured, rate=rate, minimum_micro=0, exact=False, hosting=Hosting(mode=hosting)
        )
        task = accept_task("acct_1", "task_01", make_request(self.terms), NOON)
        self.auditor = Auditor(task, one_shot=not idempotent)
        if begin == "queued":
            return
        self.take(self.take_wake(0.0))
        self.todo.clear()
        self.take(on_submitted(self.task, 1, "job-1", self.now))
        if begin == "hosting":
            update = ProviderUpdate(
                source="callback",
                provider="studio",
                event_id="evt_0",
                request_id="task_01",
                attempt=1,
                status="succeeded",
                outputs=tuple(Output(index=n, url=f"https://p.test/{n}") for n in range(output_count)),
            )
            self.take(on_update(self.task, update, Context(self.now, self.operation_id())))

    @property
    def task(self) -> Task:
        return self.auditor.task

    def operation_id(self) -> str:
        return f"op_{next(self.numbers)}"

    def take(self, step: Step | Refusal) -> None:
        if isinstance(step, Refusal):
            return
        self.auditor.see(step, self.now)
        self.todo.extend(step.effects)

    def take_wake(self, jitter: float) -> Step:
        return on_wake(self.task, Context(self.now, self.operation_id(), jitter), traits=self.traits)

    @rule(seconds=st.sampled_from([0.2, 1, 5, 20, 40, 400]))
    def time_passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(jitter=st.floats(0, 1))
    def wake_when_due(self, jitter: float) -> None:
        if self.task.wake_at is not None:
            self.now = max(self.now, self.task.wake_at)
            step = self.take_wake(jitter)
            assert step.task is not None, "a due task must move, or it would be woken for ever"
            assert step.task.wake_at is None or step.task.wake_at > self.now
            self.take(step)

    @rule()
    def wake_too_soon(self) -> None:
        self.take(self.take_wake(0.0))

    @rule()
    def crash_and_reload(self) -> None:
        self.todo.clear()
        packed = msgspec.json.encode(self.task)
        self.auditor.task = msgspec.json.decode(packed, type=Task)

    @precondition(lambda self: self.todo)
    @rule(lose=st.sampled_from([False] * 5 + [True]), data=st.data())
    def do_an_effect(self, lose: bool, data: st.DataObject) -> None:
        effect = self.todo.pop(0)
        if lose:
            return
        match effect:
            case SubmitJob(attempt=attempt):
                self._submit(attempt, data)
            case PollJob(attempt=attempt):
                update = data.draw(st.one_of(st.none(), self._update(attempt=st.just(attempt), source="poll")))
                op = self.operation_id()
                self.take(on_poll(self.task, update, Context(self.now, op), attempt=attempt, traits=self.traits))
            case CancelJob(attempt=attempt):
                self.take(on_cancel_answered(self.task, attempt, "requested", self.now))
            case HostOutputs(attempt=attempt, round=number, outputs=outputs):
                results = [self._store(output.index, data) for output in outputs]
                data.draw(st.randoms(use_true_random=False)).shuffle(results)
                self._hosted(attempt, number, tuple(results))
                if data.draw(st.booleans()):
                    self._hosted(attempt, number, tuple(results))

    def _submit(self, attempt: int, data: st.DataObject) -> None:
        outcomes: list[SubmitOutcome | None] = [None, None, None, None, "not_sent", "busy", "ambiguous", "rejected"]
        answer = data.draw(st.sampled_from(outcomes))
        if answer is None:
            self.take(on_submitted(self.task, attempt, f"job-{attempt}", self.now))
            return
        if answer in {"not_sent", "busy"}:
            self.auditor.maybe_sent.discard(attempt)
        op = self.operation_id()
        self.take(on_submit_failed(self.task, attempt, answer, "x", Context(self.now, op)))

    def _store(self, position: int, data: st.DataObject) -> OutputItem | HostingFailure:
        fate = data.draw(st.sampled_from(["stored"] * 6 + ["retryable", "lost"]))
        if fate != "stored":
            return HostingFailure(position=position, message="x", final=fate == "lost")
        asset_id = f"asset_{next(self.numbers)}"
        self.auditor.in_store.add(asset_id)
        return OutputItem(
            index=position,
            asset_id=asset_id,
            sha256="ab",
            bytes=9,
            content_type="image/png",
            expires_at=self.now,
            width=data.draw(st.sampled_from([None, 100, 2000])),
            height=1000,
            duration_s=data.draw(st.sampled_from([None, 0.5, 3.2])),
        )

    def _hosted(self, attempt: int, number: int, results: tuple[OutputItem | HostingFailure, ...]) -> None:
        self.take(on_hosted(self.task, attempt, number, results, Context(self.now, self.operation_id())))

    def _update(
        self, *, attempt: st.SearchStrategy[int], source: Literal["callback", "poll"]
    ) -> st.SearchStrategy[ProviderUpdate]:
        outputs = st.lists(
            st.builds(Output, index=st.integers(0, 3), url=st.sampled_from(["https://p.test/x"] * 8 + ["ftp://p"])),
            min_size=1,
            max_size=4,
        ).map(tuple) | st.just(())
        return st.builds(
            ProviderUpdate,
            source=st.just(source),
            provider=st.sampled_from(["studio"] * 9 + ["other"]),
            event_id=st.builds(lambda: f"evt_{next(self.numbers)}"),
            request_id=st.just("task_01"),
            attempt=attempt,
            status=st.sampled_from(STATUSES + LIKELY * 5),
            provider_ref=st.sampled_from([None, "job-x"]),
            sequence=st.one_of(st.none(), st.integers(0, 9)),
            percent=st.one_of(st.none(), st.integers(-5, 120)),
            stage=st.sampled_from([None, "render", "encode", "?"]),
            message=st.sampled_from([None, "frame 1", "bad \x00 https://x.test"]),
            outputs=outputs,
            usage=st.one_of(st.none(), st.builds(ReportedUsage, units=st.integers(-1, 10**20))),
            moderation=st.sampled_from([None] * 8 + [Moderation(flagged=True), Moderation(flagged=False)]),
        )

    @rule(data=st.data())
    def a_callback_comes(self, data: st.DataObject) -> None:
        current = self.task.state.attempt
        attempts = st.sampled_from([current] * 6 + [max(0, current - 1), current + 1])
        update = data.draw(self._update(attempt=attempts, source="callback"))
        self.sent_updates.append(update)
        self.take(on_update(self.task, update, Context(self.now, self.operation_id())))

    @precondition(lambda self: self.sent_updates)
    @rule(data=st.data())
    def a_callback_comes_again(self, data: st.DataObject) -> None:
        update = data.draw(st.sampled_from(self.sent_updates))
        self.take(on_update(self.task, update, Context(self.now, self.operation_id())))

    @rule(certain=st.sampled_from([False] * 5 + [True]))
    def the_owner_cancels(self, certain: bool) -> None:
        if certain:
            self.take(on_cancel(self.task, Context(self.now, self.operation_id())))

    @precondition(lambda self: self.task.status == "review")
    @rule(approve=st.booleans())
    def an_operator_decides(self, approve: bool) -> None:
        self.take(on_review(self.task, approve, Context(self.now, self.operation_id())))

    def teardown(self) -> None:
        if not hasattr(self, "auditor"):
            return
        for _ in range(DRAIN_MAX_WAKES):
            if self.task.wake_at is None:
                break
            self.wake_when_due(0.5)
        assert self.task.status in ENDED
        assert len(self.auditor.settled) == 1


TestTaskLife: Any = TaskLife.TestCase
TestTaskLife.settings = settings(max_examples=30, stateful_step_count=40, deadline=None, phases=PHASES)


@pytest.mark.slow
class TestManyTaskLives(TestTaskLife):  # type: ignore[misc]  # the machine's test case is made at run time
    """The same with more examples."""

    settings = settings(max_examples=150, stateful_step_count=40, deadline=None, phases=PHASES)
