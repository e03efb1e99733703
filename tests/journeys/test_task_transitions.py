"""Every row of the table of task transitions, over real HTTP; hold and usage are checked at each step.

Each scenario is one row, or one way into it. All run concurrently at one service.
"""

from __future__ import annotations

import threading
from decimal import Decimal

import pytest
import trio
from tests.clients import Totals, code_of, ok

from .conftest import NewCustomer
from .scripted_provider import (
    BRIEF,
    CLIP,
    LINK,
    NARROW,
    NARROW_NAME,
    PICTURE,
    TAKEN,
    Script,
    ScriptedProvider,
    is_file,
    says,
    signed,
    waits,
)
from .service_process import Service
from .task_scenarios import CREDIT, Scenario, TaskRun, check_nothing_is_open, run_scenarios

ELSEWHERE = "https://results.example/picture.png"
"""Not fetched: it is passed on."""


# ------------------------------------------------------------------------------------- accepted, queued, running


async def created(run: TaskRun) -> None:
    """none → create → queued: the hold is open, the usage log has an entry at cost 0."""
    gate = threading.Event()
    run.gates.append(gate)
    await run.create(script=Script(put=waits(gate, TAKEN)), n=2)
    assert run.hold == 2
    await run.check("queued")
    gate.set()
    await run.wait_submitted()
    await run.cancel()


async def retried(run: TaskRun) -> None:
    """An ended task → retry → a new one, queued, with its own hold; the first is unchanged."""
    await run.create(n=2)
    await run.wait_submitted()
    await run.send_update("failed", error={"message": "no"})
    first = await run.check("queued", "failed", error="provider_error: no", hosting="skipped")
    again = ok(await run.customer.as_key("POST", f"/v2/task/{run.request_id}/retry"))
    assert (again["status"], again["retry_of"]) == ("queued", run.request_id)
    credit = await run.customer.totals()
    assert credit == Totals(*map(Decimal, (CREDIT, "2.00", "8.00")))
    assert await run.task() == first
    ok(await run.customer.as_key("POST", f"/v2/task/{again['request_id']}/cancel"))


async def retried_and_canceled_before_its_turn(run: TaskRun) -> None:
    """A retry waiting for a slot → the customer cancels → canceled: the provider is never called."""
    await run.create(NARROW)
    await run.wait_submitted()
    no = run.update_body("failed", error={"message": "no"})
    ok(await run.post(no, signed(no, name=NARROW_NAME)))
    other = TaskRun(f"{run.name}.other", run.service, run.provider, run.customer)
    await other.create(NARROW)
    await other.wait_submitted()
    again = ok(await run.customer.as_key("POST", f"/v2/task/{run.request_id}/retry"))["request_id"]
    credit = await run.customer.totals()
    assert credit == Totals(*map(Decimal, (CREDIT, "2.00", "8.00")))
    canceled = ok(await run.customer.as_key("POST", f"/v2/task/{again}/cancel"))
    assert (canceled["status"], canceled["retry_of"]) == ("canceled", run.request_id)
    ok(await other.cancel())
    await other.until(lambda _: other.calls == ["PUT", "cancel"])
    assert run.provider.calls[f"{again}.1"] == []
    assert await run.customer.totals() == Totals(*map(Decimal, (CREDIT, "0.00", CREDIT)))


async def taken(run: TaskRun) -> None:
    """queued → the provider accepted it into its own queue → queued: one progress entry each, nothing else."""
    await run.create()
    await run.wait_submitted()
    task = await run.send_update("queued", stage="queue", message="third in line")
    assert run.last_progress(task, "queued")["message"] == "third in line"
    assert len(task["provider_progress"]) == 2
    await run.check("queued")
    await run.cancel()


