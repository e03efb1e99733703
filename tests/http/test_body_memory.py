"""The memory of bodies: who has most of it makes room for others, on the counts and over sockets."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest
import trio

from holdfast.http.kit.body_memory import NO_MEMORY, UNCOUNTED_BYTES_MAX, BodyMemory, HeldBody

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.stage import Stage

LARGE = 100 * 1024


async def test_one_caller_may_have_all_that_is_free() -> None:
    memory = BodyMemory(100)
    bodies = [memory.begin("acct_1", "192.0.2.1") for _ in range(10)]
    for body in bodies:
        body.add(10)
    assert not any(body.is_refused for body in bodies)
    assert memory.bytes_count == 100
    for body in bodies:
        body.release()
        body.release()
    assert (memory.bytes_count, memory._counts, memory._prepared) == (0, {}, {})


@pytest.mark.parametrize("shared", ["account", "origin"])
async def test_who_has_most_loses_the_body_that_is_stalled_longest(
    shared: str, autojump_clock: trio.testing.MockClock
) -> None:
    memory = BodyMemory(100)
    stalled = list[HeldBody]()
    for number in range(3):
        caller, origin = ("greedy", f"{number}") if shared == "account" else (f"{number}", "greedy")
        stalled.append(memory.begin(caller, origin))
        stalled[-1].add(20)
        await trio.sleep(1)
    for body in (stalled[0], stalled[2], stalled[1]):
        body.add(10)
        await trio.sleep(1)
    honest = memory.begin("honest", "honest")
    honest.add(40)
    assert [each.is_refused for each in (*stalled, honest)] == [True, False, False, False]
    assert stalled[0].preparation.cancel_called
    assert memory.bytes_count == 100
    honest.add(15)
    assert [each.is_refused for each in (*stalled, honest)] == [True, False, True, False]
    stalled[0].add(50)
    assert memory.bytes_count == 85


async def test_a_body_whose_request_has_begun_is_not_refused() -> None:
    memory = BodyMemory(100)
    working, reading = memory.begin("greedy", "192.0.2.1"), memory.begin("honest", "192.0.2.2")
    working.add(90)
    assert working.begin_request() is None
    reading.add(20)
    assert reading.begin_request() == NO_MEMORY
    assert not working.is_refused
    assert memory.bytes_count == 90


def quote_of(bytes_count: int) -> bytes:
    """A quote whose body has so many bytes."""
    start = json.dumps({"model": "studio/image-1", "input": {"prompt": "a"}}).encode()
    return start + b" " * (bytes_count - len(start))


def head(stage: Stage, framing: str) -> bytes:
    return (
        f"POST /v2/quote HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {stage.minted.secret}\r\n"
        f"Content-Type: application/json\r\nConnection: close\r\n{framing}\r\n\r\n"
    ).encode()


async def rest_of(stream: trio.SocketStream) -> bytes:
    return b"".join([part async for part in stream])


async def asked(port: int, request: bytes) -> bytes:
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        await stream.send_all(request)
        return await rest_of(stream)


async def until(memory: BodyMemory, bytes_count: int) -> None:
    while memory.bytes_count != bytes_count:
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("framing", ["length", "chunks"])
async def test_stalled_bodies_of_one_address_make_room_for_another(api: Api, framing: str) -> None:
    memory = BodyMemory(4 * LARGE)
    api.change(body_memory=memory)
    body = quote_of(2 * LARGE)
    if framing == "length":
        start = head(api, f"Content-Length: {len(body)}") + body[:LARGE]
    else:
        start = head(api, "Transfer-Encoding: chunked") + b"%x\r\n" % len(body) + body[:LARGE]
    async with api.serving(rest_of_body_s=0.0) as base, AsyncExitStack() as opened:
        port = int(base.rpartition(":")[2])
        stalled = []
        for number in range(4):
            stream = await opened.enter_async_context(await trio.open_tcp_stream("127.0.0.1", port))
            await stream.send_all(start)
            await until(memory, LARGE * (number + 1))
            stalled.append(stream)
        # A small body needs no room; of a large one the oldest of the stalled makes some.
        assert b" 200 " in await asked(port, head(api, "Content-Length: 1000") + quote_of(1000))
        assert memory.bytes_count == 4 * LARGE
        served = quote_of(UNCOUNTED_BYTES_MAX + 1)
        assert b" 200 " in await asked(port, head(api, f"Content-Length: {len(served)}") + served)
        refusal = await rest_of(stalled[0])
        assert b" 503 " in refusal
        assert b'"code":"overloaded"' in refusal
        assert b"retry-after: 1" in refusal.lower()
        assert memory.bytes_count == 3 * LARGE
        # The others go on where they were.
        rest = body[LARGE:] if framing == "length" else body[LARGE:] + b"\r\n0\r\n\r\n"
        await stalled[3].send_all(rest)
        assert b" 200 " in await rest_of(stalled[3])
    assert (memory.bytes_count, memory._counts, memory._prepared) == (0, {}, {})


async def test_a_client_that_goes_leaves_nothing_counted(api: Api) -> None:
    memory = BodyMemory(4 * LARGE)
    api.change(body_memory=memory)
    async with api.serving() as base:
        stream = await trio.open_tcp_stream("127.0.0.1", int(base.rpartition(":")[2]))
        await stream.send_all(head(api, f"Content-Length: {2 * LARGE}") + quote_of(2 * LARGE)[:LARGE])
        await until(memory, LARGE)
        await stream.aclose()
        await until(memory, 0)
    assert memory._prepared == {}
