"""The rate of an actor's turns: of the last minute, and of less once the record is full."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from holdfast.actors.runtime.turn_rates import TurnRates


async def test_a_rate_is_that_of_the_time_which_the_record_has(autojump_clock: MockClock) -> None:
    turns = TurnRates(turns_max=4)
    assert turns.rates() == {}
    for key, pause_s in (("a", 10), ("b", 20), ("a", 10)):
        turns.add(key, trio.current_time())
        await trio.sleep(pause_s)
    assert turns.rates() == {"a": 2 / 60, "b": 1 / 60}
    for _ in range(4):
        turns.add("c", trio.current_time())
    assert turns.rates() == {"c": 4}
    await trio.sleep(20)
    assert turns.rates() == {"c": 4 / 20}
    await trio.sleep(41)
    assert turns.rates() == {}