async def spoken_of_before_the_answer(run: TaskRun) -> None:
    """queued → a callback before the response to the submission → processing; that response, a refusal, is late."""
    gate = threading.Event()
    run.gates.append(gate)
    await run.create(script=Script(put=waits(gate, says(422, {}))))
    await run.until(lambda _: run.calls == ["PUT"])
    await run.send_update("processing", provider_ref=run.job)
    gate.set()
    await run.check("queued", "processing")
    await run.report_success(run.file())
    await run.wait_for("succeeded")
    await run.check("queued", "processing", "succeeded", cost="1.00", units=1, hosting="ready")


async def running(run: TaskRun) -> None:
    """queued → the provider started → processing: the usage log gets a history entry."""
    await run.create()
    await run.wait_submitted()
    task = await run.send_update("processing", percent=40, stage="render", message="frame 19/48", raw_status="busy")
    line = run.last_progress(task, "processing")
    reported = {name: line[name] for name in ("percent", "stage", "message", "raw_status")}
    assert reported == {"percent": 40, "stage": "render", "message": "frame 19/48", "raw_status": "busy"}
    assert line["source_ref"] == "callback:evt_1"
    await run.check("queued", "processing")
    await run.send_update("processing", percent=60)
    await run.check("queued", "processing")
    await run.cancel()


# --------------------------------------------------------------------------------------------- success and storing


async def stored_from_queued(run: TaskRun) -> None:
    """queued → success → processing while the outputs are stored → succeeded: captured as quoted."""
    gate = threading.Event()
    run.gates.append(gate)
    await run.create(n=2)
    await run.wait_submitted()
    url = run.file("slow.png", waits(gate, is_file(PICTURE)))
    await run.report_success(url, run.file())
    await run.check("queued", "processing", hosting="transferring")
    gate.set()
    await run.wait_for("succeeded")
    task = await run.check("queued", "processing", "succeeded", cost="2.00", units=2, hosting="ready")
    assert task["hosting"]["mode"] == "rehost"
    assert all(task["usage"][name] is not None for name in ("queue_ms", "run_ms", "hosting_ms", "total_ms"))
    await run.check_images(2)


async def stored_from_processing(run: TaskRun) -> None:
    """processing → success → processing, without a further history entry → succeeded."""
    await run.create()
    await run.start_processing()
    await run.report_success(run.file())
    await run.wait_for("succeeded")
    await run.check("queued", "processing", "succeeded", cost="1.00", units=1, hosting="ready")
    await run.check_images(1)


async def less_than_held(run: TaskRun) -> None:
    """processing → all stored → succeeded: the result is captured, the rest of the hold is released."""
    await run.create(CLIP, seconds=10)
    assert str(run.hold) == "1.00"
    await run.start_processing()
    await run.report_success(run.file(), usage={"units": 4, "unit": "second"})
    await run.wait_for("succeeded")
    await run.check("queued", "processing", "succeeded", cost="0.40", units=4, hosting="ready")


async def handed_on_from_queued(run: TaskRun) -> None:
    """queued → success with passthrough URLs → succeeded at once, and captured."""
    await run.create(LINK)
    await run.wait_submitted()
    task = await run.report_success(ELSEWHERE)
    assert [item["url"] for item in task["output"]] == [ELSEWHERE]
    await run.check("queued", "succeeded", cost="1.00", units=1, hosting="skipped")


async def handed_on_from_processing(run: TaskRun) -> None:
    """processing → success with passthrough URLs → succeeded at once, and captured."""
    await run.create(LINK)
    await run.start_processing()
    await run.report_success(ELSEWHERE)
    await run.check("queued", "processing", "succeeded", cost="1.00", units=1, hosting="skipped")


async def partly_stored(run: TaskRun) -> None:
    """processing → some stored, the rest lost → succeeded in part: only stored units are charged."""
    await run.create(n=4)
    await run.start_processing()
    urls = [run.file(f"{name}.png") for name in "abc"]
    await run.report_success(*urls, run.file("d.png", says(404, {})))
    await run.wait_for("succeeded")
    path = ("queued", "processing", "succeeded")
    task = await run.check(*path, cost="3.00", units=3, error="partial: 3 of 4", hosting="ready")
    assert task["hosting"]["error"].startswith("hosting_failed: not_found")
    await run.check_images(3)


