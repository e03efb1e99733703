"""Every row of the table of a task's transitions, driven over real HTTP; hold and usage are checked at each step.

Each story is one row, or one way into it. All are told side by side at one service.
"""

from __future__ import annotations

import threading
from decimal import Decimal

import trio

from .conftest import NewCustomer
from .house import Service, Totals, code_of, ok
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
from .task_tales import CREDIT, Story, Tale, nothing_is_left_open, tell_all

ELSEWHERE = "https://results.example/picture.png"
"""Nobody fetches it: it is handed on."""


# ------------------------------------------------------------------------------------- accepted, queued, running


async def created(tale: Tale) -> None:
    """Nothing → create → queued: the hold is open, the usage log has a line at cost 0."""
    gate = threading.Event()
    tale.gates.append(gate)
    await tale.begins(script=Script(put=waits(gate, TAKEN)), n=2)
    assert tale.hold == 2
    await tale.stands("queued")
    gate.set()
    await tale.is_taken()
    await tale.cancels()
    await tale.stands("queued", "canceled", hosting="skipped")


async def retried(tale: Tale) -> None:
    """An ended task → retry → a new one, queued, with a hold of its own; the first is left alone."""
    await tale.begins(n=2)
    await tale.is_taken()
    await tale.hears("failed", error={"message": "no"})
    first = await tale.stands("queued", "failed", error="provider_error: no", hosting="skipped")
    again = ok(await tale.customer.call("POST", f"/v2/task/{tale.request_id}/retry"))
    assert (again["status"], again["retry_of"]) == ("queued", tale.request_id)
    credit = await tale.customer.totals()
    assert credit == Totals(*map(Decimal, (CREDIT, "2.00", "8.00")))
    assert await tale.task() == first
    ok(await tale.customer.call("POST", f"/v2/task/{again['request_id']}/cancel"))
    assert (await tale.customer.totals()).held == 0


async def retried_and_canceled_before_its_turn(tale: Tale) -> None:
    """A retry that waits for a place → the customer cancels → canceled: the provider is never called for it."""
    await tale.begins(NARROW)
    await tale.is_taken()
    no = tale.news("failed", error={"message": "no"})
    ok(await tale.post(no, signed(no, name=NARROW_NAME)))
    other = Tale(f"{tale.name}.other", tale.service, tale.provider, tale.customer)
    await other.begins(NARROW)
    await other.is_taken()
    again = ok(await tale.customer.call("POST", f"/v2/task/{tale.request_id}/retry"))["request_id"]
    credit = await tale.customer.totals()
    assert credit == Totals(*map(Decimal, (CREDIT, "2.00", "8.00")))
    canceled = ok(await tale.customer.call("POST", f"/v2/task/{again}/cancel"))
    assert (canceled["status"], canceled["retry_of"]) == ("canceled", tale.request_id)
    ok(await other.cancels())
    await other.until(lambda _: other.calls == ["PUT", "cancel"])
    assert tale.provider.calls[f"{again}.1"] == []
    assert await tale.customer.totals() == Totals(*map(Decimal, (CREDIT, "0.00", CREDIT)))


async def taken(tale: Tale) -> None:
    """queued → the provider took it, has it in its own queue → queued: a line of progress each, nothing else."""
    await tale.begins()
    await tale.is_taken()
    task = await tale.hears("queued", stage="queue", message="third in line")
    assert tale.last_line(task, "queued")["message"] == "third in line"
    assert len(task["provider_progress"]) == 2
    await tale.stands("queued")
    await tale.cancels()


async def spoken_of_before_the_answer(tale: Tale) -> None:
    """queued → a callback overtakes the answer to the submission → processing; that answer, a no, is late."""
    gate = threading.Event()
    tale.gates.append(gate)
    await tale.begins(script=Script(put=waits(gate, says(422, {}))))
    await tale.until(lambda _: tale.calls == ["PUT"])
    await tale.hears("processing", provider_ref=tale.job)
    gate.set()
    await tale.stands("queued", "processing")
    await tale.succeeds(tale.file())
    await tale.becomes("succeeded")
    await tale.stands("queued", "processing", "succeeded", cost="1.00", units=1, hosting="ready")


