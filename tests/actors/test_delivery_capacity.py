"""Receivers that hang do not delay the events of others: the outbox worker's limits, on a test clock."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
import trio.testing
from tests.actors.test_outbox_worker import Setup

from holdfast.actors.task.messages import EventsDue
from holdfast.actors.workers.outbox import PER_RECEIVER_MAX, QUICK_MAX, SLOW_AFTER_S, SLOW_MAX, TO_SILENT_MAX
from holdfast.ledger.tasks.events import DeliveryResponse

TIMEOUT_S = 15.0
TICK_S = 2.0


def hanging(accounts: int, events: int = 1) -> Setup:
    """Return a worker's surroundings with events for receivers that hang until the timeout."""
    setup = Setup(
        answer=lambda url: DeliveryResponse(None, error="no answer") if "hangs" in url else DeliveryResponse(200),
        answer_after_s=lambda url: TIMEOUT_S if "hangs" in url else 0.05,
    )
    for number in range(accounts):
        for event in range(events):
            setup.add(f"evt_hangs_{number}_{event}", f"acct_hangs{number}")
    return setup


async def late_s(setup: Setup, event_id: str) -> float:
    """Return how long after now a new event of another account is sent."""
    began_s = trio.current_time() - setup.started_s
    setup.add(event_id, "acct_calm")
    setup.worker_ref.tell(EventsDue("acct_calm"))
    await trio.sleep(2 * SLOW_AFTER_S)
    [sent_s] = [at_s for at_s, _, headers, _ in setup.sent if headers["webhook-id"] == event_id]
    return sent_s - began_s


@pytest.mark.parametrize("accounts", [32, 100, pytest.param(1000, marks=pytest.mark.slow)])
async def test_hanging_receivers_do_not_delay_others(autojump_clock: trio.testing.MockClock, accounts: int) -> None:
    setup = hanging(accounts, events=5)
    waves = -(-accounts * PER_RECEIVER_MAX // QUICK_MAX)
    async with trio.open_nursery() as nursery:
        await setup.run(nursery, tick_s=TICK_S)
        # Each is in the way for a second.
        await trio.sleep((waves + 1) * SLOW_AFTER_S + TICK_S)
        late = [await late_s(setup, f"evt_{number}") for number in range(10)]
        nursery.cancel_scope.cancel()
    assert max(late) <= 0.01
    assert setup.most_running["all"] <= QUICK_MAX + SLOW_MAX


async def test_a_hanging_receiver_is_in_the_way_for_a_second(autojump_clock: trio.testing.MockClock) -> None:
    setup = hanging(QUICK_MAX)
    async with trio.open_nursery() as nursery:
        await setup.run(nursery, tick_s=TICK_S)
        await trio.sleep(0.1)
        assert await late_s(setup, "evt_1") <= SLOW_AFTER_S
        nursery.cancel_scope.cancel()


async def test_silent_receivers_share_a_limit_after_a_restart(
    autojump_clock: trio.testing.MockClock,
) -> None:
    setup = hanging(1000)
    setup.silent = {f"acct_hangs{number}" for number in range(1000)}
    async with trio.open_nursery() as nursery:
        await setup.run(nursery, tick_s=TICK_S)
        await trio.sleep(0.1)
        assert setup.running.total() == TO_SILENT_MAX
        assert await late_s(setup, "evt_1") <= 0.01
        await trio.sleep(5 * TIMEOUT_S)
        nursery.cancel_scope.cancel()
    # Within a tick of each one's end another begins, and none is tried twice before the others.
    assert len(setup.outcomes) >= 3 * TO_SILENT_MAX
    assert set(Counter(url for _, url, *_ in setup.sent).values()) == {1}


async def test_a_receiver_that_answers_again_is_no_longer_silent(autojump_clock: trio.testing.MockClock) -> None:
    setup = hanging(0)
    setup.silent = {"acct_calm"}
    async with trio.open_nursery() as nursery:
        await setup.run(nursery, tick_s=TICK_S)
        assert await late_s(setup, "evt_1") <= 0.01
        await trio.sleep(TICK_S)
        nursery.cancel_scope.cancel()
    assert setup.silent == set()


async def test_of_too_many_slow_deliveries_the_longest_is_ended(autojump_clock: trio.testing.MockClock) -> None:
    setup = hanging(QUICK_MAX + SLOW_MAX)
    async with trio.open_nursery() as nursery:
        await setup.run(nursery, tick_s=TICK_S)
        await trio.sleep(3 * SLOW_AFTER_S)
        nursery.cancel_scope.cancel()
    errors = Counter(row.error for row in setup.attempts)
    assert errors == {"ended early, because too many receivers are slow": QUICK_MAX}
    assert {row.status for row in setup.outcomes} == {"pending"}
    assert setup.most_running["all"] <= QUICK_MAX + SLOW_MAX


async def test_only_a_late_end_without_an_answer_makes_a_receiver_silent(
    autojump_clock: trio.testing.MockClock,
) -> None:
    setup = hanging(1)
    setup.add("evt_late", "acct_late")
    setup.add("evt_refuses", "acct_refuses")
    takes_s = {"late": 5.0, "refuses": 0.1}
    hangs, hangs_s = setup.answer, setup.answer_after_s
    setup.answer = lambda url: hangs("hangs" if "refuses" in url else url)
    setup.answer_after_s = lambda url: next((s for name, s in takes_s.items() if name in url), hangs_s(url))
    async with trio.open_nursery() as nursery:
        await setup.run(nursery, tick_s=TICK_S)
        await trio.sleep(TIMEOUT_S + 2 * TICK_S)
        nursery.cancel_scope.cancel()
    assert setup.silent == {"acct_hangs0"}
