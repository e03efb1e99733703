"""Messages that crash their actor are kept with their circumstances, and replayed once their cause is gone."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from holdfast.actors.runtime.faults import Crashed, Quarantined
from holdfast.actors.runtime.messages import Command, IdempotencyKey
from holdfast.actors.workers.newest_queue import NewestQueue
from holdfast.actors.workers.poison_writer import PoisonedMessage, PoisonWriter
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import utc_now
from holdfast.persistence.journal.units import Broken, Committed
from holdfast.persistence.operators.poison import RowCipher, poison_by_id
from holdfast.persistence.records.operator_tables import PoisonRecord
from holdfast.persistence.server.database import Database
from holdfast.supervision.control.keys import ControlledGroup
from holdfast.supervision.control.messages import CrashKey
from holdfast.supervision.poison_replays import PoisonReplays
from holdfast.telemetry.reports.causes import describe

from .keyed_actors import Break, Harness, Rest, Say, Write, WritingActor, collect, outcome

CIPHER = RowCipher([b"k" * 32])


class KeyedBreak(Break, frozen=True):
    """Breaks its actor under an Idempotency-Key."""

    idempotency: IdempotencyKey = IdempotencyKey("r", "k", b"f")


KINDS: dict[str, Any] = {each.__name__: each for each in (Say, Break, KeyedBreak, Write)}


def encode(_group: str, message: object) -> bytes | None:
    return msgspec.msgpack.encode(message)


def decode(_group: str, name: str, body: bytes) -> Command[object]:
    command: Command[object] = msgspec.msgpack.decode(body, type=KINDS[name])
    return command


def writer_of(
    harness: Harness, queue: NewestQueue[PoisonedMessage], database: Database | None = None
) -> PoisonWriter:
    return PoisonWriter(
        queue,
        database=database,  # type: ignore[arg-type]  # not needed to make a record
        reporter=harness.reporter,
        cipher=CIPHER,
        encode=encode,
        mask=lambda _group, key: f"masked:{key}",
    )


async def test_the_message_that_crashed_is_kept_with_its_cause(autojump_clock: MockClock) -> None:
    kept: list[PoisonedMessage] = []
    harness = Harness(poison=kept.append)
    async with harness.running():
        await outcome(lambda: harness.ask("a", Say("fine")))
        assert isinstance(await outcome(lambda: harness.ask("a", Break())), Crashed)
    [message] = kept
    record = writer_of(harness, NewestQueue(1)).record(message)
    assert (record.group_name, record.key, record.message_type) == ("actors", "masked:a", "Break")
    assert (record.reason_type, record.reason, record.incarnation) == ("ValueError", "broken on purpose", 1)
    assert "keyed_actors:" in (record.location or "")
    assert record.body is not None
    assert CIPHER.decrypt(record.body, record.poison_id) == encode("actors", Break())


async def test_a_unit_that_the_database_refuses_is_kept_as_its_message(autojump_clock: MockClock) -> None:
    kept: list[PoisonedMessage] = []
    harness = Harness(poison=kept.append)
    replies: dict[int, Any] = {}
    async with harness.running(), trio.open_nursery() as nursery:
        nursery.start_soon(collect, harness, [("a", Write("1")), ("a", Write("2"))], replies)
        await trio.sleep(1)
        harness.settle(Broken(ValueError("a constraint")), Committed())
        await trio.sleep(10)
        harness.settle(Committed())
    assert isinstance(replies[0], Crashed)
    assert replies[1] == "2"
    [message] = kept
    assert (message.envelope.message, message.cause.reason) == (Write("1"), "a constraint")


async def test_what_crashed_without_a_message_keeps_none(autojump_clock: MockClock) -> None:
    kept: list[PoisonedMessage] = []
    harness = Harness(poison=kept.append)
    harness.failing_starts["a"] = 1
    async with harness.running(), trio.open_nursery() as nursery:
        assert await harness.ask("a") == "hello"
        nursery.start_soon(outcome, lambda: harness.ask("a", Rest(900)))
        await trio.sleep(1)
        await ControlledGroup(harness.directory, "proc_1", str).act(CrashKey("actors", "a", "a drill"))
    assert kept == []


# --------------------------------------------------------------------------------------- stored, and replayed


class Mended(WritingActor):
    """Handles Break once it is mended."""

    is_mended = False

    async def on_receive(self, message: Any) -> Any:
        if isinstance(message, Break) and self.is_mended:
            return "mended"
        return await super().on_receive(message)


class Stored:
    """A directory of actors with a writer on a real database."""

    def __init__(self, database: Database) -> None:
        self.queue = NewestQueue[PoisonedMessage](200)
        self.harness = Harness(poison=self.queue.put, actor=Mended)
        self.database = database
        self.waited = timedelta()
        self.replays = PoisonReplays(
            database,
            {"actors": _Shown(self.harness)},
            decode=decode,
            cipher=CIPHER,
            now=lambda: utc_now() + self.waited,
            idempotency_ttl_s=3600,
        )

    async def crash(self, message: Break = Break()) -> PoisonRecord:  # noqa: B008 - frozen
        """Crash an actor, and return the stored message."""
        assert isinstance(await outcome(lambda: self.harness.ask("a", message)), Crashed)
        return await self.kept()

    async def kept(self, crashes: int = 1) -> PoisonRecord:
        with trio.fail_after(60):
            while True:
                for report in self.harness.reports("poison"):
                    if report.count == crashes and report.reason is not None:
                        poison_id = report.reason.split("kept as ")[1].rstrip(")")
                        found = await self.database.read(poison_by_id, poison_id)
                        assert found is not None
                        return found
                await trio.sleep(0.01)

    async def replay(self, poison_id: str) -> PoisonRecord:
        found = await self.replays.replay(poison_id, deadline_s=60)
        assert isinstance(found, PoisonRecord), found
        return found


class _Shown:
    """The directory by the keys that operators see."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness

    def ref(self, key: str) -> Any:
        return self._harness.directory.ref(key.removeprefix("masked:"))


