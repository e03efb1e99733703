"""Links over streams in memory: asks, replies, faults, and lost connections."""

from __future__ import annotations

import pytest
import trio
from trio.testing import (
    MockClock,
    wait_all_tasks_blocked,
)

from holdfast.actors.account.messages import RecordKeyUse, SignOut
from holdfast.actors.runtime.faults import (
    Crashed,
    Deadlock,
    NotAccepted,
    OutcomeUnknown,
    Overloaded,
    StaleFence,
    Unavailable,
)
from holdfast.actors.task.messages import CancelTask
from holdfast.cluster.codec import ACCOUNTS, TASKS, LinkLost
from holdfast.cluster.frames import PROTOCOL, Hello
from holdfast.cluster.link import PING_S, SILENT_S
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import utc_now
from holdfast.telemetry.traces import traceparent

from .link_ends import (
    Drip,
    ask,
    batch,
    joined,
    link_alone,
    signed_out,
)

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


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
        while pair.link.is_up:
            await trio.lowlevel.checkpoint()
        with pytest.raises(NotAccepted):
            await ask(pair)


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


async def test_a_process_that_stood_still_does_not_take_the_other_for_silent(mock_clock: MockClock) -> None:
    async with joined() as pair:
        for _ in range(3):
            mock_clock.jump(PING_S)
            await wait_all_tasks_blocked()
        mock_clock.jump(2 * SILENT_S)
        await wait_all_tasks_blocked()
        assert pair.link.is_up
