from __future__ import annotations

from typing import Any

import pykka
import pytest
import trio
from pykka._envelope import Envelope as PykkaEnvelope
from trio.testing import wait_all_tasks_blocked

from holdfast.actors.runtime.mailbox import Envelope, Mailbox, MailboxFull, NotReady, SystemMessage, TrioFuture


async def test_a_future_wakes_all_waiting_tasks_and_answers_later_ones(nursery: trio.Nursery) -> None:
    future: TrioFuture[int] = TrioFuture()
    replies: list[int] = []

    async def wait() -> None:
        replies.append(await future)

    for _ in range(3):
        nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    assert not future.is_set
    future.set(7)
    await wait_all_tasks_blocked()
    assert replies == [7, 7, 7]
    assert await future == 7
    assert future.get() == 7


def test_a_future_without_a_value_never_blocks() -> None:
    with pytest.raises(NotReady):
        TrioFuture[int]().get(timeout=5)


async def test_a_future_raises_its_exception_in_each_waiting_task() -> None:
    future: TrioFuture[int] = TrioFuture()
    try:
        raise KeyError("k")
    except KeyError:
        future.set_exception()
    for _ in range(2):
        with pytest.raises(KeyError):
            await future


def test_a_future_is_set_once() -> None:
    future: TrioFuture[int] = TrioFuture()
    future.set(1)
    with pytest.raises(AssertionError):
        future.set(2)
    with pytest.raises(AssertionError):
        future.fail(ValueError())
    assert future.get() == 1


async def test_a_cancelled_wait_leaves_the_future_as_it_is() -> None:
    future: TrioFuture[int] = TrioFuture()
    with trio.move_on_after(0):
        await future
    future.set(3)
    assert await future == 3


async def test_pykkas_combinators_wait_for_what_they_combine(nursery: trio.Nursery) -> None:
    one: TrioFuture[int] = TrioFuture()
    two: TrioFuture[int] = TrioFuture()
    replies: list[object] = []

    async def wait(future: pykka.Future[Any]) -> None:
        replies.append(await future)

    nursery.start_soon(wait, one.map(lambda value: value * 10))
    nursery.start_soon(wait, one.join(two))
    await wait_all_tasks_blocked()
    one.set(1)
    await wait_all_tasks_blocked()
    assert replies == [10]
    two.set(2)
    await wait_all_tasks_blocked()
    assert replies == [10, [1, 2]]


def messages(mailbox: Mailbox) -> list[object]:
    found = []
    while not mailbox.empty():
        found.append(mailbox.get().message)
    return found


def test_a_mailbox_keeps_order_and_refuses_beyond_its_capacity() -> None:
    mailbox = Mailbox(2)
    mailbox.put(Envelope("a"))
    mailbox.put(Envelope("b"))
    with pytest.raises(MailboxFull):
        mailbox.put(Envelope("c"))
    assert len(mailbox) == 2
    assert messages(mailbox) == ["a", "b"]


def test_requeued_messages_come_first_in_order_beyond_capacity() -> None:
    mailbox = Mailbox(2)
    mailbox.put(Envelope("c"))
    mailbox.put(Envelope("d"))
    mailbox.requeue(iter([Envelope("a"), Envelope("b")]))
    with pytest.raises(MailboxFull):
        mailbox.put(Envelope("e"))
    assert messages(mailbox) == ["a", "b", "c", "d"]


def test_system_messages_have_a_queue_without_a_limit() -> None:
    mailbox = Mailbox(0)
    mailbox.put_system(SystemMessage.PASSIVATE)
    mailbox.put_system(SystemMessage.STOP)
    assert mailbox.empty()
    assert mailbox.system
    assert [mailbox.get_system() for _ in range(3)] == [SystemMessage.PASSIVATE, SystemMessage.STOP, None]


def test_pykkas_own_envelopes_are_accepted() -> None:
    mailbox = Mailbox(1)
    mailbox.put(PykkaEnvelope("a"))
    envelope = mailbox.get()
    assert (envelope.message, envelope.deadline) == ("a", float("inf"))
    assert not envelope.reply("no one asked")


def test_an_envelope_is_answered_once() -> None:
    future: TrioFuture[object] = TrioFuture()
    envelope = Envelope("a", future)
    assert envelope.reply("yes")
    assert not envelope.reply("again")
    assert not envelope.fail(ValueError())
    assert future.get() == "yes"


@pytest.mark.parametrize("what", ["put", "requeue", "order", "wake"])
async def test_a_waiting_reader_wakes_for_messages_and_for_wake(nursery: trio.Nursery, what: str) -> None:
    mailbox = Mailbox(5)
    woken: list[bool] = []

    async def read() -> None:
        await mailbox.wait()
        woken.append(True)

    nursery.start_soon(read)
    await wait_all_tasks_blocked()
    assert woken == []
    match what:
        case "put":
            mailbox.put(Envelope("a"))
        case "requeue":
            mailbox.requeue([Envelope("a")])
        case "order":
            mailbox.put_system(SystemMessage.STOP)
        case _:
            mailbox.wake()
    mailbox.wake()
    await wait_all_tasks_blocked()
    assert woken == [True]


async def test_after_a_cancelled_wait_another_reader_may_wait(nursery: trio.Nursery) -> None:
    mailbox = Mailbox(5)
    with trio.move_on_after(0):
        await mailbox.wait()
    mailbox.wake()
    nursery.start_soon(mailbox.wait)
    await wait_all_tasks_blocked()
    with pytest.raises(AssertionError):
        await mailbox.wait()
    mailbox.wake()