@pytest.fixture
def mended(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda: monkeypatch.setattr(Mended, "is_mended", True)


async def run(stored: Stored, nursery: trio.Nursery) -> None:
    await nursery.start(
        lambda *, task_status: writer_of(stored.harness, stored.queue, stored.database).run(task_status=task_status)
    )


async def test_a_replay_after_the_cause_is_gone_is_done_once(database: Database, mended: Any) -> None:
    stored = Stored(database)
    async with stored.harness.running(), trio.open_nursery() as nursery:
        await run(stored, nursery)
        poison_id = (await stored.crash()).poison_id
        mended()
        done = await stored.replay(poison_id)
        assert (done.state, done.replay_result, done.replays) == ("replayed", "done: str", 1)
        again = await stored.replays.replay(poison_id, deadline_s=60)
        assert isinstance(again, Refusal)
        assert again.code == "poison_not_open"
        nursery.cancel_scope.cancel()


async def test_a_replay_that_crashes_again_is_kept_with_its_count(database: Database) -> None:
    stored = Stored(database)
    async with stored.harness.running(), trio.open_nursery() as nursery:
        await run(stored, nursery)
        poison_id = (await stored.crash()).poison_id
        found = await stored.replay(poison_id)
        assert (found.state, found.replay_result) == ("kept", "it crashed again: ValueError: broken on purpose")
        assert (await stored.kept(crashes=2)).poison_id == poison_id
        nursery.cancel_scope.cancel()


async def test_two_replays_at_once_ask_the_actor_once(database: Database, mended: Any) -> None:
    stored = Stored(database)
    async with stored.harness.running(), trio.open_nursery() as nursery:
        await run(stored, nursery)
        poison_id = (await stored.crash()).poison_id
        mended()
        results: list[Any] = []

        async def replay() -> None:
            results.append(await stored.replays.replay(poison_id, deadline_s=60))

        async with trio.open_nursery() as both:
            for _ in range(5):
                both.start_soon(replay)
        assert sum(isinstance(each, PoisonRecord) for each in results) == 1
        assert {each.code for each in results if isinstance(each, Refusal)} == {"poison_not_open"}
        nursery.cancel_scope.cancel()


async def test_a_message_is_not_replayed_after_its_key_has_expired(database: Database, mended: Any) -> None:
    """Its sender may have repeated it: what the key's reply was is forgotten, so a replay would do it twice."""
    stored = Stored(database)
    async with stored.harness.running(), trio.open_nursery() as nursery:
        await run(stored, nursery)
        poison_id = (await stored.crash(KeyedBreak())).poison_id
        mended()
        stored.waited = timedelta(hours=1)
        refused = await stored.replays.replay(poison_id, deadline_s=60)
        assert isinstance(refused, Refusal)
        assert refused.code == "poison_not_replayable"
        stored.waited = timedelta(minutes=50)
        assert (await stored.replay(poison_id)).state == "replayed"
        nursery.cancel_scope.cancel()


async def test_a_replay_that_is_not_accepted_leaves_the_message_kept(database: Database) -> None:
    stored = Stored(database)
    async with stored.harness.running() as directory, trio.open_nursery() as nursery:
        await run(stored, nursery)
        poison_id = (await stored.crash()).poison_id
        directory.child("a").put_in_quarantine(describe(ValueError("by hand")), for_s=60)
        with pytest.raises(Quarantined):
            await stored.replays.replay(poison_id, deadline_s=60)
        found = await database.read(poison_by_id, poison_id)
        assert found is not None
        assert found.state == "kept"
        nursery.cancel_scope.cancel()


async def test_a_replay_that_is_cancelled_has_no_result(database: Database, mended: Any) -> None:
    stored = Stored(database)
    async with stored.harness.running() as directory, trio.open_nursery() as nursery:
        await run(stored, nursery)
        poison_id = (await stored.crash()).poison_id
        mended()
        async with trio.open_nursery() as asking:
            asking.start_soon(outcome, lambda: stored.harness.ask("a", Rest(600)))
            await wait_all_tasks_blocked()
            mailbox = directory.by_key["a"].mailbox
            while len(mailbox):  # until the actor has restarted, and rests
                await trio.lowlevel.checkpoint()
            asking.start_soon(partial(stored.replays.replay, poison_id, deadline_s=60))
            while not len(mailbox):  # until the replayed message waits behind it
                await trio.lowlevel.checkpoint()
            asking.cancel_scope.cancel()
        found = await database.read(poison_by_id, poison_id)
        assert found is not None
        assert (found.state, found.replays) == ("unknown", 1)
        assert isinstance(await stored.replays.discard(poison_id), PoisonRecord)
        await ControlledGroup(directory, "proc_1", str).act(CrashKey("actors", "a", "the rest is over"))
        nursery.cancel_scope.cancel()
