"""The rows of the table that an operator's word drives; hold and usage are checked at each step."""

from __future__ import annotations

import threading

import trio

from .conftest import NewCustomer
from .house import Service, code_of, ok
from .scripted_provider import LINK, PICTURE, ScriptedProvider, in_turn, is_file, says, waits
from .task_tales import Story, Tale, nothing_is_left_open, tell_all

FLAG = {"flagged": True}
REVIEWED = ("queued", "processing", "review")


async def approved_and_stored_at_last(tale: Tale) -> None:
    """review (nothing could be stored) → approved → fetched once more → succeeded: captured."""
    gate = threading.Event()
    tale.gates.append(gate)
    await tale.begins(n=2)
    await tale.runs()
    late = [in_turn(says(404, {}), waits(gate, is_file(PICTURE))) for _ in range(2)]
    await tale.succeeds(tale.file("a.png", late[0]), tale.file("b.png", late[1]))
    await tale.becomes("review")
    for _ in range(2):
        assert ok(await tale.reviewed("approve"))["decision"] == "capture_approved"
    await tale.stands(*REVIEWED, error="hosting_failed", hosting="transferring")
    gate.set()
    await tale.becomes("succeeded")
    await tale.stands(*REVIEWED, "succeeded", cost="2.00", units=2, hosting="ready")
    await tale.shows_pictures(2)
    refused = await tale.reviewed("reject")
    assert (refused.status_code, code_of(refused)) == (409, "review_not_open")


async def approved_in_part(tale: Tale) -> None:
    """review → approved → some can be stored → succeeded in part: those are captured."""
    await tale.begins(n=2)
    await tale.runs()
    await tale.succeeds(tale.file("a.png"), tale.file("b.png", says(404, {})), moderation=FLAG)
    ok(await tale.reviewed("approve"))
    await tale.becomes("succeeded")
    await tale.stands(*REVIEWED, "succeeded", cost="1.00", units=1, error="partial: 1 of 2", hosting="ready")


async def approved_and_handed_on(tale: Tale) -> None:
    """review (flagged) where URLs are handed on → approved → succeeded with the same answer: captured."""
    await tale.begins(LINK)
    await tale.is_taken()
    await tale.succeeds("https://results.example/a.png", moderation=FLAG)
    await tale.stands("queued", "review", error="content_policy")
    assert ok(await tale.reviewed("approve"))["task"]["status"] == "succeeded"
    await tale.stands("queued", "review", "succeeded", cost="1.00", units=1, hosting="skipped")


async def approved_conflict(tale: Tale) -> None:
    """review (success, then failure) → approved → stored → succeeded."""
    # The end of the first round may be heard before the approval or after it: it says nothing about the second.
    gate = threading.Event()
    tale.gates.append(gate)
    await tale.begins()
    await tale.runs()
    await tale.succeeds(tale.file("a.png", in_turn(waits(gate, says(404, {})), is_file(PICTURE))))
    await tale.hears("failed")
    gate.set()
    ok(await tale.reviewed("approve"))
    await tale.becomes("succeeded")
    await tale.stands(*REVIEWED, "succeeded", cost="1.00", units=1, hosting="ready")


async def approved_in_vain(tale: Tale) -> None:
    """review (flagged) → approved → cannot be stored → still in review → rejected → failed: released."""
    await tale.begins()
    await tale.runs()
    await tale.succeeds(tale.file("a.png", says(404, {})), moderation=FLAG)
    await tale.stands(*REVIEWED, error="content_policy")
    ok(await tale.reviewed("approve"))
    task = await tale.until(lambda task: task["hosting"]["status"] == "failed")
    assert task["review_hold_decision"] == "capture_blocked"
    await tale.stands(*REVIEWED, error="hosting_failed: not_found", hosting="failed")
    ok(await tale.reviewed("reject"))
    await tale.stands(*REVIEWED, "failed", error="hosting_failed: not_found", hosting="failed")


async def rejected(tale: Tale) -> None:
    """review (flagged) → rejected → failed: released with the same answer."""
    await tale.begins()
    await tale.runs()
    await tale.succeeds(tale.file(), moderation=FLAG)
    told = ok(await tale.reviewed("reject"))
    assert (told["decision"], told["task"]["status"]) == ("release_approved", "failed")
    await tale.stands(*REVIEWED, "failed", error="content_policy", hosting="skipped")


async def canceled_while_an_approval_is_stored(tale: Tale) -> None:
    """review → approved, being stored → the customer cancels → canceled: released, nothing delivered."""
    gate = threading.Event()
    tale.gates.append(gate)
    await tale.begins()
    await tale.runs()
    await tale.succeeds(tale.file("a.png", waits(gate, is_file(PICTURE))), moderation=FLAG)
    ok(await tale.reviewed("approve"))
    ok(await tale.cancels())
    gate.set()
    await tale.stands(*REVIEWED, "canceled", error="content_policy", hosting="skipped")


STORIES: tuple[Story, ...] = (
    approved_and_stored_at_last, approved_in_part, approved_and_handed_on, approved_conflict, approved_in_vain,
    rejected, canceled_while_an_approval_is_stored,
)  # fmt: skip


async def test_what_an_operator_decides_comes_out_as_written(
    scripted_house: Service, scripted: ScriptedProvider, new_customer: NewCustomer
) -> None:
    with trio.fail_after(60):
        await tell_all(STORIES, scripted_house, scripted, new_customer)
    nothing_is_left_open(scripted_house)
