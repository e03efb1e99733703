"""Profiles of the event loop's thread, and the slowest turns."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
import trio
from msgspec import Struct
from trio.testing import MockClock

from holdfast.actors.runtime.actor import TrioActor
from holdfast.actors.runtime.mailbox import Envelope
from holdfast.telemetry import profile, slow_turns
from holdfast.telemetry.profile import NODES_MAX, OwnTime, ProfileNode, Stack, profile_of, sample_thread
from holdfast.telemetry.slow_turns import SPAN_S, SPANS, TurnsOf, slowest_turns
from holdfast_console.operators.computing import ROW_PX, flames_of


def compute_until(ended: threading.Event) -> None:
    while not ended.is_set():
        sum(range(100))


def test_a_thread_is_found_where_it_computes() -> None:
    ended = threading.Event()
    thread = threading.Thread(target=compute_until, args=(ended,))
    thread.start()
    assert thread.ident is not None
    try:
        found, took_s = sample_thread(thread.ident, 0.2)
    finally:
        ended.set()
        thread.join()
    assert found
    assert took_s >= 0.2
    assert all(f"{__name__}.compute_until" in stack for stack in found)
    assert sample_thread(thread.ident, 0.02)[0] == Counter()


def test_what_trio_is_called_by_is_left_out_and_its_waiting_is_idle() -> None:
    def get_events() -> Stack:
        return profile._stack_of(sys._getframe())

    def unrolled_run() -> Stack:
        def handler() -> Stack:
            return profile._stack_of(sys._getframe())

        return handler()

    assert get_events() == ()
    [name] = unrolled_run()
    assert name.endswith("handler")


def test_a_profile_is_a_tree_with_the_most_frequent_calls_first() -> None:
    stacks: dict[Stack, int] = {(): 60, ("a", "b"): 10, ("a", "c", "b"): 20, ("a",): 1, ("d",): 9}
    found = profile_of(stacks, 1.0)
    assert (found.samples, found.idle) == (100, 60)
    assert found.nodes == [
        ProfileNode(0, "a", 31),
        ProfileNode(1, "c", 20),
        ProfileNode(2, "b", 20),
        ProfileNode(1, "b", 10),
        ProfileNode(0, "d", 9),
    ]
    assert found.own == [OwnTime("b", 30), OwnTime("d", 9), OwnTime("a", 1)]
    bars = [(flame.name, flame.x, flame.width, flame.y) for flame in flames_of(found.nodes, 40)]
    assert bars == [
        ("a", "0.000%", "77.500%", 0),
        ("c", "0.000%", "50.000%", ROW_PX),
        ("b", "0.000%", "50.000%", 2 * ROW_PX),
        ("b", "50.000%", "25.000%", ROW_PX),
        ("d", "77.500%", "22.500%", 0),
    ]


def test_a_profile_is_bounded_and_no_node_is_without_its_caller() -> None:
    stacks: dict[Stack, int] = {("a", f"b{n}", f"c{n}"): n + 1 for n in range(NODES_MAX)}
    nodes = profile_of(stacks, 1.0).nodes
    assert len(nodes) == NODES_MAX
    depth = -1
    for node in nodes:
        assert node.depth <= depth + 1
        depth = node.depth


async def test_the_slowest_turn_of_an_hour_is_kept(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, other = TurnsOf("tasks", "Wake"), TurnsOf("accounts", "Recharge")
    monkeypatch.setattr(slow_turns, "_known", [turns, other])
    monkeypatch.setattr(slow_turns, "utc_now", lambda: datetime(2026, 11, 20, tzinfo=UTC))
    other.note(0.5, 0.0, ["acct_1"], None)
    turns.note(2.0, 0.0, ["task_1"], "trace")
    turns.note(3.0, 10.0, ["task_2"], "trace")
    turns.note(1.0, SPAN_S + 1, [], None)

    def shown(limit: int = 5) -> list[tuple[str, float, list[str]]]:
        return [(each.message, each.duration_s, each.about) for each in slowest_turns(limit)]

    assert shown() == [("Wake", 3.0, ["task_2"]), ("Recharge", 0.5, ["acct_1"])]
    assert shown(1) == [("Wake", 3.0, ["task_2"])]
    autojump_clock.jump(SPAN_S * SPANS + 1)
    assert shown() == [("Wake", 1.0, [])]
    for span in range(100):
        turns.note(1.0, span * SPAN_S + 2_000, [], None)
    assert len(turns.kept) == SPANS


async def test_an_actor_notes_its_slowest_turn(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    del autojump_clock
    monkeypatch.setattr(slow_turns, "_known", [])
    slow_turns.turns_of.cache_clear()

    class Patient(TrioActor):
        kind = "patient"

        async def on_receive(self, message: Any) -> None:
            await trio.sleep(message.for_s)

    class Sleep(Struct):
        for_s: float

    actor = Patient()
    for for_s in (1.0, 3.0, 2.0):
        await actor._turn(Envelope(Sleep(for_s), traceparent=None))
    [turn] = slowest_turns(5)
    assert (turn.actor, turn.message, turn.duration_s) == ("patient", "Sleep", 3.0)