async def running(tale: Tale) -> None:
    """queued → the provider is at work → processing: the usage log gets a line of history."""
    await tale.begins()
    await tale.is_taken()
    task = await tale.hears("processing", percent=40, stage="render", message="frame 19/48", raw_status="busy")
    line = tale.last_line(task, "processing")
    told = {name: line[name] for name in ("percent", "stage", "message", "raw_status")}
    assert told == {"percent": 40, "stage": "render", "message": "frame 19/48", "raw_status": "busy"}
    assert line["source_ref"] == "callback:evt_1"
    await tale.stands("queued", "processing")
    await tale.hears("processing", percent=60)
    await tale.stands("queued", "processing")
    await tale.cancels()


# --------------------------------------------------------------------------------------------- success and storing


async def stored_from_queued(tale: Tale) -> None:
    """queued → success → processing while the outputs are stored → succeeded: captured as quoted."""
    gate = threading.Event()
    tale.gates.append(gate)
    await tale.begins(n=2)
    await tale.is_taken()
    url = tale.file("slow.png", waits(gate, is_file(PICTURE)))
    await tale.succeeds(url, tale.file())
    await tale.stands("queued", "processing", hosting="transferring")
    gate.set()
    await tale.becomes("succeeded")
    task = await tale.stands("queued", "processing", "succeeded", cost="2.00", units=2, hosting="ready")
    assert task["hosting"]["mode"] == "rehost"
    assert all(task["usage"][name] is not None for name in ("queue_ms", "run_ms", "hosting_ms", "total_ms"))
    await tale.shows_pictures(2)


async def stored_from_processing(tale: Tale) -> None:
    """processing → success → processing, with no further line of history → succeeded."""
    await tale.begins()
    await tale.runs()
    await tale.succeeds(tale.file())
    await tale.becomes("succeeded")
    await tale.stands("queued", "processing", "succeeded", cost="1.00", units=1, hosting="ready")
    await tale.shows_pictures(1)


async def less_than_held(tale: Tale) -> None:
    """processing → all stored → succeeded: what was done is captured, the rest of the hold goes back."""
    await tale.begins(CLIP, seconds=10)
    assert str(tale.hold) == "1.00"
    await tale.runs()
    await tale.succeeds(tale.file(), usage={"units": 4, "unit": "second"})
    await tale.becomes("succeeded")
    await tale.stands("queued", "processing", "succeeded", cost="0.40", units=4, hosting="ready")


async def handed_on_from_queued(tale: Tale) -> None:
    """queued → success where URLs are handed on → succeeded at once, and captured."""
    await tale.begins(LINK)
    await tale.is_taken()
    task = await tale.succeeds(ELSEWHERE)
    assert [item["url"] for item in task["output"]] == [ELSEWHERE]
    await tale.stands("queued", "succeeded", cost="1.00", units=1, hosting="skipped")


async def handed_on_from_processing(tale: Tale) -> None:
    """processing → success where URLs are handed on → succeeded at once, and captured."""
    await tale.begins(LINK)
    await tale.runs()
    await tale.succeeds(ELSEWHERE)
    await tale.stands("queued", "processing", "succeeded", cost="1.00", units=1, hosting="skipped")


async def partly_stored(tale: Tale) -> None:
    """processing → some stored, the rest lost for good → succeeded in part: the units that there are."""
    await tale.begins(n=4)
    await tale.runs()
    urls = [tale.file(f"{name}.png") for name in "abc"]
    await tale.succeeds(*urls, tale.file("d.png", says(404, {})))
    await tale.becomes("succeeded")
    path = ("queued", "processing", "succeeded")
    task = await tale.stands(*path, cost="3.00", units=3, error="partial: 3 of 4", hosting="ready")
    assert task["hosting"]["error"].startswith("hosting_failed: not_found")
    await tale.shows_pictures(3)


