"""The rate at which one account may create tasks."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.actors.account.limits import AccountLimits, CreateRate
from holdfast.actors.account.messages import Recharge, TaskAccepted
from holdfast.actors.runtime.messages import Replayed
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import utc_now
from holdfast.persistence.records.operator_tables import Override

from .actor_system import StartSystem, create_task

NOW = utc_now()


class Counter:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def taken(rate: CreateRate, tries: int) -> int:
    """How many of so many creates go through."""
    count = 0
    for _ in range(tries):
        if rate.refuse(lambda: NOW) is None:
            rate.take()
            count += 1
    return count


def test_a_burst_is_allowed_and_then_a_rate() -> None:
    counter = Counter()
    limits = AccountLimits(task_creates_per_s=10, task_creates_burst=50)
    rate = CreateRate(limits, "acct_1", counter=counter)
    assert taken(rate, 80) == 50
    refusal = rate.refuse(lambda: NOW)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == ("rate_limit_exceeded", 1)
    counter.now_s += 2
    assert taken(rate, 80) == 20
    counter.now_s += 1000
    assert taken(rate, 80) == 50


@pytest.mark.parametrize("tries", [100_000])
def test_zero_means_no_limit(tries: int) -> None:
    limits = AccountLimits(task_creates_burst=1)
    assert taken(CreateRate(limits, "acct_1", counter=Counter()), tries) == tries


def limited_to(per_s: float, for_s: float = 90) -> Override:
    until = NOW + timedelta(seconds=for_s)
    return Override("account_creates", "acct_1", per_s, None, "why", None, "ops", "act_1", NOW, until)


def test_an_operators_number_replaces_the_setting() -> None:
    counter, set_by_operator = Counter(), list[Override]()
    limits = AccountLimits(
        task_creates_burst=7,
        creates_override=lambda account_id: next((o for o in set_by_operator if o.subject == account_id), None),
    )
    rate, other = [CreateRate(limits, account_id, counter=counter) for account_id in ("acct_1", "acct_2")]
    assert taken(rate, 100) == 100
    set_by_operator.append(limited_to(2))
    assert taken(rate, 9) == 2
    # Another read of the same row is no new allowance.
    set_by_operator[0] = limited_to(2)
    counter.now_s += 0.5
    assert taken(rate, 9) == 1
    assert taken(other, 100) == 100
    refusal = rate.refuse(lambda: NOW)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_s) == ("rate_limit_exceeded", 1)
    assert "2 tasks a second" in refusal.message
    # None at all: again once it ends.
    set_by_operator[0] = limited_to(0)
    counter.now_s += 1000
    refusal = rate.refuse(lambda: NOW)
    assert refusal is not None
    assert refusal.retry_after_s == 90
    # One in ten seconds, and not later than its end.
    set_by_operator[0] = limited_to(0.1, for_s=4)
    assert taken(rate, 5) == 1
    refusal = rate.refuse(lambda: NOW)
    assert refusal is not None
    assert refusal.retry_after_s == 4
    set_by_operator.clear()
    assert taken(rate, 100) == 100


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
