"""The dispatcher on real rows: slots, backlogs, due tasks, and tasks of ended processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, cast

import psycopg
import pytest
import sqlalchemy
import trio
import trio.testing
from msgspec.structs import replace
from sqlalchemy import Connection
from tests.recorded_refs import RecordedRef

from holdfast.actors.runtime.faults import Crashed, Unavailable
from holdfast.actors.runtime.refs import WorkerRef
from holdfast.actors.task.messages import SlotFreed, TaskQueued, Wake
from holdfast.actors.workers.dispatcher import (
    FOLLOW_UP_EVERY_CHECKS,
    FOLLOW_UPS_MAX,
    RECOVERED_AT_ONCE_MAX,
    WAKES_AT_ONCE_MAX,
    Dispatcher,
    DispatcherRef,
    NewTaskSlots,
)
from holdfast.ledger.catalog.terms import Deadlines
from holdfast.ledger.values import utc_now
from holdfast.persistence.claims import tasks as claims
from holdfast.persistence.claims.processes import (
    LEASE_S,
    TAKEN_OVER_MAX,
    Process,
    end_lease,
    renew_lease,
    take_over,
    this_process,
)
from holdfast.persistence.claims.tasks import claim_waiting
from holdfast.persistence.records import tables
from holdfast.persistence.records.unreadable import UnreadableRow
from holdfast.persistence.server.database import Database
from holdfast.telemetry import metrics


@dataclass
class Tasks:
    """Records which tasks are woken."""

    woken: list[tuple[str, bool]] = field(default_factory=list)
    was_woken: trio.Event = field(default_factory=trio.Event)
    may_reply: trio.Event = field(default_factory=trio.Event)
    faults: dict[str, Exception] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.may_reply.set()

    def ref(self, key: str) -> RecordedRef:
        """Return an address that records the wake."""
        return RecordedRef(lambda message: self._wake(key, message), lambda message: self._ask(key, message))

    async def _ask(self, key: str, message: object) -> None:
        self._wake(key, message)
        await self.may_reply.wait()
        if key in self.faults:
            raise self.faults[key]

    def _wake(self, key: str, message: object) -> None:
        assert isinstance(message, Wake)
        self.woken.append((key, message.recovering))
        self.was_woken.set()

    async def count(self, number: int) -> list[tuple[str, bool]]:
        """Wait for ``number`` wakes and return them."""
        with trio.fail_after(60):
            while len(self.woken) < number:
                self.was_woken = trio.Event()
                await self.was_woken.wait()
        return self.woken


@dataclass
class Setup:
    """The parts of a dispatcher with two slots at the studio."""

    database: Database
    ref: WorkerRef
    tasks: Tasks
    nursery: trio.Nursery
    process: Process = field(default_factory=this_process)
    removed: set[str] = field(default_factory=set)
    leases_are_reliable: bool = True
    paused_models: list[str] = field(default_factory=list)
    slots: int = 2
    new_task_slots: NewTaskSlots = field(default_factory=NewTaskSlots)

    async def insert_task(
        self,
        request_id: str,
        *,
        dispatched: bool,
        due_in_s: float,
        provider: str = "studio",
        ends_in_s: float = 3600,
        hosting: str | None = None,
        account_id: str = "acct_1",
        owner: str | None = None,
        deadline_s: int | None = None,
        model: str = "studio/image-1",
    ) -> None:
        """Insert a task's row."""
        now = utc_now()
        ends_at = now + timedelta(seconds=ends_in_s)
        row = {
            "account_id": account_id,
            "request_id": request_id,
            "version": 1,
            "status": "queued",
            "model": model,
            "provider": provider,
            "created_at": ends_at - timedelta(seconds=Deadlines().overall_s),
            "updated_at": now,
            "wake_at": now + timedelta(seconds=due_in_s),
            "dispatched": dispatched,
            "request": {} if deadline_s is None else {"deadline_s": deadline_s},
            "input": {},
            "owner": owner,
            "state": {"hosting": {} if hosting is None else {"status": hosting}},
            "overall_deadline_at": ends_at,
            "dispatch_s": 60,
            "run_s": 900,
        }
        await self.database.work(lambda rows: rows.execute(sqlalchemy.insert(tables.tasks), [row]).rowcount)

    def dispatcher(self, *, assigns_slots: Callable[[str], bool] = lambda _: True) -> Dispatcher:
        """Create a dispatcher."""
        return Dispatcher(
            self.ref,
            database=self.database,
            tasks=self.tasks,
            slots=lambda: {"studio": self.slots},
            paused_models=lambda: self.paused_models,
            now=utc_now,
            process=self.process,
            removed=lambda provider: provider in self.removed,
            leases_are_reliable=lambda: self.leases_are_reliable,
            assigns_slots=assigns_slots,
            new_task_slots=self.new_task_slots,
        )

    async def start(self) -> None:
        """Start a dispatcher."""
        dispatcher = self.dispatcher()
        await self.nursery.start(lambda *, task_status: dispatcher.run(task_status=task_status))


