"""How a new task begins: with a slot it is submitted as soon as it is durable, without one it is queued."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.recorded_refs import RecordedRef

from holdfast.actors.account.limits import AccountLimits
from holdfast.actors.account.messages import Recharge, TaskAccepted
from holdfast.actors.runtime.messages import Replayed
from holdfast.actors.task.dependencies import NewTasks
from holdfast.actors.task.messages import CallProvider, SlotFreed, TaskQueued
from holdfast.ledger.tasks.dispatch import SUBMIT_LEASE_S
from holdfast.ledger.values import utc_now
from holdfast.persistence.claims.processes import end_lease, renew_lease, take_over, this_process
from holdfast.persistence.queries.loading import load_task

from .actor_system import StartSystem, create_task, task_dependencies


class Recorded:
    """New tasks that get a slot while there is one; records what is sent to their workers."""

    def __init__(self, slots: int, **parts: Any) -> None:
        self.slots = slots
        self.sent: list[object] = []
        ref = RecordedRef(self.sent.append)
        workers = {"dispatcher": ref, "provider_calls": ref}
        deps = task_dependencies(accounts=None, take_slot=self._take, **workers, **parts)
        self.new_tasks = NewTasks(deps)

    def _take(self, _provider: str, _request_id: str) -> bool:
        self.slots -= 1
        return self.slots >= 0


async def test_a_task_with_a_slot_is_submitted_once_it_is_durable(start_system: StartSystem) -> None:
    recorded = Recorded(slots=1)
    system = await start_system(begin_task=recorded.new_tasks.begin)
    account_id, key_id = await system.open_account(100_000_000)
    first, second = [await system.ask(account_id, create_task(key_id)) for _ in range(2)]
    assert isinstance(first, TaskAccepted)
    call, queued = recorded.sent
    assert isinstance(call, CallProvider)
    assert (call.call.request_id, call.call.attempt, call.account_id) == (first.request_id, 1, account_id)
    assert queued == TaskQueued(call.provider, second.request_id)

    row = await system.database.read(partial(load_task, request_id=first.request_id))
    assert recorded.new_tasks.take(first.request_id) == row
    assert row.wake_at is not None
    assert (row.version, row.state.dispatch, row.dispatched) == (1, "intent", True)
    assert SUBMIT_LEASE_S <= (row.wake_at - row.created_at).total_seconds() <= SUBMIT_LEASE_S * 1.25


async def test_a_task_with_a_slot_is_taken_over_when_its_process_ends(start_system: StartSystem) -> None:
    gone = this_process()
    recorded = Recorded(slots=1, member_id=gone.member_id)
    system = await start_system(begin_task=recorded.new_tasks.begin)
    account_id, key_id = await system.open_account(100_000_000)
    first, _ = [await system.ask(account_id, create_task(key_id)) for _ in range(2)]
    database, now = system.database, utc_now()
    await database.work(renew_lease, gone, now, ())
    await database.work(end_lease, gone)
    taken = await database.work(take_over, this_process(), now, leases_are_reliable=True)
    assert [(each.request_id, each.occupies) for each in taken] == [(first.request_id, True)]


async def test_a_create_that_is_a_repeat_frees_its_slot(start_system: StartSystem) -> None:
    recorded = Recorded(slots=9)
    limits = AccountLimits(replies_max=1)
    system = await start_system(begin_task=recorded.new_tasks.begin, account_limits=limits)
    account_id, key_id = await system.open_account()
    account = system.accounts.ref(account_id)
    await account.ask(Recharge(100_000_000))
    for key in ("one", "two"):
        assert isinstance(await account.ask(create_task(key_id, key=key)), TaskAccepted)
    assert [type(each) for each in recorded.sent] == [CallProvider] * 2
    recorded.sent.clear()
    # The account remembers one reply: the other is found as the create is written.
    assert isinstance(await account.ask(create_task(key_id, key="one")), Replayed)
    [freed] = recorded.sent
    assert isinstance(freed, SlotFreed)
    assert recorded.new_tasks.take(freed.request_id) is not None