# -------------------------------------------------------------------------------------------------------- reviews


async def unstorable(tale: Tale) -> None:
    """processing → nothing can be stored → review (hosting_failed) → the customer cancels → released."""
    await tale.begins()
    await tale.runs()
    await tale.succeeds(tale.file("lost.png", says(404, {})))
    task = await tale.becomes("review")
    review = (task["review_reason"], task["review_hold_decision"])
    assert review == ("hosting_failed", "capture_blocked")
    await tale.stands("queued", "processing", "review", error="hosting_failed: not_found", hosting="failed")
    ok(await tale.cancels())
    path = ("queued", "processing", "review", "canceled")
    await tale.stands(*path, error="hosting_failed", hosting="failed")


async def flagged_from_queued(tale: Tale) -> None:
    """queued → the provider flags its own output → review (content_flagged)."""
    await tale.begins()
    await tale.is_taken()
    flag = {"flagged": True, "categories": ["violence"]}
    task = await tale.succeeds(tale.file(), moderation=flag)
    review = (task["review_reason"], task["review_hold_decision"])
    assert review == ("content_flagged", "capture_blocked")
    await tale.stands("queued", "review", error="content_policy: the output was flagged, violence")
    await tale.cancels()


async def flagged_from_processing(tale: Tale) -> None:
    """processing → flagged while at work, then success → review (content_flagged)."""
    await tale.begins()
    await tale.is_taken()
    await tale.hears("processing", moderation={"flagged": True})
    await tale.stands("queued", "processing")
    await tale.succeeds(tale.file())
    await tale.stands("queued", "processing", "review", error="content_policy")
    await tale.cancels()


async def contradicted(tale: Tale) -> None:
    """processing → first a success, then a failure → review (provider_conflict)."""
    gate = threading.Event()
    tale.gates.append(gate)
    await tale.begins()
    await tale.runs()
    await tale.succeeds(tale.file("slow.png", waits(gate, is_file(PICTURE))))
    task = await tale.hears("failed", error={"message": "after all"})
    assert task["review_reason"] == "provider_conflict"
    await tale.stands("queued", "processing", "review", error="provider_error")
    gate.set()
    await tale.cancels()


async def review_lapsed(tale: Tale) -> None:
    """review → nobody decides in time → failed: released."""
    await tale.begins(BRIEF)
    await tale.runs()
    await tale.succeeds(tale.file("lost.png", says(404, {})))
    task = await tale.becomes("failed")
    assert task["review_hold_decision"] == "released_by_timeout"
    path = ("queued", "processing", "review", "failed")
    await tale.stands(*path, error="hosting_failed: not_found", hosting="failed")


# -------------------------------------------------------------------------------------------------------- cancels


async def canceled_while_queued(tale: Tale) -> None:
    """queued → the customer cancels → canceled: released with the same answer; the provider is told."""
    await tale.begins()
    await tale.is_taken()
    assert ok(await tale.cancels())["status"] == "canceled"
    await tale.stands("queued", "canceled", hosting="skipped")
    told = await tale.until(lambda task: any(line["status"] == "late" for line in task["provider_progress"]))
    assert tale.last_line(told, "late")["message"] == "provider cancel confirmed"
    assert tale.calls == ["PUT", "cancel"]
    assert ok(await tale.cancels())["status"] == "canceled"
    await tale.stands("queued", "canceled", hosting="skipped")


async def canceled_while_processing(tale: Tale) -> None:
    """processing → the customer cancels → canceled: released, whatever the provider has done by then."""
    await tale.begins(script=Script(cancel=says(404, {})))
    await tale.runs()
    ok(await tale.cancels())
    await tale.stands("queued", "processing", "canceled", hosting="skipped")
    await tale.until(lambda task: task["provider_progress"][-1]["message"] == "provider cancel too late")
    task = await tale.succeeds(tale.file())
    assert (task["status"], tale.last_line(task, "late")["source_ref"]) == ("canceled", "callback:evt_2")
    await tale.stands("queued", "processing", "canceled", hosting="skipped")