@pytest.fixture
async def setup(database: Database, nursery: trio.Nursery) -> AsyncIterator[Setup]:
    yield Setup(database, WorkerRef("dispatcher"), Tasks(), nursery)
    nursery.cancel_scope.cancel()


async def test_slots_go_to_the_oldest_tasks_first(setup: Setup) -> None:
    for number in (3, 2, 1):
        await setup.insert_task(f"task_{number}", dispatched=False, due_in_s=-10 * number)
    await setup.start()

    assert await setup.tasks.count(2) == [("task_3", False), ("task_2", False)]

    setup.ref.tell(TaskQueued("studio", "task_new"))
    setup.ref.tell(SlotFreed("studio", "task_3"))
    assert (await setup.tasks.count(3))[2] == ("task_1", False)


async def test_the_gauges_have_the_slots_that_are_assigned_here(setup: Setup) -> None:
    def slots() -> tuple[float, float]:
        gauges = (metrics.PROVIDER_SLOTS, metrics.PROVIDER_SLOTS_USED)
        total, used = (float(gauge.labels("studio")._value.get()) for gauge in gauges)
        return total, used

    await setup.insert_task("task_1", dispatched=False, due_in_s=-1)
    is_ours = True
    dispatcher = setup.dispatcher(assigns_slots=lambda _: is_ours)
    for _ in range(FOLLOW_UP_EVERY_CHECKS):
        await dispatcher.check_due()
    assert slots() == (2, 1)
    is_ours = False
    await dispatcher.check_due()
    assert slots() == (0, 0)


async def test_slots_that_are_freed_together_are_assigned_together(setup: Setup) -> None:
    for number in range(4):
        await setup.insert_task(f"task_{number}", dispatched=False, due_in_s=number - 10)
    dispatcher = setup.dispatcher()
    await dispatcher.check_due()
    for number in range(2):
        dispatcher.on_receive(SlotFreed("studio", f"task_{number}"))
    assert [key for key, _ in setup.tasks.woken] == ["task_0", "task_1"]
    await dispatcher.assign_freed()
    assert [key for key, _ in setup.tasks.woken] == ["task_0", "task_1", "task_2", "task_3"]


async def test_a_new_task_starts_at_once_only_without_a_backlog(setup: Setup) -> None:
    dispatcher = setup.dispatcher()

    dispatcher.on_receive(TaskQueued("studio", "task_unsure"))
    assert setup.tasks.woken == []

    await dispatcher.check_due()
    dispatcher.on_receive(TaskQueued("studio", "task_new"))
    assert setup.tasks.woken == [("task_new", False)]


