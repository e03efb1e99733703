"""The rows of the table that time drives: silence, deadlines, a provider that is away, busy or forgetful.

Hold and usage are checked at each step. All stories are told side by side at one service.
"""

from __future__ import annotations

import trio

from .conftest import NewCustomer
from .house import Service
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
    says,
    tells,
)
from .task_tales import Story, Tale, nothing_is_left_open, tell_all


async def never_finished(tale: Tale) -> None:
    """queued → the deadline passes, the last poll tells no end → failed provider_timeout: released, job stopped."""
    await tale.begins(HASTY, Script(get=tells("starting")))
    await tale.becomes("failed")
    await tale.stands("queued", "failed", error="provider_timeout", hosting="skipped")
    await tale.until(lambda _: tale.calls[-1] == "cancel")
    assert "GET" in tale.calls


async def finished_unheard(tale: Tale) -> None:
    """queued → the deadline passes, the last poll finds a success → stored → succeeded."""
    await tale.begins(HASTY, Script(get=finished(tale.file())))
    await tale.becomes("succeeded")
    await tale.stands("queued", "processing", "succeeded", cost="1.00", units=1, hosting="ready")


async def callback_lost(tale: Tale) -> None:
    """queued → silence → polls find the work and then its end → succeeded."""
    script = Script(get=in_turn(tells("processing", progress={"percent": 50}), finished(tale.file())))
    await tale.begins(POLLED, script)
    await tale.becomes("succeeded")
    task = await tale.stands("queued", "processing", "succeeded", cost="1.00", units=1, hosting="ready")
    told = [line["source_ref"].partition(":")[0] for line in task["provider_progress"]]
    assert told == ["system", "poll", "poll", "system"]
    assert tale.calls[:3] == ["PUT", "GET", "GET"]


async def unreachable(tale: Tale) -> None:
    """queued → surely never sent, tries used up → failed provider_unavailable: released."""
    await tale.begins(GONE)
    await tale.becomes("failed")
    await tale.stands("queued", "failed", error="provider_unavailable", hosting="skipped")


async def too_busy(tale: Tale) -> None:
    """queued → the provider has no place for it until the deadline → failed provider_unavailable: released."""
    await tale.begins(DOUBTFUL, Script(put=says(429, {}, Retry_After=1)))
    await tale.becomes("failed")
    await tale.stands("queued", "failed", error="provider_unavailable", hosting="skipped")


async def busy_at_first(tale: Tale) -> None:
    """queued → busy once, then taken → processing → succeeded, by one job."""
    await tale.begins(script=Script(put=in_turn(says(503, {}), TAKEN)))
    await tale.is_taken()
    assert tale.calls == ["PUT", "PUT"]
    await tale.succeeds(tale.file())
    await tale.becomes("succeeded")
    await tale.stands("queued", "processing", "succeeded", cost="1.00", units=1, hosting="ready")


async def unresolved(tale: Tale) -> None:
    """queued → perhaps sent, never answered → failed submit_ambiguous: released, at the house's expense."""
    await tale.begins(DOUBTFUL, Script(put=hangs))
    await tale.becomes("failed")
    await tale.stands("queued", "failed", error="submit_ambiguous", hosting="skipped")


async def cut_off_at_first(tale: Tale) -> None:
    """queued → the answer is cut off → submitted again under the same name → succeeded, by one job."""
    await tale.begins(script=Script(put=in_turn(cuts, says(500, {}), TAKEN)))
    await tale.is_taken()
    assert tale.calls == ["PUT", "PUT", "PUT"]
    await tale.succeeds(tale.file())
    await tale.becomes("succeeded")
    await tale.stands("queued", "processing", "succeeded", cost="1.00", units=1, hosting="ready")


async def lost_over_there(tale: Tale) -> None:
    """queued → the provider knows the job no more → given anew; the first attempt's word is stale."""
    await tale.begins(POLLED, Script(get=in_turn(says(404, {}), tells("processing"))))
    second = f"{tale.request_id}.2"
    await tale.until(lambda task: tale.provider.calls[second] == ["PUT"] and task["status"] == "queued")
    task = await tale.succeeds(tale.file())
    assert (task["status"], tale.last_line(task, "stale")["source_ref"]) == ("queued", "callback:evt_1")
    await tale.succeeds(tale.file(), attempt=2)
    await tale.becomes("succeeded")
    await tale.stands("queued", "processing", "succeeded", cost="1.00", units=1, hosting="ready")


STORIES: tuple[Story, ...] = (
    never_finished, finished_unheard, callback_lost, unreachable, too_busy, busy_at_first, unresolved,
    cut_off_at_first, lost_over_there,
)  # fmt: skip


async def test_whatever_does_not_happen_in_time_comes_out_as_written(
    scripted_house: Service, scripted: ScriptedProvider, new_customer: NewCustomer
) -> None:
    with trio.fail_after(90):
        await tell_all(STORIES, scripted_house, scripted, new_customer)
    nothing_is_left_open(scripted_house)