# -------------------------------------------------------------------------------------------------------- reviews


async def unstorable(run: TaskRun) -> None:
    """processing → nothing can be stored → review (hosting_failed) → the customer cancels → released."""
    await run.create()
    await run.start_processing()
    await run.report_success(run.file("lost.png", says(404, {})))
    task = await run.wait_for("review")
    review = (task["review_reason"], task["review_hold_decision"])
    assert review == ("hosting_failed", "capture_blocked")
    await run.check("queued", "processing", "review", error="hosting_failed: not_found", hosting="failed")
    ok(await run.cancel())
    path = ("queued", "processing", "review", "canceled")
    await run.check(*path, error="hosting_failed", hosting="failed")


async def flagged_from_queued(run: TaskRun) -> None:
    """queued → the provider flags its own output → review (content_flagged)."""
    await run.create()
    await run.wait_submitted()
    flag = {"flagged": True, "categories": ["violence"]}
    task = await run.report_success(run.file(), moderation=flag)
    review = (task["review_reason"], task["review_hold_decision"])
    assert review == ("content_flagged", "capture_blocked")
    await run.check("queued", "review", error="content_policy: the output was flagged, violence")
    await run.cancel()


async def flagged_from_processing(run: TaskRun) -> None:
    """processing → flagged while processing, then success → review (content_flagged)."""
    await run.create()
    await run.wait_submitted()
    await run.send_update("processing", moderation={"flagged": True})
    await run.check("queued", "processing")
    await run.report_success(run.file())
    await run.check("queued", "processing", "review", error="content_policy")
    await run.cancel()


async def contradicted(run: TaskRun) -> None:
    """processing → first a success, then a failure → review (provider_conflict)."""
    gate = threading.Event()
    run.gates.append(gate)
    await run.create()
    await run.start_processing()
    await run.report_success(run.file("slow.png", waits(gate, is_file(PICTURE))))
    task = await run.send_update("failed", error={"message": "after all"})
    assert task["review_reason"] == "provider_conflict"
    await run.check("queued", "processing", "review", error="provider_error")
    gate.set()
    await run.cancel()


async def review_lapsed(run: TaskRun) -> None:
    """review → no decision in time → failed: released."""
    await run.create(BRIEF)
    await run.start_processing()
    await run.report_success(run.file("lost.png", says(404, {})))
    task = await run.wait_for("failed")
    assert task["review_hold_decision"] == "released_by_timeout"
    path = ("queued", "processing", "review", "failed")
    await run.check(*path, error="hosting_failed: not_found", hosting="failed")


# -------------------------------------------------------------------------------------------------------- cancels


async def canceled_while_queued(run: TaskRun) -> None:
    """queued → the customer cancels → canceled: released in the same response; the provider is asked to cancel."""
    await run.create()
    await run.wait_submitted()
    assert ok(await run.cancel())["status"] == "canceled"
    await run.check("queued", "canceled", hosting="skipped")
    reported = await run.until(lambda task: any(line["status"] == "late" for line in task["provider_progress"]))
    assert run.last_progress(reported, "late")["message"] == "provider cancel confirmed"
    assert run.calls == ["PUT", "cancel"]
    assert ok(await run.cancel())["status"] == "canceled"
    await run.check("queued", "canceled", hosting="skipped")


async def canceled_while_processing(run: TaskRun) -> None:
    """processing → the customer cancels → canceled: released, whatever the provider has done so far."""
    await run.create(script=Script(cancel=says(404, {})))
    await run.start_processing()
    ok(await run.cancel())
    await run.check("queued", "processing", "canceled", hosting="skipped")
    await run.until(lambda task: task["provider_progress"][-1]["message"] == "provider cancel too late")
    task = await run.report_success(run.file())
    assert (task["status"], run.last_progress(task, "late")["source_ref"]) == ("canceled", "callback:evt_2")
    await run.check("queued", "processing", "canceled", hosting="skipped")


