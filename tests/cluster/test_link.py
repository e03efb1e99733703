"""Links over streams in memory: asks, faults, limits, and everything that bytes can do wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec
import pytest
import trio
from trio.testing import (
    MemoryReceiveStream,
    MemorySendStream,
    MockClock,
    memory_stream_pair,
    wait_all_tasks_blocked,
)

from holdfast.actors.account.messages import Recharge, RecordKeyUse, SignOut
from holdfast.actors.runtime.faults import Crashed, Deadlock, OutcomeUnknown, Overloaded, StaleFence, Unavailable
from holdfast.actors.runtime.mailbox import Envelope
from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import TrioActorRef
from holdfast.actors.task.messages import CancelTask
from holdfast.cluster import answering, frames, link
from holdfast.cluster.answering import Answering
from holdfast.cluster.codec import CannotEncode
from holdfast.cluster.faults import LinkLost, NotAccepted
from holdfast.cluster.frames import PROTOCOL, AskFrame, Frame, Hello, Ping, Pong, Reply
from holdfast.cluster.groups import ACCOUNTS, TASKS, codecs
from holdfast.cluster.link import PING_S, SILENT_S, Link
from holdfast.ledger.clock import utc_now
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.records.accounts import SessionRevokedRow
from holdfast.supervision.ask_deadlines import AskDeadlines
from holdfast.traces import traceparent

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
AT = datetime(2026, 11, 22, tzinfo=UTC)
Stream = trio.StapledStream[MemorySendStream, MemoryReceiveStream]


class Recorder(TrioActorRef):
    """The address of an actor that keeps what it receives."""

    def __init__(self, accounts: Accounts, key: str) -> None:
        super().__init__(key)
        self._accounts = accounts

    def tell(self, message: Command[object]) -> None:
        self._accounts.received.append((self.actor_urn, message, traceparent.get()))


@dataclass
class Accounts:
    """A group whose mailboxes the test empties."""

    is_ready: bool = True
    asked: list[tuple[str, Envelope]] = field(default_factory=list)
    received: list[tuple[str, Command[object], str | None]] = field(default_factory=list)
    fault: Exception | None = None

    def accept(self, key: str, envelope: Envelope, *, fails_fast: bool = False) -> None:
        if self.fault is not None:
            raise self.fault
        self.asked.append((key, envelope))

    def ref(self, key: str) -> TrioActorRef:
        return Recorder(self, key)


@dataclass
class Joined:
    """A link and what answers it."""

    link: Link
    accounts: Accounts
    near: Stream
    far: Stream
    members: list[str] = field(default_factory=list)
    changes: list[int] = field(default_factory=list)

    async def asked(self, count: int = 1) -> list[tuple[str, Envelope]]:
        with trio.fail_after(5):
            while len(self.accounts.asked) < count:
                await trio.lowlevel.checkpoint()
        return self.accounts.asked


@asynccontextmanager
async def joined(wrap: Callable[[Stream], trio.abc.Stream] = lambda stream: stream) -> AsyncIterator[Joined]:
    near, far = memory_stream_pair()
    accounts = Accounts()
    asker = Link(wrap(near), "far", me="near", cluster="c", codecs=codecs(), deadlines=AskDeadlines())
    pair = Joined(asker, accounts, near, far)
    answers = Answering(
        wrap(far),
        me="far",
        cluster="c",
        codecs=codecs(),
        groups={ACCOUNTS: accounts},
        on_member=pair.members.append,
        on_change=lambda: pair.changes.append(1),
    )
    up = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answers.run)
        nursery.start_soon(asker.run, up.set)
        with trio.fail_after(5):
            await up.wait()
        yield pair
        nursery.cancel_scope.cancel()


def signed_out(session_id: str) -> SessionRevokedRow:
    return SessionRevokedRow("acct_1", session_id, AT)


async def ask(pair: Joined, command: Command[object] | None = None, *, key: str = "acct_1") -> object:
    return await pair.link.ask(ACCOUNTS, key, command or SignOut("ses_1"), 10.0)


async def test_an_ask_reaches_its_actor_with_its_trace_and_deadline(mock_clock: MockClock) -> None:
    async with joined() as pair, trio.open_nursery() as nursery:

        async def one() -> None:
            traceparent.set(TRACE)
            assert await ask(pair) == signed_out("ses_1")

        nursery.start_soon(one)
        [(key, envelope)] = await pair.asked()
        assert (key, envelope.message, envelope.traceparent) == ("acct_1", SignOut("ses_1"), TRACE)
        assert envelope.deadline == trio.current_time() + 10.0
        envelope.reply(signed_out("ses_1"))
    assert pair.members == ["near"]


async def test_replies_find_their_asks_in_any_order() -> None:
    replies: dict[int, object] = {}
    async with joined() as pair:

        async def one(number: int) -> None:
            replies[number] = await ask(pair, SignOut(f"ses_{number}"), key=f"acct_{number}")

        async with trio.open_nursery() as nursery:
            for number in range(500):
                nursery.start_soon(one, number)
            for _, envelope in reversed(await pair.asked(500)):
                assert isinstance(envelope.message, SignOut)
                envelope.reply(signed_out(envelope.message.session_id))
    assert replies == {number: signed_out(f"ses_{number}") for number in range(500)}


class Drip(trio.abc.Stream):
    """A stream whose bytes arrive one at a time."""

    def __init__(self, inner: Stream) -> None:
        self._inner = inner

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return bytes(await self._inner.receive_some(1))

    async def aclose(self) -> None:
        await self._inner.aclose()


async def test_bytes_may_arrive_one_at_a_time() -> None:
    async with joined(Drip) as pair, trio.open_nursery() as nursery:

        async def one() -> None:
            assert await ask(pair) == Refusal(code="invalid_session", message="It has ended.")

        nursery.start_soon(one)
        [(_, envelope)] = await pair.asked()
        envelope.reply(Refusal(code="invalid_session", message="It has ended."))


@pytest.mark.parametrize(
    "fault",
    [
        Overloaded("full", retry_after_s=2.0),
        Unavailable("paused", retry_after_s=3.0),
        OutcomeUnknown("late"),
        Deadlock("a -> b"),
        Crashed("crashed"),
        StaleFence("task 1"),
    ],
    ids=lambda fault: type(fault).__name__,
)
async def test_a_fault_is_the_same_at_the_asker(fault: Exception) -> None:
    async with joined() as pair, trio.open_nursery() as nursery:

        async def one() -> None:
            with pytest.raises(type(fault)) as caught:
                await ask(pair)
            assert str(caught.value) == str(fault)
            assert vars(caught.value) == vars(fault)

        nursery.start_soon(one)
        [(_, envelope)] = await pair.asked()
        envelope.fail(fault)


async def test_an_unexpected_exception_is_a_crash_at_the_asker() -> None:
    async with joined() as pair:
        pair.accounts.fault = Unavailable("quarantined", retry_after_s=60.0)
        with pytest.raises(Unavailable, match="quarantined"):
            await ask(pair)
        pair.accounts.fault = None
        async with trio.open_nursery() as nursery:

            async def one() -> None:
                with pytest.raises(Crashed):
                    await ask(pair)

            nursery.start_soon(one)
            [(_, envelope)] = await pair.asked()
            envelope.fail(KeyError("a bug"))


async def test_a_group_that_does_not_run_accepts_nothing() -> None:
    async with joined() as pair:
        pair.accounts.is_ready = False
        with pytest.raises(NotAccepted):
            await ask(pair)
        with pytest.raises(NotAccepted):
            await pair.link.ask(TASKS, "task_1", CancelTask(), 10.0)
    assert pair.accounts.asked == []


async def test_a_tell_and_a_change_arrive() -> None:
    async with joined() as pair:
        traceparent.set(TRACE)
        use = RecordKeyUse("key_1", utc_now())
        pair.link.tell(ACCOUNTS, "acct_1", use)
        pair.link.announce_change()
        with trio.fail_after(5):
            while not pair.changes:
                await trio.lowlevel.checkpoint()
    assert pair.accounts.received == [("acct_1", use, TRACE)]


async def test_an_ask_without_a_reply_ends_at_its_deadline(autojump_clock: MockClock) -> None:
    async with joined() as pair:
        with pytest.raises(OutcomeUnknown, match="no answer within 2 s"):
            await pair.link.ask(ACCOUNTS, "acct_1", SignOut("ses_1"), 2.0)
        [(_, envelope)] = pair.accounts.asked
        # The late reply is dropped.
        envelope.reply(signed_out("ses_1"))
        async with trio.open_nursery() as nursery:

            async def one() -> None:
                assert await ask(pair) == signed_out("ses_2")

            nursery.start_soon(one)
            (await pair.asked(2))[1][1].reply(signed_out("ses_2"))


async def test_an_idle_link_stays_up(autojump_clock: MockClock) -> None:
    async with joined() as pair:
        await trio.sleep(20 * SILENT_S)
        assert pair.link.is_up


@pytest.mark.parametrize("how", ["close", "half-close", "break"])
async def test_a_lost_link_fails_its_asks(how: str) -> None:
    async with joined() as pair, trio.open_nursery() as nursery:

        async def one() -> None:
            with pytest.raises(LinkLost):
                await ask(pair)

        nursery.start_soon(one)
        await pair.asked()
        if how == "close":
            await pair.far.aclose()
        elif how == "half-close":
            pair.far.send_stream.close()
        else:
            await pair.far.send_stream.send_all(b"\x00\x00\x00\x01\xff")
        with trio.fail_after(5):
            while pair.link.is_up:
                await trio.lowlevel.checkpoint()
        with pytest.raises(NotAccepted):
            await ask(pair)


@asynccontextmanager
async def link_alone() -> AsyncIterator[tuple[Link, Stream, trio.Event]]:
    """A link whose other end is the test."""
    near, far = memory_stream_pair()
    asker = Link(near, "far", me="near", cluster="c", codecs=codecs(), deadlines=AskDeadlines())
    ended = trio.Event()

    async def run() -> None:
        await asker.run(lambda: None)
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        yield asker, far, ended
        nursery.cancel_scope.cancel()


def batch(*sent: Frame) -> bytes:
    body = msgspec.msgpack.encode(sent)
    return len(body).to_bytes(4) + body


async def test_a_silent_member_counts_as_gone(autojump_clock: MockClock) -> None:
    started_at = trio.current_time()
    async with link_alone() as (asker, far, ended):
        await far.send_all(batch(Hello(PROTOCOL, "c", "far")))
        await wait_all_tasks_blocked()
        assert asker.is_up
        with pytest.raises(LinkLost):
            await asker.ask(ACCOUNTS, "acct_1", SignOut("ses_1"), 60.0)
        assert SILENT_S <= trio.current_time() - started_at <= SILENT_S + 2 * PING_S
        await ended.wait()


HELLO = batch(Hello(PROTOCOL, "c", "far"))


@pytest.mark.parametrize(
    "sent",
    [
        batch(Hello(PROTOCOL + 1, "c", "far")),
        batch(Hello(PROTOCOL, "c", "another")),
        batch(Hello(PROTOCOL, "another", "far")),
        batch(Ping()),
        batch(Reply(1, 0, b""))[:-1] + b"\xff",
        HELLO + HELLO,
        HELLO + batch(AskFrame(1, ACCOUNTS, "acct_1", "SignOut", b"\x80", 1.0)),
        (2**31).to_bytes(4),
        (3).to_bytes(4) + b"\xff\xff\xff",
        (1).to_bytes(4) + b"\x01",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
async def test_malformed_frames_close_a_link(sent: bytes) -> None:
    async with link_alone() as (asker, far, ended):
        await far.send_all(sent)
        with trio.fail_after(5):
            await ended.wait()
        assert not asker.is_up


async def test_a_malformed_reply_closes_the_link() -> None:
    async with link_alone() as (asker, far, ended):
        await far.send_all(HELLO)
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:

            async def one() -> None:
                with pytest.raises(LinkLost):
                    await asker.ask(ACCOUNTS, "acct_1", SignOut("ses_1"), 10.0)

            nursery.start_soon(one)
            await wait_all_tasks_blocked()
            await far.send_all(batch(Reply(1, 0, b"\x81\xa1x\x01")))
            with trio.fail_after(5):
                await ended.wait()


@pytest.mark.parametrize(
    "sent",
    [
        batch(AskFrame(1, ACCOUNTS, "acct_1", "SignOut", b"\x80", 1.0)),
        batch(Hello(PROTOCOL + 1, "c", "near")),
        batch(Hello(PROTOCOL, "another", "near")),
        HELLO + batch(AskFrame(1, ACCOUNTS, "acct_1", "SignOut", b"\x80", 1.0)),
        HELLO + batch(AskFrame(1, ACCOUNTS, "acct_1", "CancelTask", b"\x80", 1.0)),
        HELLO + batch(AskFrame(1, "processes", "acct_1", "SignOut", b"\x80", 1.0)),
        HELLO + batch(Pong()),
        HELLO + batch(Reply(1, 0, b"\xc0")),
        (2**32 - 1).to_bytes(4),
    ],
)
async def test_malformed_frames_close_the_connection_that_they_came_from(sent: bytes) -> None:
    near, far = memory_stream_pair()
    accounts = Accounts()
    answers = Answering(
        far,
        me="far",
        cluster="c",
        codecs=codecs(),
        groups={ACCOUNTS: accounts},
        on_member=lambda _: None,
        on_change=lambda: None,
    )
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(answers.run)
            await near.send_all(sent)
            while await near.receive_some():
                pass
    assert accounts.asked == []


async def test_asks_of_a_closed_connection_are_answered_into_the_void() -> None:
    async with joined() as pair:
        async with trio.open_nursery() as nursery:

            async def one() -> None:
                with pytest.raises(LinkLost):
                    await ask(pair)

            nursery.start_soon(one)
            [(_, envelope)] = await pair.asked()
            await pair.near.aclose()
        await wait_all_tasks_blocked()
        assert envelope.reply(signed_out("ses_1"))


async def test_what_does_not_fit_is_refused_at_the_asker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "QUEUE_BYTES_MAX", 3_000)
    monkeypatch.setattr(link, "BODY_BYTES_MAX", 2_000)
    async with joined() as pair:
        with pytest.raises(CannotEncode):
            await ask(pair, SignOut("s" * 3_000))
        with pytest.raises(CannotEncode):
            await ask(pair, Recharge(2**70))
        use = RecordKeyUse("k" * 1_000, utc_now())
        pair.link.tell(ACCOUNTS, "acct_1", use)
        pair.link.tell(ACCOUNTS, "acct_1", use)
        with pytest.raises(Overloaded):
            pair.link.tell(ACCOUNTS, "acct_1", use)
        with pytest.raises(Overloaded):
            await ask(pair, SignOut("s" * 1_000))
        await wait_all_tasks_blocked()
        pair.link.tell(ACCOUNTS, "acct_1", use)
        await wait_all_tasks_blocked()
    assert len(pair.accounts.received) == 3


def fill(asker: Link) -> None:
    """Send until nothing more fits."""
    with suppress(Overloaded):
        while True:
            asker.tell(ACCOUNTS, "acct_1", RecordKeyUse("k", utc_now()))


async def test_a_change_that_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "QUEUE_BYTES_MAX", 3_000)
    async with link_alone() as (asker, far, ended):
        await far.send_all(HELLO)
        await wait_all_tasks_blocked()
        fill(asker)  # nothing is sent before the next checkpoint
        asker.announce_change()
        assert asker.is_up
    assert not ended.is_set()


class Stuck(Drip):
    """A stream that takes no bytes, as that of a frozen member whose buffers are full."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.sleep_forever()


