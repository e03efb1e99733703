"""Transitions driven by operators; hold and usage are checked at each step."""

from __future__ import annotations

import threading

import trio
from tests.clients import code_of, ok

from .conftest import NewCustomer
from .scripted_provider import LINK, PICTURE, ScriptedProvider, in_turn, is_file, says, waits
from .service_process import Service
from .task_scenarios import Scenario, TaskRun, check_nothing_is_open, run_scenarios

FLAG = {"flagged": True}
REVIEWED = ("queued", "processing", "review")


async def approved_and_stored_at_last(run: TaskRun) -> None:
    """review (nothing could be stored) → approved → downloaded again → succeeded: captured."""
    gate = threading.Event()
    run.gates.append(gate)
    await run.create(n=2)
    await run.start_processing()
    late = [in_turn(says(404, {}), waits(gate, is_file(PICTURE))) for _ in range(2)]
    await run.report_success(run.file("a.png", late[0]), run.file("b.png", late[1]))
    await run.wait_for("review")
    for _ in range(2):
        assert ok(await run.decide_review("approve"))["decision"] == "capture_approved"
    await run.check(*REVIEWED, error="hosting_failed", hosting="transferring")
    gate.set()
    await run.wait_for("succeeded")
    await run.check(*REVIEWED, "succeeded", cost="2.00", units=2, hosting="ready")
    await run.check_images(2)
    refused = await run.decide_review("reject")
    assert (refused.status_code, code_of(refused)) == (409, "review_not_open")


async def approved_in_part(run: TaskRun) -> None:
    """review → approved → some can be stored → succeeded in part: those are captured."""
    await run.create(n=2)
    await run.start_processing()
    await run.report_success(run.file("a.png"), run.file("b.png", says(404, {})), moderation=FLAG)
    ok(await run.decide_review("approve"))
    await run.wait_for("succeeded")
    await run.check(*REVIEWED, "succeeded", cost="1.00", units=1, error="partial: 1 of 2", hosting="ready")


async def approved_and_handed_on(run: TaskRun) -> None:
    """review (flagged) with passthrough URLs → approved → succeeded in the same response: captured."""
    await run.create(LINK)
    await run.wait_submitted()
    await run.report_success("https://results.example/a.png", moderation=FLAG)
    await run.check("queued", "review", error="content_policy")
    assert ok(await run.decide_review("approve"))["task"]["status"] == "succeeded"
    await run.check("queued", "review", "succeeded", cost="1.00", units=1, hosting="skipped")


async def approved_conflict(run: TaskRun) -> None:
    """review (success, then failure) → approved → stored → succeeded."""
    # The first round's outcome may arrive before or after the approval; it does not affect the second.
    gate = threading.Event()
    run.gates.append(gate)
    await run.create()
    await run.start_processing()
    await run.report_success(run.file("a.png", in_turn(waits(gate, says(404, {})), is_file(PICTURE))))
    await run.send_update("failed")
    gate.set()
    ok(await run.decide_review("approve"))
    await run.wait_for("succeeded")
    await run.check(*REVIEWED, "succeeded", cost="1.00", units=1, hosting="ready")


async def approved_in_vain(run: TaskRun) -> None:
    """review (flagged) → approved → cannot be stored → still in review → rejected → failed: released."""
    await run.create()
    await run.start_processing()
    await run.report_success(run.file("a.png", says(404, {})), moderation=FLAG)
    await run.check(*REVIEWED, error="content_policy")
    ok(await run.decide_review("approve"))
    task = await run.until(lambda task: task["hosting"]["status"] == "failed")
    assert task["review_hold_decision"] == "capture_blocked"
    await run.check(*REVIEWED, error="hosting_failed: not_found", hosting="failed")
    ok(await run.decide_review("reject"))
    await run.check(*REVIEWED, "failed", error="hosting_failed: not_found", hosting="failed")


async def rejected(run: TaskRun) -> None:
    """review (flagged) → rejected → failed: released in the same response."""
    await run.create()
    await run.start_processing()
    await run.report_success(run.file(), moderation=FLAG)
    decided = ok(await run.decide_review("reject"))
    assert (decided["decision"], decided["task"]["status"]) == ("release_approved", "failed")
    await run.check(*REVIEWED, "failed", error="content_policy", hosting="skipped")


async def canceled_while_an_approval_is_stored(run: TaskRun) -> None:
    """review → approved, being stored → the customer cancels → canceled: released, nothing delivered."""
    gate = threading.Event()
    run.gates.append(gate)
    await run.create()
    await run.start_processing()
    await run.report_success(run.file("a.png", waits(gate, is_file(PICTURE))), moderation=FLAG)
    ok(await run.decide_review("approve"))
    ok(await run.cancel())
    gate.set()
    await run.check(*REVIEWED, "canceled", error="content_policy", hosting="skipped")


SCENARIOS: tuple[Scenario, ...] = (
    approved_and_stored_at_last, approved_in_part, approved_and_handed_on, approved_conflict, approved_in_vain,
    rejected, canceled_while_an_approval_is_stored,
)  # fmt: skip


async def test_operator_decisions_have_their_documented_outcome(
    scripted_service: Service, scripted: ScriptedProvider, new_customer: NewCustomer
) -> None:
    with trio.fail_after(60):
        await run_scenarios(SCENARIOS, scripted_service, scripted, new_customer)
    check_nothing_is_open(scripted_service)
