"""The rate at which one account may create tasks."""

from __future__ import annotations

import pytest

from holdfast.actors.account.limits import AccountLimits, CreateRate
from holdfast.actors.account.messages import Recharge, TaskAccepted
from holdfast.actors.runtime.messages import Replayed
from holdfast.ledger.refusals import Refusal

from .actor_system import StartSystem, create_task


class Counter:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def taken(rate: CreateRate, tries: int) -> int:
    """How many of so many creates go through."""
    count = 0
    for _ in range(tries):
        if rate.refuse() is None:
            rate.take()
            count += 1
    return count


def test_a_burst_is_allowed_and_then_a_rate() -> None:
    counter = Counter()
    rate = CreateRate(10, 50, counter=counter)
    assert taken(rate, 80) == 50
    refusal = rate.refuse()
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == ("rate_limit_exceeded", 1)
    counter.now_s += 2
    assert taken(rate, 80) == 20
    counter.now_s += 1000
    assert taken(rate, 80) == 50


@pytest.mark.parametrize("tries", [100_000])
def test_zero_means_no_limit(tries: int) -> None:
    assert taken(CreateRate(0, 1, counter=Counter()), tries) == tries


async def test_creates_above_the_rate_are_refused_replays_not_counted(
    start_system: StartSystem,
) -> None:
    system = await start_system(account_limits=AccountLimits(task_creates_per_s=0.001, task_creates_burst=2))
    account_id, key_id = await system.open_account()
    await system.ask(account_id, Recharge(100_000_000))
    first = await system.ask(account_id, create_task(key_id, key="one"))
    for _ in range(5):
        again = await system.ask(account_id, create_task(key_id, key="one"))
        assert not isinstance(again, Refusal)
    assert isinstance(first, TaskAccepted)
    assert isinstance(await system.ask(account_id, create_task(key_id)), TaskAccepted)
    refused = await system.ask(account_id, create_task(key_id, key="three"))
    assert isinstance(refused, Refusal)
    assert (refused.code, (refused.retry_after_s or 0) > 900) == ("rate_limit_exceeded", True)


async def test_repeats_that_are_found_in_rows_neither_cost_nor_free_allowance(start_system: StartSystem) -> None:
    limits = AccountLimits(task_creates_per_s=0.001, task_creates_burst=3, replies_max=1)
    system = await start_system(account_limits=limits)
    account_id, key_id = await system.open_account()
    account = system.accounts.ref(account_id)
    await account.ask(Recharge(100_000_000))
    for key in ("one", "two"):
        assert isinstance(await account.ask(create_task(key_id, key=key)), TaskAccepted)
    # The account remembers one reply: the other is found as the create is written, which ends the incarnation.
    for _ in range(2):
        for key in ("one", "two"):
            assert isinstance(await account.ask(create_task(key_id, key=key)), Replayed)
    assert isinstance(await account.ask(create_task(key_id)), TaskAccepted)
    refused = await account.ask(create_task(key_id))
    assert isinstance(refused, Refusal)
    assert refused.code == "rate_limit_exceeded"
