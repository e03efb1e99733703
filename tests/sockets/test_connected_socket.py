"""A connected socket: partial sends, the end of data, and a close while tasks wait."""

from __future__ import annotations

import socket

import pytest
import trio
import trio.testing

from holdfast.sockets.connected import ConnectedSocket

LONG = bytes(range(256)) * 16_384


async def test_what_the_kernel_does_not_take_at_once_is_sent_later() -> None:
    ours, theirs = (ConnectedSocket(each) for each in socket.socketpair())
    received = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ours.send_all, LONG)
        while len(received) < len(LONG):
            received += await theirs.receive_some(100_000)
    await ours.send_eof()
    assert await theirs.receive_some() == b""
    assert received == LONG
    ours.close()
    theirs.close()


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_a_close_ends_the_waits_of_tasks(end: str) -> None:
    ours, theirs = (ConnectedSocket(each) for each in socket.socketpair())
    ended = []

    async def receive() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await ours.receive_some()
        ended.append("receive")

    async def send() -> None:
        with pytest.raises(trio.ClosedResourceError):
            await ours.send_all(LONG)
        ended.append("send")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        getattr(ours, end)()
    assert sorted(ended) == ["receive", "send"]
    for use in (ours.receive_some, ours.send_eof):
        with pytest.raises(trio.ClosedResourceError):
            await use()
    await theirs.aclose()


async def test_a_peer_that_has_closed_breaks_the_send() -> None:
    ours, theirs = (ConnectedSocket(each) for each in socket.socketpair())
    theirs.close()
    with pytest.raises(trio.BrokenResourceError):
        await ours.send_all(b"late")
    ours.close()


async def test_what_is_closed_here_as_it_becomes_readable_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    connected = ConnectedSocket(ours)

    async def wait_readable(_: object) -> None:
        """Return as the loop does for a socket that another task closes in the same turn."""
        connected.close()

    monkeypatch.setattr(trio.lowlevel, "wait_readable", wait_readable)
    with pytest.raises(trio.ClosedResourceError):
        await connected.receive_some()
    theirs.close()
