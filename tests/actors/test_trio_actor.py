"""The actor itself: what of pykka's surface holds on trio, its fairness, and how an incarnation ends."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pykka
import pytest
import trio
from tests.recorded_refs import RecordedRef
from trio.testing import MockClock, wait_all_tasks_blocked

from holdfast.actors.runtime.actor import Ending, TrioActor
from holdfast.actors.runtime.faults import Crashed, OutcomeUnknown, StaleFence, Unavailable
from holdfast.actors.runtime.journaled import Commit, JournaledActor, Reload, Tell
from holdfast.actors.runtime.mailbox import Envelope, Mailbox, SystemMessage, TrioFuture
from holdfast.actors.runtime.messages import Command
from holdfast.persistence.journal.units import (
    AlreadyReplied,
    Broken,
    Committed,
    Fence,
    NotWritten,
    Stale,
    Unit,
    UnitResult,
    Unknown,
)
from holdfast.persistence.records.rows import IdempotencyProbe, StoredReply

OURS = Stale((Fence("account", "a", 0),))
THEIRS = Stale((Fence("task", "t", 0),))


class Counter(TrioActor):
    """Adds up its messages; strings make it do something else."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.events: list[str] = []

    async def on_receive(self, message: Any) -> Any:
        if message == "wait":
            await trio.sleep(10)
        elif message == "break":
            raise ValueError("broken on purpose")
        else:
            self.count += message
        return self.count

    def add(self, amount: int) -> int:
        """For proxies."""
        self.count += amount
        return self.count

    async def on_stop(self) -> None:  # type: ignore[override]  # may await
        self.events.append("stopped")

    def on_failure(self, *_: Any) -> None:
        self.events.append("failed")


async def serving(actor: TrioActor, endings: list[Any]) -> None:
    try:
        endings.append(await actor.serve())
    except Exception as exc:
        endings.append(exc)


async def test_messages_are_handled_in_order_until_a_stop(nursery: trio.Nursery) -> None:
    actor, endings = Counter(), list[Any]()
    nursery.start_soon(serving, actor, endings)
    actor.actor_ref.tell(1)
    assert await actor.actor_ref.ask(2) == 3
    last = actor.actor_ref.ask(4)
    actor.actor_inbox.put_system(SystemMessage.STOP)
    assert await last == 7
    await wait_all_tasks_blocked()
    assert endings == [Ending.STOPPED]
    assert actor.events == ["stopped"]
    assert not actor.actor_ref.is_alive()
    with pytest.raises(pykka.ActorDeadError):
        actor.actor_ref.tell(1)
    with pytest.raises(pykka.ActorDeadError):
        await actor.actor_ref.ask(1)


def test_blocking_asks_raise_instead_of_blocking_the_loop() -> None:
    actor = Counter()
    with pytest.raises(RuntimeError, match="without blocking"):
        actor.actor_ref.ask(1, block=True)
    with pytest.raises(RuntimeError, match="without blocking"):
        actor.actor_ref.ask(1, timeout=1)
    with pytest.raises(RuntimeError, match="supervisor"):
        Counter.start()
    assert pykka.ActorRegistry.get_all() == []


async def test_pykkas_stop_ends_the_actor_after_its_messages(nursery: trio.Nursery) -> None:
    actor, endings = Counter(), list[Any]()
    before = actor.actor_ref.ask(5)
    stopped = actor.actor_ref.stop(block=False)
    nursery.start_soon(serving, actor, endings)
    assert await before == 5
    assert await stopped is True
    await wait_all_tasks_blocked()
    assert endings == [Ending.STOPPED]
    assert actor.events == ["stopped"]
    assert await actor.actor_ref.stop(block=False) is False


async def test_a_proxy_calls_methods_and_reads_attributes_by_messages(nursery: trio.Nursery) -> None:
    actor, endings = Counter(), list[Any]()
    proxy: Any = actor.actor_ref.proxy()
    nursery.start_soon(serving, actor, endings)
    assert await proxy.add(3) == 3
    assert await proxy.count == 3
    proxy.count = 10
    assert await proxy.count == 10
    actor.actor_inbox.put_system(SystemMessage.STOP)


@pytest.mark.parametrize("asked", [True, False])
async def test_an_exception_in_an_ask_or_a_tell_ends_the_incarnation(nursery: trio.Nursery, asked: bool) -> None:
    actor, endings = Counter(), list[Any]()
    nursery.start_soon(serving, actor, endings)
    if asked:
        with pytest.raises(Crashed) as crash:
            await actor.actor_ref.ask("break")
        assert isinstance(crash.value.__cause__, ValueError)
    else:
        actor.actor_ref.tell("break")
    unread = Envelope(1)
    actor.actor_inbox.put(unread)
    await wait_all_tasks_blocked()
    assert [type(ending) for ending in endings] == [ValueError]
    assert actor.events == ["failed"]
    assert not actor.actor_ref.is_alive()
    assert actor.actor_inbox.get() is unread


