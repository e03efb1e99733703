"""Transitions driven by time: silence, deadlines, a provider that is away, busy or has lost the job.

Hold and usage are checked at each step. All scenarios run concurrently at one service.
"""

from __future__ import annotations

import pytest
import trio

from .conftest import NewCustomer
from .scripted_provider import (
    DOUBTFUL,
    GONE,
    HASTY,
    POLLED,
    TAKEN,
    Script,
    ScriptedProvider,
    cuts,
    finished,
    hangs,
    in_turn,
    prediction,
    says,
)
from .service_process import Service
from .task_scenarios import Scenario, TaskRun, check_nothing_is_open, run_scenarios


async def never_finished(run: TaskRun) -> None:
    """queued → the deadline passes without an end → failed provider_timeout: released, job stopped."""
    await run.create(HASTY, Script(get=prediction("starting")))
    await run.wait_for("failed")
    await run.check("queued", "failed", error="provider_timeout", hosting="skipped")
    await run.until(lambda _: run.calls[-1] == "cancel")
    assert "GET" in run.calls


async def finished_unheard(run: TaskRun) -> None:
    """queued → the deadline passes, the last poll finds a success → stored → succeeded."""
    await run.create(HASTY, Script(get=finished(run.file())))
    await run.wait_for("succeeded")
    await run.check("queued", "processing", "succeeded", cost="1.00", units=1, hosting="ready")


async def callback_lost(run: TaskRun) -> None:
    """queued → silence → polls find the job running, then ended → succeeded."""
    script = Script(get=in_turn(prediction("processing", progress={"percent": 50}), finished(run.file())))
    await run.create(POLLED, script)
    await run.wait_for("succeeded")
    task = await run.check("queued", "processing", "succeeded", cost="1.00", units=1, hosting="ready")
    reported = [line["source_ref"].partition(":")[0] for line in task["provider_progress"]]
    assert reported == ["system", "poll", "poll", "system"]
    assert run.calls[:3] == ["PUT", "GET", "GET"]


async def unreachable(run: TaskRun) -> None:
    """queued → certainly never sent, attempts exhausted → failed provider_unavailable: released."""
    await run.create(GONE)
    await run.wait_for("failed")
    await run.check("queued", "failed", error="provider_unavailable", hosting="skipped")


async def too_busy(run: TaskRun) -> None:
    """queued → the provider has no slot until the deadline → failed provider_unavailable: released."""
    await run.create(DOUBTFUL, Script(put=says(429, {}, Retry_After=1)))
    await run.wait_for("failed")
    await run.check("queued", "failed", error="provider_unavailable", hosting="skipped")


async def busy_at_first(run: TaskRun) -> None:
    """queued → busy once, then taken → processing → succeeded, by one job."""
    await run.create(script=Script(put=in_turn(says(503, {}), TAKEN)))
    await run.wait_submitted()
    assert run.calls == ["PUT", "PUT"]
    await run.report_success(run.file())
    await run.wait_for("succeeded")
    await run.check("queued", "processing", "succeeded", cost="1.00", units=1, hosting="ready")


async def unresolved(run: TaskRun) -> None:
    """queued → perhaps sent, never answered → failed submit_ambiguous: released, at the operator's expense."""
    await run.create(DOUBTFUL, Script(put=hangs))
    await run.wait_for("failed")
    await run.check("queued", "failed", error="submit_ambiguous", hosting="skipped")


async def cut_off_at_first(run: TaskRun) -> None:
    """queued → the response is cut off → submitted again under the same id → succeeded, by one job."""
    await run.create(script=Script(put=in_turn(cuts, says(500, {}), TAKEN)))
    await run.wait_submitted()
    assert run.calls == ["PUT", "PUT", "PUT"]
    await run.report_success(run.file())
    await run.wait_for("succeeded")
    await run.check("queued", "processing", "succeeded", cost="1.00", units=1, hosting="ready")


async def lost_over_there(run: TaskRun) -> None:
    """queued → the provider has lost the job → submitted again; updates of the first attempt are stale."""
    await run.create(POLLED, Script(get=in_turn(says(404, {}), prediction("processing"))))
    second = f"{run.request_id}.2"
    await run.until(lambda task: run.provider.calls[second] == ["PUT"] and task["status"] == "queued")
    task = await run.report_success(run.file())
    assert (task["status"], run.last_progress(task, "stale")["source_ref"]) == ("queued", "callback:evt_1")
    await run.report_success(run.file(), attempt=2)
    await run.wait_for("succeeded")
    await run.check("queued", "processing", "succeeded", cost="1.00", units=1, hosting="ready")


SCENARIOS: tuple[Scenario, ...] = (
    never_finished, finished_unheard, callback_lost, unreachable, too_busy, busy_at_first, unresolved,
    cut_off_at_first, lost_over_there,
)  # fmt: skip


@pytest.mark.slow
async def test_timed_transitions_have_their_documented_outcome(
    scripted_service: Service, scripted: ScriptedProvider, new_customer: NewCustomer
) -> None:
    with trio.fail_after(240):
        await run_scenarios(SCENARIOS, scripted_service, scripted, new_customer)
    check_nothing_is_open(scripted_service)