async def test_a_task_is_created_with_a_slot_only_without_a_backlog(setup: Setup) -> None:
    slots = setup.new_task_slots
    assert not slots.take("studio", "task_early")
    dispatcher = setup.dispatcher()
    assert not slots.take("studio", "task_unsure")

    await dispatcher.check_due()
    assert not slots.take("elsewhere", "task_other")
    setup.paused_models.append("studio/video-1")
    assert not slots.take("studio", "task_paused")
    setup.paused_models.clear()
    assert [slots.take("studio", f"task_{n}") for n in range(3)] == [True, True, False]

    # The third waits, and comes before those that are created later.
    dispatcher.on_receive(TaskQueued("studio", "task_2"))
    dispatcher.on_receive(SlotFreed("studio", "task_0"))
    assert not slots.take("studio", "task_3")
    assert setup.tasks.woken == []


async def test_a_dispatcher_that_has_ended_gives_no_slots(setup: Setup) -> None:
    dispatcher = setup.dispatcher()
    await dispatcher.check_due()
    assert setup.new_task_slots.take("studio", "task_1")
    dispatcher.actor_stopped.set()
    assert not setup.new_task_slots.take("studio", "task_2")
    await setup.dispatcher().check_due()
    assert setup.new_task_slots.take("studio", "task_2")


async def test_a_dispatcher_gives_no_slots_that_another_process_assigns(setup: Setup) -> None:
    is_ours = True
    dispatcher = setup.dispatcher(assigns_slots=lambda _: is_ours)
    await dispatcher.check_due()
    assert setup.new_task_slots.take("studio", "task_1")
    # Its next check, which would find that, may be seconds away.
    is_ours = False
    assert not setup.new_task_slots.take("studio", "task_2")


