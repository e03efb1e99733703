"""Hosting of outputs: rounds, results, and what is charged."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from holdfast.ledger.catalog.terms import Hosting
from holdfast.ledger.tasks.decisions import on_assets_announced, on_assets_expired, on_cancel, on_review, on_wake
from holdfast.ledger.tasks.hosting import on_hosted
from holdfast.ledger.tasks.provider_update import Output, ReportedUsage
from holdfast.ledger.tasks.provider_updates import on_update
from holdfast.ledger.tasks.task import OutputItem, Task
from holdfast.ledger.tasks.transitions import Context, HostingFailure, HostOutputs, ProviderTraits, Step

from .task_steps import MakeTask, MakeUpdate, at, host, lost, stored, task_after


def retryable(position: int) -> HostingFailure:
    return HostingFailure(position=position, message="connection reset", final=False)


def test_all_outputs_stored_captures_the_charge(make_hosting: MakeTask) -> None:
    step = host(
        make_hosting(webhook_url="https://ada.test/h"), *(stored(n, width=512, height=512) for n in range(4))
    )
    task = task_after(step)
    assert (task.status, task.state.error, task.wake_at) == ("succeeded", None, None)
    assert step.settle is not None
    assert (step.settle.kind, step.settle.charge_micro, step.settle.hold_id) == ("capture", 240_000, "hold_1")
    hosting = task.state.hosting
    assert (hosting.status, hosting.final_url_ready, hosting.assets_ready_event) == ("ready", True, "pending")
    assert [(item.index, item.asset_id) for item in task.state.output] == [(n, f"asset_{n}") for n in range(4)]
    history = [(entry.status, entry.cost_micro) for entry in task.state.status_history]
    assert history == [("queued", 0), ("processing", 0), ("succeeded", 240_000)]
    assert (task.state.billable_units, task.state.cost_micro, task.latency_ms) == (4, 240_000, 8000)
    request = task.request
    assert (task.state.operation_id, request.api_key_id, request.terms.modality) == ("op_cap", "key_1", "image")


def test_outputs_may_be_stored_over_several_rounds(make_hosting: MakeTask, traits: ProviderTraits) -> None:
    step = host(make_hosting(), stored(0), retryable(1), stored(2), retryable(3))
    task = task_after(step)
    assert (task.status, step.settle, len(task.state.output)) == ("processing", None, 2)
    assert task.state.hosting.error == "hosting_failed: connection reset"
    assert task.wake_at == at(task, 10)
    again = on_wake(task, Context(at(task, 10), "op_1"), traits=traits)
    assert isinstance(again.effects[0], HostOutputs)
    assert [output.index for output in again.effects[0].outputs] == [1, 3]
    done = host(task_after(again), stored(3), stored(1), seconds=12)
    assert [item.index for item in task_after(done).state.output] == [0, 1, 2, 3]
    assert task_after(done).state.hosting.error is None


def test_lost_outputs_are_not_charged(make_hosting: MakeTask) -> None:
    step = host(make_hosting(), stored(0), stored(1), lost(2), stored(3))
    task = task_after(step)
    assert (task.status, task.state.error) == ("succeeded", "partial: 3 of 4")
    assert (task.state.cost_micro, task.state.billable_units) == (180_000, 3)
    hosting = task.state.hosting
    assert (hosting.status, hosting.error) == ("ready", "hosting_failed: 404 from [url]")


def test_fewer_images_than_ordered_are_a_partial_result(make_hosting: MakeTask) -> None:
    task = task_after(
        host(make_hosting(output_count=3, usage=ReportedUsage(units=4)), *(stored(n) for n in range(3)))
    )
    assert (task.state.error, task.state.cost_micro) == ("partial: 3 of 4", 180_000)


def test_work_above_the_quote_is_charged_the_hold(make_hosting: MakeTask) -> None:
    task = make_hosting(output_count=1, mode="per_second", unit="second", units=4)
    assert task_after(host(task, stored(0, duration_s=12.0))).state.cost_micro == 240_000


@pytest.mark.parametrize(
    ("usage", "measures", "cost_micro"),
    [
        (ReportedUsage(units=2), {"duration_s": 3.0}, 120_000),
        (ReportedUsage(units=2, unit="frame"), {"duration_s": 3.0}, 180_000),
        (ReportedUsage(units=-5), {"duration_s": 2.5}, 180_000),
        (None, {"duration_s": 1.0004}, 60_000),
        (None, {"duration_s": float("nan")}, 240_000),
        (None, {}, 240_000),
    ],
)
def test_the_smaller_of_report_and_measurement_is_charged(
    make_hosting: MakeTask, usage: ReportedUsage | None, measures: dict[str, float], cost_micro: int
) -> None:
    task = make_hosting(output_count=1, usage=usage, mode="per_second", unit="second", units=4)
    assert task_after(host(task, stored(0, **measures))).state.cost_micro == cost_micro


def test_megapixels_are_measured_on_each_output(make_hosting: MakeTask) -> None:
    task = make_hosting(output_count=2, mode="per_megapixel", unit="megapixel", units=9)
    sizes = ({"width": 1000, "height": 1000}, {"width": 1001, "height": 1000})
    assert task_after(host(task, *(stored(n, **size) for n, size in enumerate(sizes)))).state.billable_units == 3


def test_lost_outputs_reduce_a_request_price_in_proportion(make_hosting: MakeTask) -> None:
    task = make_hosting(output_count=4, mode="per_request", unit="request", units=1)
    assert task_after(host(task, stored(0), lost(1), lost(2), lost(3))).state.cost_micro == 15_000


def test_tokens_are_charged_as_reported(make_hosting: MakeTask) -> None:
    usage = ReportedUsage(tokens_in=10, tokens_out=20)
    task = make_hosting(output_count=1, usage=usage, mode="per_token", unit="token", units=20, hold_micro=1_000_000)
    done = task_after(host(task, stored(0)))
    assert (done.state.tokens_in, done.state.tokens_out, done.state.cost_micro) == (10, 20, 50_000)


def test_the_price_of_the_terms_is_charged(make_hosting: MakeTask) -> None:
    task = make_hosting(output_count=4, hold_micro=1_000_000)
    assert task_after(host(task, *(stored(n) for n in range(4)))).state.cost_micro == 240_000


def test_unstorable_outputs_go_to_review_and_lapse(make_hosting: MakeTask, traits: ProviderTraits) -> None:
    step = host(make_hosting(), *(lost(n) for n in range(4)))
    task = task_after(step)
    assert (task.status, step.settle) == ("review", None)
    assert task.state.review is not None
    assert (task.state.review.reason, task.state.review.case_id) == ("hosting_failed", "rev_01")
    assert task.state.error == "hosting_failed: 404 from [url]"
    assert task.wake_at == at(task, 8 + 24 * 3600)
    assert on_wake(task, Context(at(task, 900), "op_r"), traits=traits).verdict == "ignored"
    lapsed = on_wake(task, Context(task.wake_at, "op_r"), traits=traits)
    assert task_after(lapsed).status == "failed"
    assert lapsed.settle is not None
    assert lapsed.settle.kind == "release"
    review = task_after(lapsed).state.review
    assert review is not None
    assert review.decision == "released_by_timeout"


def test_an_unreliable_source_is_tried_five_times(make_hosting: MakeTask, traits: ProviderTraits) -> None:
    task, rounds, seconds = make_hosting(output_count=1, units=1), 0, 6.0
    while task.status == "processing":
        rounds += 1
        task = task_after(host(task, retryable(0), seconds=seconds))
        if task.status == "processing":
            assert task.wake_at is not None
            seconds = (task.wake_at - task.created_at).total_seconds()
            step = on_wake(task, Context(task.wake_at, "op_1"), traits=traits)
            assert [type(effect) for effect in step.effects] == [HostOutputs]
            task = task_after(step)
    assert (rounds, task.status) == (5, "review")


def test_a_store_that_fails_is_retried_until_the_tasks_deadline(
    make_hosting: MakeTask, traits: ProviderTraits
) -> None:
    task, rounds, seconds = make_hosting(output_count=1, units=1), 0, 6.0
    full = HostingFailure(0, "storage: cannot be written at the moment", final=False, by_store=True)
    pauses = []
    while seconds < 20 * 3600:
        rounds += 1
        task = task_after(host(task, full, seconds=seconds))
        assert (task.status, task.state.hosting.tries) == ("processing", 0)
        assert task.wake_at is not None
        pauses.append((task.wake_at - task.updated_at).total_seconds())
        seconds = (task.wake_at - task.created_at).total_seconds()
        task = task_after(on_wake(task, Context(task.wake_at, "op_1"), traits=traits))
    assert rounds > 1000
    assert pauses[:5] == [2, 8, 32, 60, 60]
    assert max(pauses) == 60
    done = task_after(host(task, stored(0), seconds=seconds))
    assert (done.status, done.state.error) == ("succeeded", None)
    late = on_wake(task, Context(task.overall_deadline_at, "op_1"), traits=traits)
    assert task_after(late).status == "review"


def test_results_after_a_rounds_timeout_are_stored_without_another_try(
    make_hosting: MakeTask, traits: ProviderTraits
) -> None:
    task = task_after(
        on_wake(make_hosting(output_count=2), Context(at(make_hosting(), 1205), "op_1"), traits=traits)
    )
    assert (task.state.hosting.tries, task.state.hosting.deadline_at) == (1, None)
    late = task_after(host(task, stored(0), retryable(1), seconds=1206))
    assert (late.state.hosting.tries, late.state.due_at) == (1, task.state.due_at)
    assert [item.index for item in late.state.output] == [0]
    assert [output.index for output in late.state.hosting.wanted] == [1]


def test_the_last_try_delivers_what_is_stored(make_hosting: MakeTask, traits: ProviderTraits) -> None:
    task = task_after(host(make_hosting(output_count=2, units=2), stored(0), retryable(1)))
    for _ in range(4):
        assert task.wake_at is not None
        task = task_after(on_wake(task, Context(task.wake_at, "op_1"), traits=traits))
        task = task_after(
            on_hosted(task, 1, task.state.hosting.round, (retryable(1),), Context(task.updated_at, "op_cap"))
        )
    assert (task.status, task.state.error, task.state.cost_micro) == ("succeeded", "partial: 1 of 2", 60_000)


def test_hosting_cut_short_by_a_crash_is_resumed_and_bounded(
    make_hosting: MakeTask, traits: ProviderTraits
) -> None:
    task = make_hosting(output_count=1, units=1)
    resumed = on_wake(task, Context(at(task, 65), "op_1"), traits=traits)
    assert [type(effect) for effect in resumed.effects] == [HostOutputs]
    task, wakes = task_after(resumed), 1
    while task.status == "processing":
        assert task.wake_at is not None
        task = task_after(on_wake(task, Context(task.wake_at, "op_1"), traits=traits))
        wakes += 1
    assert task.status == "review"
    assert wakes < 50


def test_repeated_results_count_once(make_hosting: MakeTask) -> None:
    task = task_after(host(make_hosting(), stored(0), retryable(1), retryable(2), retryable(3)))
    assert host(task, stored(0), seconds=9) == Step(task=None, verdict="duplicate")
    done = task_after(host(task, stored(1), stored(2), stored(3), seconds=9))
    assert host(done, stored(1), seconds=10) == Step(task=None, verdict="late")
    assert on_hosted(task, 2, 1, (stored(1),), Context(at(task, 9), "op_x")) == Step(task=None, verdict="stale")


def test_a_cancel_while_storing_delivers_nothing(make_hosting: MakeTask) -> None:
    task = task_after(host(make_hosting(), stored(0), retryable(1), retryable(2), retryable(3)))
    step = on_cancel(task, Context(at(task, 9), "op_c"))
    canceled = task_after(step)
    assert isinstance(step, Step)
    assert step.effects == ()
    assert (canceled.status, canceled.state.output, canceled.state.hosting.final_url_ready) == (
        "canceled",
        (),
        False,
    )
    assert host(canceled, stored(1), seconds=10) == Step(task=None, verdict="late")


def test_retention_begins_with_the_delivery_after_a_review(make_hosting: MakeTask, make_update: MakeUpdate) -> None:
    begun = task_after(host(make_hosting(output_count=2, units=2), stored(0), retryable(1)))
    conflict = task_after(on_update(begun, make_update("failed", event_id="evt_9"), Context(at(begun, 9), "op_1")))
    assert (conflict.status, len(conflict.state.output)) == ("review", 1)
    month_s = 30 * 24 * 3600
    approved = task_after(on_review(conflict, True, Context(at(begun, month_s), "op_r")))
    done = task_after(host(approved, stored(1), seconds=month_s + 60))
    retention = timedelta(seconds=done.request.terms.hosting.retention_s)
    assert done.status == "succeeded"
    assert [item.expires_at for item in done.state.output] == [at(begun, month_s + 60) + retention] * 2


@pytest.mark.parametrize(
    ("mode", "measures"),
    [("per_megapixel", {"width": 10**15, "height": 10**15}), ("per_second", {"duration_s": 1e300})],
)
def test_impossible_measurements_are_limited_to_column_ranges(
    make_hosting: MakeTask, mode: str, measures: dict[str, Any]
) -> None:
    task = task_after(host(make_hosting(output_count=1, mode=mode, unit=mode[4:], units=4), stored(0, **measures)))
    assert (task.state.billable_units, task.state.cost_micro) == (10**15, task.request.hold_micro)


def test_the_assets_event_and_the_expiry_are_recorded(make_hosting: MakeTask) -> None:
    task = task_after(host(make_hosting(webhook_url="https://ada.test/h"), *(stored(n) for n in range(4))))
    reported = task_after(on_assets_announced(task, True, at(task, 20)))
    assert reported.state.hosting.assets_ready_event == "sent"
    assert on_assets_announced(reported, False, at(task, 21)).verdict == "ignored"
    gone = task_after(on_assets_expired(reported, at(task, 9999)))
    assert (gone.state.hosting.status, gone.state.hosting.final_url_ready) == ("expired", False)
    assert (gone.status, gone.state.cost_micro) == ("succeeded", 240_000)
    assert on_assets_expired(gone, at(task, 10_000)).verdict == "ignored"


def test_outputs_beyond_the_limit_count_as_lost(make_acked: MakeTask, make_update: MakeUpdate) -> None:
    task = make_acked()
    many = tuple(Output(index=n, url=f"https://studio.test/{n}") for n in range(70))
    task = task_after(on_update(task, make_update("succeeded", outputs=many), Context(at(task, 5), "op_1")))
    done = task_after(host(task, *(stored(n) for n in range(64))))
    assert done.state.error == "partial: 64 of 70"
    assert done.state.cost_micro == 240_000


def test_the_result_of_one_round_does_not_count_for_the_next(
    make_hosting: MakeTask, make_update: MakeUpdate
) -> None:
    """In either order of the approval and the late result of the earlier round."""
    begun = make_hosting(output_count=1, units=1)
    conflict = task_after(on_update(begun, make_update("failed", event_id="evt_9"), Context(at(begun, 9), "op_1")))
    early = on_hosted(conflict, 1, 1, (lost(0),), Context(at(begun, 10), "op_2"))
    approved = on_review(conflict, True, Context(at(begun, 11), "op_r"))
    assert isinstance(approved, Step)
    assert isinstance(approved.effects[0], HostOutputs)
    assert approved.effects[0].round == 2
    late = on_hosted(task_after(approved), 1, 1, (lost(0),), Context(at(begun, 12), "op_2"))
    assert early == late == Step(task=None, verdict="stale")
    done = on_hosted(task_after(approved), 1, 2, (stored(0),), Context(at(begun, 13), "op_3"))
    assert (task_after(done).status, task_after(done).state.cost_micro) == ("succeeded", 60_000)


def test_a_repeated_round_has_its_number_and_the_next_another(
    make_hosting: MakeTask, traits: ProviderTraits
) -> None:
    task = make_hosting(output_count=1, units=1)
    again = on_wake(task, Context(at(task, 70), "op_1"), traits=traits)
    retried = on_wake(
        task_after(host(task_after(again), retryable(0), seconds=71)), Context(at(task, 90), "op_1"), traits=traits
    )
    rounds = [step.effects[0].round for step in (again, retried) if isinstance(step.effects[0], HostOutputs)]
    assert rounds == [1, 2]


def test_a_round_without_a_number_is_round_zero(make_hosting: MakeTask) -> None:
    task = make_hosting(output_count=1, units=1)
    written = msgspec.to_builtins(task.state)
    del written["hosting"]["round"]
    old = msgspec.structs.replace(task, state=msgspec.convert(written, type(task.state)))
    done = on_hosted(old, 1, 0, (stored(0),), Context(at(task, 8), "op_cap"))
    assert task_after(done).status == "succeeded"


class TestMismatch:
    """A provider that reports 60 seconds for a clip of three seconds."""

    USAGE = ReportedUsage(units=60, unit="second")

    def disputed(self, make_hosting: MakeTask) -> Task:
        task = make_hosting(output_count=1, usage=self.USAGE, mode="per_second", unit="second", units=4)
        terms = msgspec.structs.replace(task.request.terms, on_mismatch="review")
        return msgspec.structs.replace(task, request=msgspec.structs.replace(task.request, terms=terms))

    def test_the_smaller_is_charged_and_the_mismatch_recorded(self, make_hosting: MakeTask) -> None:
        task = make_hosting(output_count=1, usage=self.USAGE, mode="per_second", unit="second", units=4)
        step = host(task, stored(0, duration_s=3.0))
        done = task_after(step)
        assert (done.status, done.state.cost_micro, done.state.billable_units) == ("succeeded", 180_000, 3)
        assert step.mismatch == "the provider reported 60 (second); 3 (second) measured"
        assert done.state.progress[-1].message == step.mismatch

    def test_a_mismatch_is_reviewed_if_configured(self, make_hosting: MakeTask) -> None:
        step = host(self.disputed(make_hosting), stored(0, duration_s=3.0))
        task = task_after(step)
        assert (task.status, step.settle, len(task.state.output)) == ("review", None, 1)
        assert task.state.review is not None
        assert task.state.review.reason == "usage_mismatch"
        assert task.state.error == "usage_mismatch: the provider reported 60 (second); 3 (second) measured"
        approved = on_review(task, True, Context(at(task, 20), "op_r"))
        done = task_after(approved)
        assert (done.status, done.state.cost_micro, done.state.error) == ("succeeded", 180_000, None)
        assert (done.state.hosting.status, done.state.hosting.final_url_ready) == ("ready", True)
        refused = task_after(on_review(task, False, Context(at(task, 20), "op_r")))
        assert (refused.status, refused.state.cost_micro, refused.state.output) == ("failed", 0, ())

    def test_a_mismatch_of_passed_through_outputs_is_reviewed(
        self, make_acked: MakeTask, make_update: MakeUpdate
    ) -> None:
        task = make_acked(hosting=Hosting(mode="passthrough"), mode="per_second", unit="second", units=4)
        terms = msgspec.structs.replace(task.request.terms, on_mismatch="review")
        task = msgspec.structs.replace(task, request=msgspec.structs.replace(task.request, terms=terms))
        frozen = task_after(
            on_update(
                task, make_update("succeeded", output_count=1, usage=self.USAGE), Context(at(task, 5), "op_1")
            )
        )
        assert (frozen.status, frozen.state.output, len(frozen.state.hosting.wanted)) == ("review", (), 1)
        done = task_after(on_review(frozen, True, Context(at(task, 9), "op_2")))
        assert (done.status, done.state.cost_micro, len(done.state.output)) == ("succeeded", 240_000, 1)


def test_a_delivered_output_is_stored_by_its_position() -> None:
    assert msgspec.json.encode(OutputItem(index=1, asset_id="a")) == b'{"position":1,"asset_id":"a"}'