async def canceled_while_storing(tale: Tale) -> None:
    """processing, being stored → the customer cancels → canceled: what was stored already is not delivered."""
    gate = threading.Event()
    tale.gates.append(gate)
    await tale.begins(n=2)
    await tale.runs()
    await tale.succeeds(tale.file(), tale.file("slow.png", waits(gate, is_file(PICTURE))))
    ok(await tale.cancels())
    gate.set()
    await tale.stands("queued", "processing", "canceled", hosting="skipped")


# ------------------------------------------------------------------------------------------------ the provider's no


async def failed_at_work(tale: Tale) -> None:
    """processing → the provider failed → failed provider_error: released."""
    await tale.begins()
    await tale.runs()
    await tale.hears("failed", error={"code": "oom", "message": "out of memory"})
    await tale.stands("queued", "processing", "failed", error="provider_error: out of memory", hosting="skipped")


async def moderated(tale: Tale) -> None:
    """queued → the provider refuses the content → failed content_policy: released."""
    await tale.begins()
    await tale.is_taken()
    await tale.hears("failed", error={"code": "content_policy", "message": "not this"})
    await tale.stands("queued", "failed", error="content_policy: not this", hosting="skipped")


async def refused_at_the_door(tale: Tale) -> None:
    """queued → the submission is answered 422 → failed invalid_upstream_input: released."""
    await tale.begins(script=Script(put=says(422, {"detail": "prompt: too dull"})))
    await tale.becomes("failed")
    await tale.stands("queued", "failed", error="invalid_upstream_input", hosting="skipped")
    assert tale.calls == ["PUT"]


async def forbidden_at_the_door(tale: Tale) -> None:
    """queued → the submission is answered 403 → failed provider_error: released."""
    await tale.begins(script=Script(put=says(403, {"detail": "no"})))
    await tale.becomes("failed")
    await tale.stands("queued", "failed", error="provider_error", hosting="skipped")


async def canceled_over_there(tale: Tale) -> None:
    """processing → the provider says it was canceled, not by us → failed canceled_by_provider: released."""
    await tale.begins()
    await tale.runs()
    await tale.hears("canceled")
    await tale.stands("queued", "processing", "failed", error="canceled_by_provider", hosting="skipped")


# -------------------------------------------------------------------------------------------------- after the end


async def after_the_end(tale: Tale) -> None:
    """Any end → anything → unchanged: kept as late, the customer's cancel is a conflict."""
    await tale.begins()
    await tale.runs()
    await tale.succeeds(tale.file())
    await tale.becomes("succeeded")
    for status in ("failed", "canceled", "processing", "queued", "succeeded"):
        task = await tale.hears(status)
        assert task["status"] == "succeeded"
        assert tale.last_line(task, "late")["source_ref"] == f"callback:evt_{tale.told}"
    answer = await tale.cancels()
    assert (answer.status_code, code_of(answer)) == (409, "task_already_terminal")
    await tale.stands("queued", "processing", "succeeded", cost="1.00", units=1, hosting="ready")


STORIES: tuple[Story, ...] = (
    created, retried, retried_and_canceled_before_its_turn, taken, spoken_of_before_the_answer, running,
    stored_from_queued, stored_from_processing, less_than_held, handed_on_from_queued, handed_on_from_processing,
    partly_stored,
    unstorable, flagged_from_queued, flagged_from_processing, contradicted, review_lapsed,
    canceled_while_queued, canceled_while_processing, canceled_while_storing,
    failed_at_work, moderated, refused_at_the_door, forbidden_at_the_door, canceled_over_there,
    after_the_end,
)  # fmt: skip


async def test_every_row_of_the_table_comes_out_as_written(
    scripted_house: Service, scripted: ScriptedProvider, new_customer: NewCustomer
) -> None:
    with trio.fail_after(90):
        await tell_all(STORIES, scripted_house, scripted, new_customer)
    nothing_is_left_open(scripted_house)
