"""Random connections: the server keeps running, logs nothing unexpected, and serves a valid client.

``FUZZ_S=600`` goes on for ten minutes instead of for some two hundred connections.
"""

from __future__ import annotations

import os
import random
import time
from itertools import pairwise

import pytest
import structlog
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.http.server.connection import Receive, Send

from .memory_server import Scope, Server, answer, answers, read_body, serving

FUZZ_S = float(os.environ.get("FUZZ_S", "0"))
GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
LINE_ENDS = (b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"")
PARTS = (
    b"GET ",
    b"POST ",
    b"HEAD ",
    b"CONNECT ",
    b"PRI ",
    b"/a",
    b"/early",
    b"/slow",
    b"*",
    b"http://x/a",
    b"?",
    b" HTTP/1.1",
    b" HTTP/1.0",
    b" HTTP/2.0",
    b"Host: x",
    b"Host:",
    b"Content-Length: 5",
    b"Content-Length: 0",
    b"Content-Length: -1",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip",
    b"Connection: close",
    b"Connection: Upgrade",
    b"Upgrade: h2c",
    b"Upgrade: websocket",
    b"HTTP2-Settings: A",
    b"Expect: 100-continue",
    b"5",
    b"hello",
    b"0",
    b"ffff",
    b"5;x=y",
    b" folded",
    b": ",
    b"\0",
    b"\xff\xfe",
    b"X: " + b"y" * 3000,
    b"SM",
)
WHOLE = (
    GET,
    b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\nhello",
    b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"POST /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 5\r\n\r\nhello",
    b"POST /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello",
    b"GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
)
MESSAGES = st.lists(
    st.one_of(
        st.sampled_from(WHOLE),
        st.tuples(st.sampled_from(PARTS), st.sampled_from(LINE_ENDS)).map(b"".join),
        st.binary(max_size=60),
    ),
    max_size=12,
).map(b"".join)
CUTS = st.lists(st.integers(0, 400), max_size=4)


async def mixed(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer after the body, before it, or in parts."""
    if scope["path"] == "/early":
        await answer(send, b"no", status=404)
    elif scope["path"] == "/slow":
        await trio.sleep(0.001)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(3):
            await send({"type": "http.response.body", "body": b"part", "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    else:
        await answer(send, await read_body(receive))


async def try_connection(server: Server, data: bytes, cuts: list[int], *, leave: str) -> None:
    """Send the bytes in parts, read the response, disconnect in some way; then another client is served."""
    stream = server.connect()
    places = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    try:
        for start, end in pairwise(places):
            await stream.send_all(data[start:end])
            await trio.lowlevel.checkpoint()
        if leave == "half-close":
            await stream.send_eof()
        if leave != "close":
            with trio.move_on_after(0.02):
                while await stream.receive_some():
                    pass
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # the server closed first
    await stream.aclose()
    healthy = server.connect()
    await healthy.send_all(GET)
    assert b"200 OK" in await answers(healthy, 1), data
    await healthy.aclose()


def run(cases: list[tuple[bytes, list[int], str]]) -> None:
    """Try connections on one server, which must end in order and log nothing."""

    async def main() -> None:
        with trio.fail_after(60):
            async with serving(rest_of_body_s=0.01, linger_s=0.01, finish_requests_s=0.1) as server:
                server.handler = mixed
                for data, cuts, leave in cases:
                    await try_connection(server, data, cuts, leave=leave)

    with structlog.testing.capture_logs() as logs:
        trio.run(main)
    assert logs == [], cases


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(MESSAGES, CUTS, st.sampled_from(["read", "close", "half-close"]))
def test_no_bytes_break_the_server(data: bytes, cuts: list[int], leave: str) -> None:
    run([(data, cuts, leave)])


@pytest.mark.skipif(not FUZZ_S, reason="FUZZ_S says for how long")
def test_no_bytes_break_the_server_for_long() -> None:
    seed = int(os.environ.get("FUZZ_SEED", str(random.SystemRandom().randrange(2**32))))
    print(f"FUZZ_SEED={seed}")  # noqa: T201 - a failing run is repeated by it
    dice = random.Random(seed)
    ends = time.monotonic() + FUZZ_S
    while time.monotonic() < ends:
        cases = []
        for _ in range(50):
            drawn = [
                dice.choice(WHOLE)
                if dice.random() < 0.4
                else dice.choice(PARTS) + dice.choice(LINE_ENDS)
                if dice.random() < 0.8
                else dice.randbytes(dice.randrange(60))
                for _ in range(dice.randrange(14))
            ]
            data = bytearray(b"".join(drawn))
            for _ in range(dice.randrange(3)):
                if data:
                    data[dice.randrange(len(data))] = dice.randrange(256)
            cuts = [dice.randrange(400) for _ in range(dice.randrange(5))]
            cases.append((bytes(data), cuts, dice.choice(["read", "close", "half-close"])))
        run(cases)
