"""The record of handled messages: every outcome, how long each message took, and what a full record forgets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from holdfast.actors.runtime.handled_messages import HandledMessages
from holdfast.actors.runtime.mailbox import Envelope, Mailbox
from holdfast.actors.workers.poison_writer import PoisonedMessage
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.journal.units import Committed, Fence, Stale, UnitResult, Unknown
from holdfast.supervision.control.keys import ControlledGroup
from holdfast.supervision.control.messages import (
    DescribeKey,
    KeyDescription,
    ListMessages,
    MessageList,
    MessageView,
    RestartKey,
)
from holdfast.supervision.keyed_child import KeyedLimits
from holdfast.telemetry.traces import within_trace

from .keyed_actors import Break, Harness, PlainActor, Rest, Say, Write, WritingActor, collect, outcome

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
MOVED = Stale((Fence("account", "a", 0),))


def messages(
    harness: Harness, key: str = "a", *, mask: Callable[[str], str] = str, **narrow: Any
) -> list[MessageView]:
    """The messages of a key, the newest first."""
    query = ListMessages("actors", key, **{"since": None, "until": None, "before": None, "limit": 100, **narrow})
    return ControlledGroup(harness.directory, "proc_1", mask).list_messages(query).messages


def summary(found: list[MessageView]) -> list[tuple[str, str, int]]:
    """Type, outcome and incarnation, in the order of the outcomes."""
    in_order = sorted(found, key=lambda each: each.id)
    return [(each.message_type, each.outcome, each.incarnation) for each in in_order]


async def test_a_message_has_its_wait_its_turn_and_its_trace(autojump_clock: MockClock) -> None:
    harness = Harness()
    async with harness.running(), trio.open_nursery() as nursery:
        with within_trace("00-" + "4" * 32 + "-" + "5" * 16 + "-00"):
            nursery.start_soon(collect, harness, [("a", Rest(2)), ("a", Say("a secret word"))], {})
            await trio.sleep(5)
        later, first = messages(harness)
        assert (first.waited_s, first.turn_s, first.total_s) == (0, 2, 2)
        assert (later.turn_s, later.waited_s) == (0, later.total_s)
        assert later.waited_s == pytest.approx(2, abs=0.01)
        assert first.trace_id == "4" * 32
        # Shown once it is answered, by the time of its arrival.
        assert abs(datetime.fromisoformat(later.at) - datetime.now(UTC)) < timedelta(minutes=1)
        assert b"secret" not in msgspec.json.encode([first, later])
        assert messages(harness, "unknown") == []


async def test_a_crash_a_restart_and_a_lost_sender_are_outcomes(autojump_clock: MockClock) -> None:
    harness = Harness()
    async with harness.running(), trio.open_nursery() as nursery:
        assert await harness.ask("a") == "hello"
        await outcome(lambda: harness.ask("a", Break()))
        assert await harness.ask("a") == "hello"
        # An operator ends an incarnation in its turn.
        nursery.start_soon(collect, harness, [("a", Rest(900))], {})
        await trio.sleep(1)
        await ControlledGroup(harness.directory, "proc_1", str).act(RestartKey("actors", "a", "it is stuck"))
        # A caller leaves; its message is handled all the same.
        with trio.move_on_after(1):
            await harness.ask("a", Rest(3))
        harness.directory.ref("a").tell(Say())
        await trio.sleep(5)
        assert summary(messages(harness)) == [
            ("Say", "replied", 1),
            ("Break", "crashed", 1),
            ("Say", "replied", 2),
            ("Rest", "cancelled", 2),
            ("Rest", "orphan_reply", 3),
            ("Say", "done", 3),
        ]


class Refusing(PlainActor):
    """Refuses everything."""

    async def on_receive(self, message: Any) -> Any:
        return Refusal(code="insufficient_credit", message="There is too little.")


async def test_an_actor_that_is_not_active_is_remembered(autojump_clock: MockClock) -> None:
    harness = Harness(limits=KeyedLimits(idle_s=10))
    async with harness.running():
        await harness.ask("ada")
        await trio.sleep(60)
        assert harness.live["ada"] == 0
        group = ControlledGroup(harness.directory, "proc_1", lambda key: f"masked:{len(key)}")
        found = group.describe_key(DescribeKey("actors", "masked:3"))
        assert isinstance(found, KeyDescription)
        assert (found.key, found.state) == ("masked:3", "passivated")
        assert isinstance(group.describe_key(DescribeKey("actors", "ada")), Refusal)


async def test_a_refusal_is_an_outcome(autojump_clock: MockClock) -> None:
    harness = Harness(actor=Refusing)
    async with harness.running():
        await harness.ask("a")
        assert summary(messages(harness)) == [("Say", "refused", 1)]


@pytest.mark.parametrize(("result", "expected"), [(Committed(), "replied"), (Unknown("cut off"), "failed")])
async def test_a_decision_has_its_outcome_once_durable(
    autojump_clock: MockClock, result: UnitResult, expected: str
) -> None:
    harness = Harness(actor=WritingActor)
    async with harness.running(), trio.open_nursery() as nursery:
        await trio.sleep(1)
        nursery.start_soon(collect, harness, [("a", Write("1"))], {})
        await trio.sleep(1)
        assert messages(harness) == []
        harness.settle(result)
        [found] = messages(harness)
        assert (found.outcome, found.turn_s, found.total_s) == (expected, 0, 1)


async def test_a_message_decided_twice_has_one_outcome(autojump_clock: MockClock) -> None:
    harness = Harness(actor=WritingActor)
    async with harness.running(), trio.open_nursery() as nursery:
        await trio.sleep(1)
        nursery.start_soon(collect, harness, [("a", Write("1"))], {})
        await trio.sleep(1)
        harness.settle(MOVED)
        await trio.sleep(1)
        harness.settle(Committed())
        [found] = messages(harness)
        assert (found.outcome, found.incarnation, found.total_s) == ("replied", 2, 2)
        assert found.waited_s == pytest.approx(1, abs=0.01)


async def test_a_poison_message_and_its_replay_are_both_handled(autojump_clock: MockClock) -> None:
    poison: list[PoisonedMessage] = []
    harness = Harness(poison=poison.append)
    async with harness.running():
        for _ in range(2):
            with within_trace("00-" + "6" * 32 + "-" + "5" * 16 + "-00"):
                await outcome(lambda: harness.ask("a", Break()))
        found = messages(harness)
        assert summary(found) == [("Break", "crashed", 1), ("Break", "crashed", 2)]
        assert [each.envelope.trace_id for each in poison] == [each.trace_id for each in found] == ["6" * 32] * 2


async def test_a_list_is_read_page_by_page(autojump_clock: MockClock) -> None:
    harness = Harness()
    async with harness.running():
        for _ in range(7):
            await harness.ask("a")
            await harness.ask("b")
        every = messages(harness)
        assert len({each.id for each in every}) == 7
        seen: list[MessageView] = []
        before = None
        while page := messages(harness, before=before, limit=3):
            assert len(page) <= 3
            seen += page
            before = (datetime.fromisoformat(page[-1].at), page[-1].id)
        assert seen == every
        last = datetime.fromisoformat(every[0].at)
        assert messages(harness, until=last - timedelta(hours=1)) == []
        assert messages(harness, since=last - timedelta(hours=1)) == every


async def test_a_key_that_is_masked_is_found_by_its_digest(autojump_clock: MockClock) -> None:
    harness = Harness()
    async with harness.running():
        await harness.ask("ada@example.com")
        [found] = messages(harness, "masked:15", mask=lambda key: f"masked:{len(key)}")
        assert b"ada" not in msgspec.json.encode(found)
        assert messages(harness, "ada@example.com", mask=lambda key: f"masked:{len(key)}") == []


@dataclass
class Clock:
    """The wall clock, which only a test moves."""

    s: float = NOON.timestamp()

    def __call__(self) -> float:
        return self.s


@dataclass
class AnyChild:
    """A child without a life of its own."""

    key: str
    incarnation: int = 1
    mailbox: Mailbox = field(default_factory=lambda: Mailbox(1))


async def test_a_full_record_forgets_the_oldest_and_says_so(autojump_clock: MockClock) -> None:
    clock = Clock()
    handled = HandledMessages(wall_clock=clock, records_max=3)
    await trio.sleep(100)
    assert (handled.since, handled.records_max) == (NOON, 3)
    for number in range(5):
        clock.s += 1
        envelope = Envelope(Say(), sent_at=trio.current_time() - 0.25)
        envelope.began_at = trio.current_time()
        handled.add(AnyChild("ab"[number % 2]), envelope, "replied")
    assert handled.since == NOON + timedelta(seconds=3)
    assert handled.known_keys() == {"a", "b"}
    found = list(handled.of("a"))
    assert [each.number for each in found] == [3, 5]
    assert [each.at - NOON for each in found] == [timedelta(seconds=2.75), timedelta(seconds=4.75)]
    assert found[0].waited_s == 0.25


async def test_a_rate_is_that_of_the_time_which_the_record_has(autojump_clock: MockClock) -> None:
    handled = HandledMessages(records_max=4)
    assert handled.rates() == {}
    for key, pause_s in (("a", 10), ("b", 20), ("a", 10)):
        handled.add(AnyChild(key), Envelope(Say()), "replied")
        await trio.sleep(pause_s)
    assert handled.rates() == {"a": 2 / 60, "b": 1 / 60}
    for _ in range(4):
        handled.add(AnyChild("c"), Envelope(Say()), "replied")
    assert handled.rates() == {"c": 4}
    await trio.sleep(20)
    assert handled.rates() == {"c": 4 / 20}
    await trio.sleep(41)
    assert handled.rates() == {}


def test_a_list_says_what_the_record_keeps() -> None:
    harness = Harness()
    query = ListMessages("actors", "a", None, None, None, 10)
    found = ControlledGroup(harness.directory, "proc_1", str).list_messages(query)
    assert isinstance(found, MessageList)
    assert (found.kept.member_id, found.kept.kept_max) == ("proc_1", 10_000)