async def test_a_long_mailbox_lets_other_tasks_run(nursery: trio.Nursery) -> None:
    actor, endings = Counter(), list[Any]()
    seen: list[int] = []

    async def onlooker() -> None:
        while not endings:
            seen.append(actor.count)
            await trio.lowlevel.checkpoint()

    for _ in range(900):
        actor.actor_ref.tell(1)
    actor.actor_inbox.put_system(SystemMessage.STOP)
    nursery.start_soon(onlooker)
    await serving(actor, endings)
    turns = [later - earlier for earlier, later in pairwise(seen)]
    assert actor.count == 900
    assert 0 < max(turns) <= 2 * Counter.turns_between_checkpoints


async def test_an_expired_message_is_skipped(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    actor, endings = Counter(), list[Any]()
    late: TrioFuture[object] = TrioFuture()
    with trio.fail_after(60):
        begun = actor.actor_ref.ask("wait")
        actor.actor_inbox.put(Envelope(5, late, deadline=trio.current_time() + 9))
        nursery.start_soon(serving, actor, endings)
        assert await begun == 0
        with pytest.raises(OutcomeUnknown):
            await late
        assert await actor.actor_ref.ask(1) == 1
        actor.actor_inbox.put_system(SystemMessage.STOP)


async def test_a_kill_in_the_middle_of_a_turn_leaves_the_outcome_unknown() -> None:
    actor, endings = Counter(), list[Any]()
    async with trio.open_nursery() as nursery:
        reply = actor.actor_ref.ask("wait")
        nursery.start_soon(serving, actor, endings)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    with pytest.raises(OutcomeUnknown):
        await reply
    assert endings == []
    assert not actor.actor_ref.is_alive()


# --------------------------------------------------------------------------------------- the bond with the journal


class WritingActor(JournaledActor):
    """Writes every number; replies to words at once; ``reload`` finds its state stale."""

    own_fences = frozenset({"account"})

    def __init__(self) -> None:
        super().__init__(Mailbox(100), self)  # type: ignore[arg-type]  # it is its own journal
        self.submitted: list[Unit] = []
        self.unwritten: list[object] = []
        self.fault: Exception | None = None

    def submit(self, unit: Unit, _: Any) -> None:
        self.submitted.append(unit)

    async def on_receive(self, message: Any) -> Any:
        if isinstance(message, int):
            probe = IdempotencyProbe("a", "r", str(message))
            recorder: Any = RecordedRef(lambda _: self.unwritten.append(message))
            return Commit(Unit(probe=probe), f"written {message}", tells_if_void=(Tell(recorder, Command()),))
        if message == "reload":
            raise Reload("stale")
        if message == "fault":
            assert self.fault is not None
            raise self.fault
        if message == "break":
            raise ValueError("broken on purpose")
        return f"said {message}"

    def settle_all(self, *results: UnitResult) -> None:
        for result in results:
            self.unit_ended(self.submitted.pop(0), result)


class Harness:
    """An actor that handles some messages."""

    def __init__(self, nursery: trio.Nursery, *messages: Any) -> None:
        self.actor = WritingActor()
        self.endings: list[Any] = []
        self.replies: list[Any] = [self.actor.actor_ref.ask(message) for message in messages]
        nursery.start_soon(serving, self.actor, self.endings)

    async def settle_all(self, *results: UnitResult) -> None:
        await wait_all_tasks_blocked()
        self.actor.settle_all(*results)
        await wait_all_tasks_blocked()

    @property
    def answers(self) -> list[Any]:
        """The reply of each ask, the type of its fault, or None while it waits."""
        answers: list[Any] = []
        for reply in self.replies:
            if not reply.is_set:
                answers.append(None)
                continue
            try:
                answers.append(reply.get())
            except Exception as exc:
                answers.append(type(exc))
        return answers

    @property
    def requeued(self) -> list[Any]:
        mailbox = self.actor.actor_inbox
        return [mailbox.get().message for _ in range(len(mailbox))]


async def test_a_reply_waits_for_earlier_undurable_decisions(nursery: trio.Nursery) -> None:
    harness = Harness(nursery, "a", 1, "b", 2, "c")
    await harness.settle_all()
    assert harness.answers == ["said a", None, None, None, None]
    await harness.settle_all(Committed())
    assert harness.answers == ["said a", "written 1", "said b", None, None]
    harness.actor.actor_inbox.put_system(SystemMessage.PASSIVATE)
    await wait_all_tasks_blocked()
    assert harness.endings == []
    await harness.settle_all(Committed())
    assert harness.answers[3:] == ["written 2", "said c"]
    assert harness.endings == [Ending.PASSIVATED]


@pytest.mark.parametrize(
    "result", [OURS, NotWritten("lost"), AlreadyReplied(IdempotencyProbe("a", "r", "2"), StoredReply(b"f", b"r"))]
)
async def test_a_void_decision_ends_the_incarnation_and_requeues_the_rest(
    nursery: trio.Nursery, result: UnitResult
) -> None:
    harness = Harness(nursery, 1, "a", 2, "b", 3, "c")
    await harness.settle_all(Committed(), result)
    assert harness.actor.is_void
    assert harness.endings == []
    await harness.settle_all(NotWritten("void"))
    assert harness.endings == [Ending.VOIDED]
    assert harness.answers == ["written 1", "said a", None, None, None, None]
    assert harness.requeued == [2, "b", 3, "c"]
    learned = [(IdempotencyProbe("a", "r", "2"), StoredReply(b"f", b"r"))]
    assert harness.actor.learned == (learned if isinstance(result, AlreadyReplied) else [])


async def test_unknown_results_are_replied_and_the_rest_requeued(nursery: trio.Nursery) -> None:
    harness = Harness(nursery, 1, 2, "a", 3)
    await harness.settle_all(Unknown("cut off"), Unknown("cut off"), NotWritten("void"))
    # What may have been written is not said to be void.
    assert harness.actor.unwritten == [3]
    assert harness.answers == [OutcomeUnknown, OutcomeUnknown, None, None]
    assert harness.requeued == ["a", 3]
    assert harness.endings == [Ending.VOIDED]


async def test_a_unit_the_database_refuses_crashes_its_command_only(nursery: trio.Nursery) -> None:
    harness = Harness(nursery, 1, 2, 3)
    await harness.settle_all(Committed(), Broken(ValueError("refused")), OURS)
    assert harness.answers == ["written 1", Crashed, None]
    [ending] = harness.endings
    assert isinstance(ending, Crashed)
    assert str(ending).endswith("refuses the unit of work of int: ValueError: refused")
    assert harness.requeued == [3]


async def test_a_stale_row_of_the_asker_is_replied_to_it(nursery: trio.Nursery) -> None:
    harness = Harness(nursery, 1, 2)
    await harness.settle_all(THEIRS, OURS)
    assert harness.answers == [StaleFence, None]
    assert harness.requeued == [2]
    assert harness.endings == [Ending.VOIDED]


async def test_when_both_rows_are_stale_the_command_is_decided_again(nursery: trio.Nursery) -> None:
    harness = Harness(nursery, 1)
    await harness.settle_all(Stale(THEIRS.fences + OURS.fences))
    assert harness.answers == [None]
    assert harness.requeued == [1]


async def test_a_reload_waits_for_open_units_which_are_answered(nursery: trio.Nursery) -> None:
    harness = Harness(nursery, 1, "a", 2, "reload", 3)
    await harness.settle_all()
    assert len(harness.actor.submitted) == 2
    await harness.settle_all(Committed(), NotWritten("void"))
    assert harness.answers == ["written 1", None, None, None, None]
    assert harness.requeued == ["a", 2, "reload", 3]
    assert harness.endings == [Ending.VOIDED]


async def test_a_reload_without_open_units_is_requeued_first(nursery: trio.Nursery) -> None:
    harness = Harness(nursery, "reload", 1)
    await harness.settle_all()
    assert harness.requeued == ["reload", 1]
    assert harness.endings == [Ending.VOIDED]


@pytest.mark.parametrize(("fault", "voids"), [(Unavailable("full"), False), (OutcomeUnknown("late"), True)])
async def test_an_ask_fault_voids_only_if_the_asked_may_have_acted(
    nursery: trio.Nursery, fault: Exception, voids: bool
) -> None:
    harness = Harness(nursery)
    harness.actor.fault = fault
    reply = harness.actor.actor_ref.ask("fault")
    with pytest.raises(type(fault)):
        await reply
    await wait_all_tasks_blocked()
    assert harness.endings == ([Ending.VOIDED] if voids else [])
    harness.actor.actor_inbox.put_system(SystemMessage.STOP)


async def test_after_a_crash_open_units_are_awaited_and_requeued(nursery: trio.Nursery) -> None:
    harness = Harness(nursery, 1, 2, "break", 3)
    await harness.settle_all()
    assert [type(ending) for ending in harness.endings] == [ValueError]
    nursery.start_soon(harness.actor.wind_down)
    await harness.settle_all(Committed(), OURS)
    assert harness.answers == ["written 1", None, Crashed, None]
    assert harness.requeued == [2, 3]


async def test_a_message_during_passivation_keeps_the_actor_active(nursery: trio.Nursery) -> None:
    harness = Harness(nursery, 1)
    harness.actor.actor_inbox.put_system(SystemMessage.PASSIVATE)
    await wait_all_tasks_blocked()
    late = harness.actor.actor_ref.ask("a")
    await harness.settle_all(Committed())
    assert await late == "said a"
    assert harness.endings == []
    harness.actor.actor_inbox.put_system(SystemMessage.STOP)