class SlowDatabase:
    """The database; an answer arrives once ``on_answer`` was called with the work, and ``may_answer`` is set."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.on_answer: Callable[[object], object] = lambda _: None
        self.may_answer = trio.Event()
        self.may_answer.set()

    async def work(self, work: Callable[..., Any], *args: object, **options: object) -> Any:
        """Do the work; its result is returned later."""
        answer = await self._database.work(work, *args, **options)
        self.on_answer(work)
        await self.may_answer.wait()
        return answer

    read = work


@pytest.fixture
def slow(setup: Setup) -> SlowDatabase:
    slow = SlowDatabase(setup.database)
    setup.database = cast("Database", slow)
    return slow


async def test_no_message_waits_for_a_slow_database_and_none_is_lost(
    setup: Setup, slow: SlowDatabase, database: Database
) -> None:
    dropped: list[object] = []
    setup.ref.on_full = dropped.append
    setup.ref.actor_inbox.capacity = 2
    dispatcher = setup.dispatcher()
    setup.database = database
    is_asked, slow.may_answer = trio.Event(), trio.Event()
    slow.on_answer = lambda work: is_asked.set() if work is take_over else None
    await setup.nursery.start(lambda *, task_status: dispatcher.run(task_status=task_status))
    await is_asked.wait()

    for number in range(10):
        await setup.insert_task(f"task_{number}", dispatched=False, due_in_s=number - 60)
        setup.ref.tell(TaskQueued("studio", f"task_{number}"))
        setup.ref.tell(SlotFreed("studio", f"task_before_{number}"))
        await trio.testing.wait_all_tasks_blocked()
        assert setup.ref.actor_inbox.empty()

    assert dropped == []
    slow.may_answer.set()
    for number in range(10):
        assert (await setup.tasks.count(number + 1))[number] == (f"task_{number}", False)
        setup.ref.tell(SlotFreed("studio", f"task_{number}"))


async def test_tasks_that_arrive_during_a_claim_get_the_slots_that_it_leaves(
    setup: Setup, slow: SlowDatabase
) -> None:
    dispatcher = setup.dispatcher()
    await dispatcher.check_due()
    dispatcher.on_receive(TaskQueued("studio", "task_held"))
    slow.on_answer = lambda _: dispatcher.on_receive(TaskQueued("studio", "task_new"))
    for _ in range(FOLLOW_UP_EVERY_CHECKS):
        await dispatcher.check_due()
    assert setup.tasks.woken == [("task_held", False), ("task_new", False)]


async def test_messages_are_handled_at_once_where_slots_are_assigned(setup: Setup) -> None:
    is_ours = True
    sent: list[object] = []
    address = DispatcherRef(RecordedRef(sent.append), setup.new_task_slots)

    def is_sent(message: TaskQueued | SlotFreed) -> bool:
        address.tell(message)
        return bool(sent) and sent.pop() == message

    assert is_sent(TaskQueued("studio", "task_early")), "there is no dispatcher"
    dispatcher = setup.dispatcher(assigns_slots=lambda _: is_ours)
    assert is_sent(SlotFreed("studio", "task_early")), "it has not read who occupies slots"
    await dispatcher.check_due()
    assert not any(is_sent(TaskQueued("studio", f"task_{number}")) for number in range(3))
    assert setup.tasks.woken == [("task_0", False), ("task_1", False)]
    await setup.insert_task("task_2", dispatched=False, due_in_s=-1)
    assert not is_sent(SlotFreed("studio", "task_0"))
    await dispatcher.assign_freed()
    assert setup.tasks.woken[2:] == [("task_2", False)]
    assert is_sent(SlotFreed("elsewhere", "task_1")), "it is not a provider of its own"
    is_ours = False
    assert is_sent(SlotFreed("studio", "task_1")), "another process assigns the slots now"
    is_ours = True
    dispatcher.actor_stopped.set()
    assert is_sent(SlotFreed("studio", "task_1")), "the next dispatcher reads it in the mailbox"


async def test_a_fault_in_a_message_handled_at_once_spares_its_sender(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[object] = []
    address = DispatcherRef(RecordedRef(sent.append), setup.new_task_slots)
    dispatcher = setup.dispatcher()
    await dispatcher.check_due()
    monkeypatch.setattr(setup.tasks, "ref", lambda _: 1 / 0)
    address.tell(TaskQueued("studio", "task_new"))
    assert sent == [TaskQueued("studio", "task_new")]


async def test_no_task_is_created_with_a_slot_during_a_claim(setup: Setup, slow: SlowDatabase) -> None:
    taken: list[bool] = []
    dispatcher = setup.dispatcher()

    def create(work: object) -> None:
        if work is claim_waiting:
            taken.append(dispatcher.take_slot("studio", "task_new"))

    await dispatcher.check_due()
    slow.on_answer = create
    for _ in range(FOLLOW_UP_EVERY_CHECKS):
        await dispatcher.check_due()
    assert taken == [False]
    assert dispatcher.take_slot("studio", "task_new")


async def test_tasks_that_arrive_during_a_claim_wait_in_their_rows(setup: Setup, slow: SlowDatabase) -> None:
    dispatcher = setup.dispatcher()

    def arrive(work: object) -> None:
        if work is claim_waiting:
            for number in range(3):
                dispatcher.on_receive(TaskQueued("studio", f"task_{number}"))

    await dispatcher.check_due()
    for number in range(4):
        await setup.insert_task(f"task_{number}", dispatched=False, due_in_s=number - 60)
    # The claim has found the oldest two, which are announced as it returns.
    slow.on_answer = arrive
    for _ in range(FOLLOW_UP_EVERY_CHECKS):
        await dispatcher.check_due()
    assert setup.tasks.woken == [("task_0", False), ("task_1", False)]
    dispatcher.on_receive(SlotFreed("studio", "task_0"))
    dispatcher.on_receive(TaskQueued("studio", "task_3"))
    await dispatcher.assign_freed()
    assert setup.tasks.woken[2:] == [("task_2", False)]


async def test_a_task_that_ends_while_the_rows_are_read_holds_no_slot(setup: Setup, slow: SlowDatabase) -> None:
    for name in ("task_ends", "task_runs"):
        await setup.insert_task(name, dispatched=True, due_in_s=3600, owner=setup.process.member_id)
    await setup.insert_task("task_waits", dispatched=False, due_in_s=-1)
    dispatcher = setup.dispatcher()
    slow.on_answer = lambda _: dispatcher.on_receive(SlotFreed("studio", "task_ends"))
    await dispatcher.check_due()
    assert setup.tasks.woken == [("task_waits", False)]


async def test_jobs_of_an_earlier_process_occupy_slots_until_they_end(setup: Setup) -> None:
    await setup.insert_task("task_running", dispatched=True, due_in_s=3600, owner="proc_gone")
    await setup.insert_task(
        "task_storing", dispatched=True, due_in_s=3600, owner="proc_gone", hosting="transferring"
    )
    for number in (1, 2):
        await setup.insert_task(f"task_{number}", dispatched=False, due_in_s=-10 * number)
    dispatcher = setup.dispatcher()

    await dispatcher.check_due()
    assert setup.tasks.woken == [("task_2", False)]

    dispatcher.on_receive(SlotFreed("studio", "task_running"))
    await dispatcher.assign_freed()
    assert setup.tasks.woken == [("task_2", False), ("task_1", False)]


async def test_a_claimed_task_is_not_claimed_again_within_its_lease(setup: Setup) -> None:
    me = setup.process.member_id
    await setup.insert_task("task_due", dispatched=True, due_in_s=-1, owner=me)
    await setup.start()
    await setup.tasks.count(1)

    await setup.insert_task("task_later", dispatched=True, due_in_s=-1, owner=me)

    woken = await setup.tasks.count(2)
    assert sorted(key for key, _ in woken) == ["task_due", "task_later"]


async def test_waiting_tasks_are_woken_at_their_deadline(setup: Setup) -> None:
    dispatcher = setup.dispatcher()
    for name in ("task_1", "task_2"):
        await setup.insert_task(name, dispatched=False, due_in_s=-100)
    await setup.insert_task("task_gone", dispatched=False, due_in_s=-90, provider="gone", ends_in_s=-60)
    await setup.insert_task("task_full", dispatched=False, due_in_s=-80, ends_in_s=-60)
    await setup.insert_task("task_hopes", dispatched=False, due_in_s=-70, provider="gone")
    await dispatcher.check_due()
    assert sorted(key for key, _ in setup.tasks.woken) == ["task_1", "task_2"]
    await dispatcher.wake_overdue()
    assert sorted(key for key, _ in setup.tasks.woken) == ["task_1", "task_2", "task_full", "task_gone"]


async def test_slots_go_to_accounts_in_turn_and_by_age_within_one(setup: Setup) -> None:
    for number in range(6):
        await setup.insert_task(f"task_a{number}", account_id="acct_a", dispatched=False, due_in_s=-100 + number)
    await setup.insert_task("task_b0", account_id="acct_b", dispatched=False, due_in_s=-3)
    await setup.insert_task("task_c0", account_id="acct_c", dispatched=False, due_in_s=-1)
    await setup.insert_task("task_c1", account_id="acct_c", dispatched=False, due_in_s=-2)
    await setup.insert_task("task_late", account_id="acct_d", dispatched=False, due_in_s=60)
    dispatcher = setup.dispatcher()

    await dispatcher.check_due()
    for freed in ("task_a0", "task_b0", "task_c1", "task_a1", "task_c0", "task_a2"):
        dispatcher.on_receive(SlotFreed("studio", freed))
        await dispatcher.assign_freed()

    order = [key for key, _ in setup.tasks.woken]
    assert order[:5] == ["task_a0", "task_b0", "task_c1", "task_a1", "task_c0"]
    assert order[5:] == ["task_a2", "task_a3", "task_a4"]


async def test_tasks_of_a_paused_model_stay_where_they_are_and_others_pass_them(setup: Setup) -> None:
    for number in range(3):
        await setup.insert_task(f"task_p{number}", dispatched=False, due_in_s=-100 + number, model="studio/clip-1")
    await setup.insert_task("task_other", dispatched=False, due_in_s=-1)
    setup.paused_models = ["studio/clip-1"]
    dispatcher = setup.dispatcher()
    await dispatcher.check_due()
    assert setup.tasks.woken == [("task_other", False)]
    # A new one is not known to be of another model, so that a claim decides.
    await setup.insert_task("task_new", dispatched=False, due_in_s=0, model="studio/clip-1")
    dispatcher.on_receive(TaskQueued("studio", "task_new"))
    await dispatcher.check_due()
    assert len(setup.tasks.woken) == 1
    setup.paused_models = []
    await dispatcher.check_due()
    assert setup.tasks.woken[1:] == [("task_p0", False)]


async def test_others_are_reached_behind_many_accounts_of_a_paused_model(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "ACCOUNTS_PROBED_MAX", 2)
    for name in "abcef":
        await setup.insert_task(
            f"task_{name}", account_id=f"acct_{name}", dispatched=False, due_in_s=-10, model="studio/clip-1"
        )
    await setup.insert_task("task_other", account_id="acct_d", dispatched=False, due_in_s=-1)
    setup.paused_models = ["studio/clip-1"]
    dispatcher = setup.dispatcher()
    for _ in range(2):
        await dispatcher.check_due()
    assert setup.tasks.woken == [("task_other", False)]
    # Those before it come again in their turn.
    await setup.insert_task("task_first", account_id="acct_a", dispatched=False, due_in_s=-1)
    for _ in range(2):
        await dispatcher.check_due()
    assert setup.tasks.woken[1:] == [("task_first", False)]


async def test_slots_that_are_set_to_none_and_more_count_from_the_next_check(setup: Setup) -> None:
    for number in range(4):
        await setup.insert_task(f"task_{number}", dispatched=False, due_in_s=-100 + number)
    setup.slots = 0
    dispatcher = setup.dispatcher()
    await dispatcher.check_due()
    assert setup.tasks.woken == []
    setup.slots = 3
    await dispatcher.check_due()
    assert [key for key, _ in setup.tasks.woken] == ["task_0", "task_1", "task_2"]


async def test_more_slots_than_accounts_are_shared_evenly(database: Database, setup: Setup) -> None:
    for number in range(9):
        await setup.insert_task(f"task_a{number}", account_id="acct_a", dispatched=False, due_in_s=-100 + number)
    for number in range(2):
        await setup.insert_task(f"task_b{number}", account_id="acct_b", dispatched=False, due_in_s=-10 + number)

    def claim(rows: Connection) -> tuple[list[str], str]:
        return claim_waiting(rows, "studio", slots=7, after="acct_a", now=utc_now())

    claimed, _ = await database.work(claim)
    assert Counter(name[:6] for name in claimed) == {"task_a": 5, "task_b": 2}
    assert {"task_a0", "task_a1", "task_a2", "task_b0", "task_b1"} < set(claimed)


async def test_the_next_account_is_found_through_the_index(database: Database, database_url: str) -> None:
    def fill(rows: Connection) -> None:
        rows.execute(
            sqlalchemy.text(
                "insert into tasks (account_id, request_id, version, status, model, provider, created_at, "
                "updated_at, wake_at, dispatched, request, input, state, overall_deadline_at, dispatch_s, run_s) "
                "select 'acct_' || i % 3, 'task_' || i, 1, 'queued', 'm', 'studio', now(), now(), "
                "now() - interval '1 minute', false, '{}', '{}', '{}', now(), 60, 900 "
                "from generate_series(1, 20000) i"
            )
        )

    await database.work(fill)
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("analyze tasks")

    def claimed(rows: Connection) -> tuple[list[str], int]:
        taken, _ = claim_waiting(rows, "studio", slots=3, after="", now=utc_now())
        seen = "select coalesce(sum(seq_tup_read), 0) from pg_stat_xact_user_tables where relname = 'tasks'"
        return taken, rows.execute(sqlalchemy.text(seen)).scalar_one()

    taken, rows_read_in_sequence = await database.work(claimed)
    assert len(taken) == 3
    assert rows_read_in_sequence == 0


async def test_tasks_of_a_running_process_are_left_to_it(setup: Setup) -> None:
    other = replace(this_process(), machine="another machine")
    now = utc_now()
    await setup.database.work(lambda rows: renew_lease(rows, other, now, ["studio"]))
    await setup.insert_task("task_theirs", dispatched=True, due_in_s=-1, owner=other.member_id)
    await setup.insert_task("task_ours", dispatched=True, due_in_s=-1, owner=setup.process.member_id)
    dispatcher = setup.dispatcher()

    for _ in range(2 * FOLLOW_UP_EVERY_CHECKS):
        await dispatcher.check_due()
    assert setup.tasks.woken == [("task_ours", False)]

    await setup.database.work(lambda rows: end_lease(rows, other))
    setup.nursery.start_soon(dispatcher.recover)
    for _ in range(FOLLOW_UP_EVERY_CHECKS):
        await dispatcher.check_due()
    assert await setup.tasks.count(2) == [("task_ours", False), ("task_theirs", True)]


async def test_a_lapsed_lease_counts_only_after_time_to_renew(setup: Setup) -> None:
    other = replace(this_process(), machine="another machine")
    lapsed = utc_now() - timedelta(seconds=2 * LEASE_S)
    await setup.database.work(lambda rows: renew_lease(rows, other, lapsed, ["studio"]))
    for name, due_in_s in (("task_theirs", 600), ("task_theirs_due", -1)):
        await setup.insert_task(name, dispatched=True, due_in_s=due_in_s, owner=other.member_id)
    dispatcher = setup.dispatcher()
    setup.nursery.start_soon(dispatcher.recover)
    setup.leases_are_reliable = False
    for _ in range(2 * FOLLOW_UP_EVERY_CHECKS):
        await dispatcher.check_due()
    await trio.testing.wait_all_tasks_blocked()
    assert setup.tasks.woken == []
    setup.leases_are_reliable = True
    for _ in range(FOLLOW_UP_EVERY_CHECKS):
        await dispatcher.check_due()
    assert sorted(await setup.tasks.count(2)) == [("task_theirs", True), ("task_theirs_due", True)]


@pytest.mark.skipif(this_process().machine is None, reason="this system does not list running processes")
async def test_a_killed_process_on_this_machine_is_detected_at_once(setup: Setup) -> None:
    before = this_process()
    gone = replace(before, member_id="proc_gone", started="0")
    now = utc_now()
    await setup.database.work(lambda rows: renew_lease(rows, gone, now, ["studio"]))
    await setup.insert_task("task_left", dispatched=True, due_in_s=600, owner="proc_gone")
    dispatcher = setup.dispatcher()
    setup.leases_are_reliable = False

    setup.nursery.start_soon(dispatcher.recover)
    await dispatcher.check_due()

    assert await setup.tasks.count(1) == [("task_left", True)]


async def test_tasks_of_ended_processes_are_woken_a_few_at_a_time(setup: Setup) -> None:
    now = utc_now()
    for name, number in (("first", TAKEN_OVER_MAX + 20), ("second", 30)):
        ended = replace(this_process(), member_id=f"proc_{name}", machine="another machine")
        await setup.database.work(partial(renew_lease, process=ended, now=now, providers=["studio"]))
        await setup.database.work(partial(end_lease, process=ended))
        for task in range(number):
            await setup.insert_task(f"{name}_{task}", dispatched=True, due_in_s=-1, owner=f"proc_{name}")
    setup.tasks.may_reply = trio.Event()
    dispatcher = setup.dispatcher()
    for loop in dispatcher.background_loops():
        if loop == dispatcher.recover:
            setup.nursery.start_soon(loop)

    await dispatcher.check_due()
    await setup.tasks.count(RECOVERED_AT_ONCE_MAX)
    # The claims lapse before their tasks have been woken; each is woken once, and no more are taken over.
    lapse = sqlalchemy.update(tables.tasks).where(tables.tasks.c.owner == setup.process.member_id)
    await setup.database.work(lambda rows: rows.execute(lapse.values(wake_at=now)).rowcount)
    for _ in range(2 * FOLLOW_UP_EVERY_CHECKS):
        await dispatcher.check_due()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert len(setup.tasks.woken) == RECOVERED_AT_ONCE_MAX

    setup.tasks.may_reply.set()
    taken_first = await setup.tasks.count(TAKEN_OVER_MAX + 30)
    assert {name.partition("_")[0] for name, _ in taken_first} == {"first", "second"}
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert len(setup.tasks.woken) == TAKEN_OVER_MAX + 30
    for _ in range(FOLLOW_UP_EVERY_CHECKS):
        await dispatcher.check_due()
    woken = await setup.tasks.count(TAKEN_OVER_MAX + 50)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert Counter(woken) == {(name, True): 1 for name, _ in woken}


async def test_a_restarted_dispatcher_keeps_the_slots_of_running_tasks(setup: Setup) -> None:
    await setup.insert_task("task_runs", dispatched=True, due_in_s=600, owner=setup.process.member_id)
    for number in (1, 2):
        await setup.insert_task(f"task_{number}", dispatched=False, due_in_s=-10 * number)
    dispatcher = setup.dispatcher()

    for _ in range(2 * FOLLOW_UP_EVERY_CHECKS):
        await dispatcher.check_due()

    assert setup.tasks.woken == [("task_2", False)]


async def test_tasks_of_a_removed_provider_are_woken_unless_reachable(setup: Setup) -> None:
    other = replace(this_process(), machine="another machine")
    now = utc_now()
    await setup.database.work(lambda rows: renew_lease(rows, other, now, ["elsewhere"]))
    for provider in ("gone", "elsewhere", "lately"):
        await setup.insert_task(f"task_{provider}", dispatched=False, due_in_s=-1, provider=provider)
    setup.removed |= {"gone", "elsewhere"}
    dispatcher = setup.dispatcher()

    await dispatcher.wake_overdue()

    assert setup.tasks.woken == [("task_gone", False)]


async def test_deadlines_of_callers_pass_also_at_a_process_that_hangs(database: Database, setup: Setup) -> None:
    frozen = this_process()
    await database.work(lambda rows: renew_lease(rows, frozen, utc_now(), []))
    passed: dict[str, Any] = {"ends_in_s": -10, "deadline_s": 30}
    await setup.insert_task("task_frozen", dispatched=True, due_in_s=-10, owner=frozen.member_id, **passed)
    await setup.insert_task("task_waits", dispatched=False, due_in_s=-10, **passed)
    await setup.insert_task("task_other", dispatched=True, due_in_s=-10, owner=frozen.member_id)
    await setup.insert_task("task_early", dispatched=False, due_in_s=-10, ends_in_s=5, deadline_s=30)
    await setup.dispatcher().wake_past_deadline()
    assert sorted(key for key, _ in setup.tasks.woken) == ["task_frozen", "task_waits"]


async def test_overdue_tasks_that_do_not_reply_stop_no_other(setup: Setup) -> None:
    setup.tasks.faults = {
        "task_0": UnreadableRow("tasks task_0: no such status"),
        "task_1": Crashed("a bug"),
        "task_2": Unavailable("it restarts"),
    }
    for number in range(5):
        await setup.insert_task(f"task_{number}", dispatched=False, due_in_s=-80, ends_in_s=-60)
    await setup.dispatcher().wake_overdue()
    assert len(setup.tasks.woken) == 5


async def test_overdue_tasks_are_claimed_as_fast_as_they_end(setup: Setup) -> None:
    count = 2 * FOLLOW_UPS_MAX + 1
    for number in range(count):
        await setup.insert_task(f"task_{number}", dispatched=False, due_in_s=-80, ends_in_s=-60)
    setup.tasks.may_reply = trio.Event()
    setup.nursery.start_soon(setup.dispatcher().wake_overdue)

    await setup.tasks.count(WAKES_AT_ONCE_MAX)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert len(setup.tasks.woken) == WAKES_AT_ONCE_MAX
    setup.tasks.may_reply.set()
    await setup.tasks.count(count)