async def test_a_ping_that_does_not_fit_is_left_out(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(frames, "QUEUE_BYTES_MAX", 3_000)
    near, far = memory_stream_pair()
    asker = Link(Stuck(near), "far", me="near", cluster="c", codecs=codecs(), deadlines=AskDeadlines())
    reasons: list[str] = []

    async def run() -> None:
        reasons.append(await asker.run(lambda: None))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await far.send_all(HELLO)
        await wait_all_tasks_blocked()
        fill(asker)
    assert reasons == [f"no answer for {SILENT_S:g} s"]


async def test_the_number_of_open_asks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "ASKS_MAX", 2)
    async with joined() as pair, trio.open_nursery() as nursery:
        nursery.start_soon(ask, pair)
        nursery.start_soon(ask, pair)
        await pair.asked(2)
        with pytest.raises(Overloaded):
            await ask(pair)
        monkeypatch.setattr(link, "ASKS_MAX", 2)
        with pytest.raises(Overloaded):
            await ask(pair)
        for _, envelope in pair.accounts.asked:
            envelope.reply(signed_out("ses_1"))


async def test_a_reply_that_cannot_be_encoded_leaves_the_outcome_unknown() -> None:
    async with joined() as pair, trio.open_nursery() as nursery:

        async def one() -> None:
            with pytest.raises(OutcomeUnknown):
                await ask(pair)

        nursery.start_soon(one)
        [(_, envelope)] = await pair.asked()
        envelope.reply({"number": 2**70})


async def test_large_commands_travel_in_batches_of_their_own() -> None:
    async with joined() as pair, trio.open_nursery() as nursery:
        names = [str(number) * 300_000 for number in range(5)]
        for name in names:
            nursery.start_soon(ask, pair, SignOut(name))
        asked = await pair.asked(5)
        assert sorted(envelope.message.session_id for _, envelope in asked) == names  # type: ignore[attr-defined]
        for _, envelope in asked:
            envelope.reply(signed_out("ses_1"))
