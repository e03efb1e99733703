"""Asks that wait for an actor, or fail fast; and messages whose sender or deadline is gone."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from holdfast.actors.runtime.faults import Crashed, OutcomeUnknown, Quarantined, Unavailable
from holdfast.actors.runtime.refs import WhileDown
from holdfast.persistence.journal.units import Committed
from holdfast.supervision.keyed_group import KeyedLimits
from holdfast.supervision.spec import Backoff
from holdfast.telemetry.reports.causes import describe

from .keyed_actors import Break, Harness, Rest, Say, Write, outcome

SLOW = KeyedLimits(backoff=Backoff(20, 20, jitter=0))


async def ask(harness: Harness, while_down: WhileDown, *, deadline_s: float = 60) -> tuple[Any, float]:
    """The outcome of an ask, and how long it took."""
    begun = trio.current_time()
    ref = harness.directory.ref("a")
    found = await outcome(lambda: ref.ask(Say(), deadline_s=deadline_s, while_down=while_down))
    return found, trio.current_time() - begun


@pytest.mark.parametrize("while_down", ["fail", "queue", "wait"])
async def test_an_ask_during_a_backoff_waits_or_fails_at_once(
    autojump_clock: MockClock, while_down: WhileDown
) -> None:
    harness = Harness(limits=SLOW)
    async with harness.running():
        assert isinstance(await outcome(lambda: harness.ask("a", Break())), Crashed)
        await trio.sleep(5)
        found, took_s = await ask(harness, while_down)
        if while_down == "fail":
            assert isinstance(found, Unavailable)
            assert (round(found.retry_after_s), took_s) == (15, 0)
        else:
            assert (found, round(took_s)) == ("hello", 15)


@pytest.mark.parametrize("while_down", ["fail", "queue", "wait"])
@pytest.mark.parametrize("cause", ["pause", "gate"])
async def test_an_ask_of_a_group_that_is_down_waits_or_fails(
    autojump_clock: MockClock, while_down: WhileDown, cause: str
) -> None:
    harness = Harness()
    async with harness.running() as directory, trio.open_nursery() as nursery:
        if cause == "pause":
            directory.pause("by hand")
        else:
            harness.gate.close("the database is away")

        async def end() -> None:
            await trio.sleep(30)
            directory.resume("done")
            harness.gate.open()

        nursery.start_soon(end)
        found, took_s = await ask(harness, while_down)
        if while_down == "wait":
            assert (found, round(took_s)) == ("hello", 30)
        else:
            assert isinstance(found, Unavailable)
            assert took_s == 0


async def test_an_ask_that_waits_fails_at_its_deadline_unchanged(autojump_clock: MockClock) -> None:
    harness = Harness()
    async with harness.running() as directory:
        directory.pause("by hand")
        found, took_s = await ask(harness, "wait", deadline_s=7)
        assert isinstance(found, Unavailable)
        assert took_s == pytest.approx(7, abs=0.3)
        directory.resume("done")
        await wait_all_tasks_blocked()
        assert harness.handled["a"] == []


async def test_no_ask_waits_for_a_quarantine(autojump_clock: MockClock) -> None:
    harness = Harness()
    async with harness.running() as directory:
        directory.child("a").put_in_quarantine(describe(ValueError("by hand")), for_s=5)
        found, took_s = await ask(harness, "wait")
        assert isinstance(found, Quarantined)
        assert took_s == 0


async def test_a_message_whose_deadline_passed_is_a_dead_letter(autojump_clock: MockClock) -> None:
    harness = Harness()
    async with harness.running() as directory, trio.open_nursery() as nursery:
        nursery.start_soon(harness.ask, "a", Rest(20))
        await wait_all_tasks_blocked()
        with pytest.raises(OutcomeUnknown):
            await directory.ref("a").ask(Say("late"), deadline_s=5)
    [letter] = harness.dead_letters.recent()
    # What made it late was a warning when it began; one now would come after its end.
    assert [each.level for each in harness.reporter.recent() if each.kind == "dead_letter"] == ["info"]
    assert (letter.reason, letter.key, letter.message_type) == ("expired", "a", "Say")


@pytest.mark.parametrize("ending", ["deadline", "cancelled"])
async def test_a_reply_that_no_sender_waits_for_is_a_dead_letter(autojump_clock: MockClock, ending: str) -> None:
    harness = Harness()
    async with harness.running() as directory, trio.open_nursery() as nursery:
        with trio.move_on_after(3 if ending == "cancelled" else 900):
            await outcome(lambda: directory.ref("a").ask(Write("1"), deadline_s=5))
        harness.settle(Committed())
        await wait_all_tasks_blocked()
        assert harness.handled["a"] == ["1"]
        nursery.cancel_scope.cancel()
    [letter] = harness.dead_letters.recent()
    assert (letter.reason, letter.message_type) == ("orphan_reply", "Write")
