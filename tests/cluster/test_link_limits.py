"""Links that get malformed frames, or more than they may carry."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
import trio
from trio.testing import (
    MockClock,
    memory_stream_pair,
    wait_all_tasks_blocked,
)

from holdfast.actors.account.messages import Recharge, RecordKeyUse, SignOut
from holdfast.actors.runtime.faults import OutcomeUnknown, Overloaded
from holdfast.actors.runtime.mailbox import AskDeadlines
from holdfast.cluster import answering, codec, frames, link
from holdfast.cluster.answering import Answering
from holdfast.cluster.codec import ACCOUNTS, CannotEncode, LinkLost, codecs
from holdfast.cluster.frames import PROTOCOL, AskFrame, Hello, Ping, Pong, Reply, RowsChanged
from holdfast.cluster.link import SILENT_S, Link
from holdfast.ledger.values import utc_now
from holdfast.persistence.journal.changes import Change, Changes

from .link_ends import (
    HELLO,
    Accounts,
    Drip,
    ask,
    batch,
    joined,
    link_alone,
    signed_out,
)


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
        changes=Changes(),
    )
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
    monkeypatch.setattr(codec, "BODY_BYTES_MAX", 2_000)
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


def answering_alone(far: trio.abc.Stream) -> Answering:
    return Answering(
        far,
        me="far",
        cluster="c",
        codecs=codecs(),
        groups={ACCOUNTS: Accounts()},
        on_member=lambda _: None,
        on_change=lambda: None,
        changes=Changes(),
    )


async def test_nothing_large_is_read_before_the_hello() -> None:
    near, far = memory_stream_pair()
    large = batch(AskFrame(1, ACCOUNTS, "acct_1", "SignOut", bytes(2 * frames.HELLO_BYTES_MAX), 1.0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answering_alone(far).run)
        await near.send_all(large[: frames.LENGTH_BYTES])  # its length alone ends the connection
        while await near.receive_some():
            pass
    async with link_alone() as (asker, other, ended):
        await other.send_all(large[: frames.LENGTH_BYTES])
        await ended.wait()
        assert not asker.is_up


async def test_a_hello_has_a_deadline_however_many_bytes_arrive(autojump_clock: MockClock) -> None:
    async def drip(to: trio.abc.SendStream) -> None:
        for byte in HELLO[:-1]:
            await to.send_all(bytes([byte]))
            await trio.sleep(1.0)

    near, far = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(drip, near)
        begun = trio.current_time()
        await answering_alone(far).run()
        assert trio.current_time() - begun == frames.HELLO_S
        nursery.cancel_scope.cancel()
    async with link_alone() as (_, other, ended), trio.open_nursery() as nursery:
        nursery.start_soon(drip, other)
        begun = trio.current_time()
        await ended.wait()
        assert trio.current_time() - begun == SILENT_S
        nursery.cancel_scope.cancel()


async def test_a_link_that_comes_up_says_that_it_has_not_sent_earlier_changes() -> None:
    async with link_alone() as (asker, far, _):
        # The other member knows of the connection already, and takes it for complete.
        asker.send_changes([Change("acct_1", "acct_1")])
        await far.send_all(HELLO)
        with trio.fail_after(60):
            received = bytearray()
            while not received.endswith(batch(RowsChanged((), missed=True))):
                received += await far.receive_some()
        assert asker.is_up


async def test_changes_that_a_full_queue_does_not_take_are_missed_and_said_to_be(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(frames, "QUEUE_BYTES_MAX", 3_000)
    async with joined() as pair:
        await wait_all_tasks_blocked()
        with pair.rows_changed.watch("acct_1") as watch, pair.rows_changed.watch("acct_2") as other:
            pair.link.send_changes([Change("acct_1", f"task_{number}") for number in range(100)])
            pair.link.send_changes([Change("acct_2", "acct_2")])
            await other.wait(math.inf)
            assert other.take() == ({"acct_2": None}, True)
            assert watch.take() == ({}, True)
            pair.link.send_changes([Change("acct_2", "acct_2")])
            await other.wait(math.inf)
            assert other.take() == ({"acct_2": None}, False)
            assert watch.take() == ({}, False)
            # Also if nothing is committed after that.
            pair.link.send_changes([Change("acct_1", f"task_{number}") for number in range(100)])
            await watch.wait(math.inf)
            assert watch.take() == ({}, True)