async def canceled_while_storing(run: TaskRun) -> None:
    """processing, being stored → the customer cancels → canceled: stored outputs are not delivered."""
    gate = threading.Event()
    run.gates.append(gate)
    await run.create(n=2)
    await run.start_processing()
    await run.report_success(run.file(), run.file("slow.png", waits(gate, is_file(PICTURE))))
    ok(await run.cancel())
    gate.set()
    await run.check("queued", "processing", "canceled", hosting="skipped")


# ------------------------------------------------------------------------------------------------ the provider's no


async def failed_at_work(run: TaskRun) -> None:
    """processing → the provider failed → failed provider_error: released."""
    await run.create()
    await run.start_processing()
    await run.send_update("failed", error={"code": "oom", "message": "out of memory"})
    await run.check("queued", "processing", "failed", error="provider_error: out of memory", hosting="skipped")


async def moderated(run: TaskRun) -> None:
    """queued → the provider refuses the content → failed content_policy: released."""
    await run.create()
    await run.wait_submitted()
    await run.send_update("failed", error={"code": "content_policy", "message": "not this"})
    await run.check("queued", "failed", error="content_policy: not this", hosting="skipped")


async def refused_at_the_door(run: TaskRun) -> None:
    """queued → the submission is answered 422 → failed invalid_upstream_input: released."""
    await run.create(script=Script(put=says(422, {"detail": "prompt: too dull"})))
    await run.wait_for("failed")
    await run.check("queued", "failed", error="invalid_upstream_input", hosting="skipped")
    assert run.calls == ["PUT"]


async def forbidden_at_the_door(run: TaskRun) -> None:
    """queued → the submission is answered 403 → failed provider_error: released."""
    await run.create(script=Script(put=says(403, {"detail": "no"})))
    await run.wait_for("failed")
    await run.check("queued", "failed", error="provider_error", hosting="skipped")


async def canceled_over_there(run: TaskRun) -> None:
    """processing → the provider reports a cancel that was not ours → failed canceled_by_provider: released."""
    await run.create()
    await run.start_processing()
    await run.send_update("canceled")
    await run.check("queued", "processing", "failed", error="canceled_by_provider", hosting="skipped")


# -------------------------------------------------------------------------------------------------- after the end


async def after_the_end(run: TaskRun) -> None:
    """Any end → any update → unchanged: recorded as late, the customer's cancel is a conflict."""
    await run.create()
    await run.start_processing()
    await run.report_success(run.file())
    await run.wait_for("succeeded")
    for status in ("failed", "canceled", "processing", "queued", "succeeded"):
        task = await run.send_update(status)
        assert task["status"] == "succeeded"
        assert run.last_progress(task, "late")["source_ref"] == f"callback:evt_{run.updates_sent}"
    answer = await run.cancel()
    assert (answer.status_code, code_of(answer)) == (409, "task_already_terminal")
    await run.check("queued", "processing", "succeeded", cost="1.00", units=1, hosting="ready")


SCENARIOS: tuple[Scenario, ...] = (
    created, retried, retried_and_canceled_before_its_turn, taken, spoken_of_before_the_answer, running,
    stored_from_queued, stored_from_processing, less_than_held, handed_on_from_queued, handed_on_from_processing,
    partly_stored,
    unstorable, flagged_from_queued, flagged_from_processing, contradicted, review_lapsed,
    canceled_while_queued, canceled_while_processing, canceled_while_storing,
    failed_at_work, moderated, refused_at_the_door, forbidden_at_the_door, canceled_over_there,
    after_the_end,
)  # fmt: skip


@pytest.mark.slow
async def test_every_transition_has_its_documented_outcome(
    scripted_service: Service, scripted: ScriptedProvider, new_customer: NewCustomer
) -> None:
    with trio.fail_after(240):
        await run_scenarios(SCENARIOS, scripted_service, scripted, new_customer)
    check_nothing_is_open(scripted_service)
