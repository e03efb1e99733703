"""The parser reads the same requests as h11, however the bytes are split, or refuses them on purpose.

The table lists what this server refuses although h11 accepts it, with the status: a proxy may parse such a message
differently, which makes request smuggling possible.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import h11
import pytest

from holdfast.http.server.http1 import RequestParser
from holdfast.http.server.limits import ServerLimits
from holdfast.sockets.connected import RECEIVE_BYTES

LIMITS = ServerLimits(header_bytes_max=4096, header_count_max=50)
POST = b"POST /a?b=c HTTP/1.1\r\nHost: x\r\n"
GET = b"GET /g HTTP/1.1\r\nHost: x\r\n"
CODED = b"Transfer-Encoding: chunked\r\n"
CHUNKED = POST + CODED + b"\r\n"


@dataclass(frozen=True)
class Read:
    """What was read: requests with their bodies, how many of them are whole, and whether the rest was refused."""

    requests: tuple[tuple[str, bytes, tuple[tuple[bytes, bytes], ...], bytes], ...]
    whole: int
    refused: bool


SAME = {
    "a get": GET + b"\r\n",
    "a head": b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n",
    "options": b"OPTIONS /v2/models HTTP/1.1\r\nHost: x\r\n\r\n",
    "a body with its length": POST + b"Content-Length: 5\r\n\r\nhello",
    "a body of no length": POST + b"Content-Length: 0\r\n\r\n",
    "a body cut short": POST + b"Content-Length: 9\r\n\r\nhello",
    "chunks": CHUNKED + b"5\r\nhello\r\n6\r\n api\r\n0\r\n\r\n",
    "chunks in capital hex": CHUNKED + b"A\r\n0123456789\r\n0\r\n\r\n",
    "chunk extensions": CHUNKED + b"5;a=b;c\r\nhello\r\n0;last\r\n\r\n",
    "trailers": CHUNKED + b"1\r\nx\r\n0\r\nX-Sum: 1\r\nX-More: 2\r\n\r\n",
    "two in a row": POST + b"Content-Length: 2\r\n\r\n{}" + GET + b"\r\n",
    "chunks and another": CHUNKED + b"2\r\n{}\r\n0\r\n\r\n" + GET + b"\r\n",
    "five in a row": (GET + b"\r\n") * 5,
    "waiting for 100": POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
    "HTTP/1.0": b"GET /old HTTP/1.0\r\n\r\n",
    "HTTP/1.0 with a body": b"POST /old HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}",
    "an offer of h2c": GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: A\r\n\r\n",
    "an offer of h2c and another": GET + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + GET + b"\r\n",
    "an offer with a body": POST
    + b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\n{}"
    + GET
    + b"\r\n",
    "an offer with chunks": CHUNKED[:-2]
    + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\n"
    + GET
    + b"\r\n",
    "an empty header": GET + b"X:\r\nY: \r\n\r\n",
    "blanks around a value": GET + b"X: \t a b \t \r\n\r\n",
    "bytes beyond ASCII in a value": GET + b"X: \xe4\xff\r\n\r\n",
    "half a head": GET + b"X: y",
    "nothing": b"",
    "no version": b"GET /\r\n\r\n",
    "nonsense": b"NONSENSE\r\n\r\n",
    "TLS": bytes.fromhex("160301020001fc0303") + b"\0" * 40,
    "null bytes": b"\0" * 30,
    "a null in a value": GET + b"X: a\0b\r\n\r\n",
    "a blank in a name": GET + b"X Y: a\r\n\r\n",
    "a blank before the colon": POST + b"Content-Length : 2\r\n\r\n{}",
    "no name": GET + b": a\r\n\r\n",
    "no colon": GET + b"what\r\n\r\n",
    "two lengths that differ": POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a length in words": POST + b"Content-Length: two\r\n\r\n{}",
    "a negative length": POST + b"Content-Length: -2\r\n\r\n{}",
    "a length with a plus": POST + b"Content-Length: +2\r\n\r\n{}",
    "a length in hex": POST + b"Content-Length: 0x2\r\n\r\n{}",
    "an unknown coding": POST + b"Transfer-Encoding: gzip\r\n\r\n{}",
    "two codings": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "chunked, then not": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": GET + b"Host: y\r\n\r\n",
    "a chunk size in words": CHUNKED + b"xyz\r\nhello\r\n0\r\n\r\n",
    "a chunk longer than it says": CHUNKED + b"3\r\nhello\r\n0\r\n\r\n",
    "a negative chunk": CHUNKED + b"-1\r\nhello\r\n0\r\n\r\n",
    "a bare line feed in chunks": CHUNKED + b"1\nx\r\n0\r\n\r\n",
    "a carriage return in a value": GET + b"X: a\rb\r\n\r\n",
}
STRICTER = {
    "bare line feeds": (b"GET / HTTP/1.1\nHost: x\n\n", 400),
    "a bare line feed in a head": (GET + b"X: a\nY: b\r\n\r\n", 400),
    "a blank after a chunk size": (CHUNKED + b"1 \r\nx\r\n0\r\n\r\n", 400),
    "a folded header": (GET + b"X: a\r\n b\r\n\r\n", 400),
    "a length twice": (POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400),
    "a list of lengths": (POST + b"Content-Length: 2, 2\r\n\r\n{}", 400),
    "a length beside chunks": (POST + b"Content-Length: 5\r\n" + CODED + b"\r\n0\r\n\r\n", 400),
    "chunks beside a length": (POST + CODED + b"Content-Length: 5\r\n\r\n0\r\n\r\n", 400),
    "chunks in HTTP/1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "an absolute target": (b"GET http://x/a HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "a target that is no path": (b"GET ? HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "half an address": (b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "a star": (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "a fragment": (b"GET /a#b HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "a tunnel": (b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "a tunnel to a path": (b"CONNECT /a HTTP/1.1\r\nHost: x\r\n\r\n" + GET + b"\r\n", 400),
    "an unknown method": (b"BREW / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "SMTP": (b"EHLO example.com\r\n", 400),
    "the preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "HTTP/3": (b"GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505),
    "HTTP/2": (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505),
    "a giant head": (GET + b"X: " + b"y" * 40_000 + b"\r\n\r\n", 431),
    "HTTP/1.2": (b"GET / HTTP/1.2\r\nHost: x\r\n\r\n", 505),
    "many headers": (GET + b"X: y\r\n" * 60 + b"\r\n", 431),
    "many trailers": (CHUNKED + b"0\r\n" + b"X: y\r\n" * 60 + b"\r\n", 431),
    "a chunk extension without end": (CHUNKED + b"1;" + b"x" * 200_000, 400),
    "a long head": (GET + b"X: " + b"y" * 5000 + b"\r\n\r\n", 431),
}  # fmt: skip


def by_h11(data: bytes) -> Read:
    """What h11 reads, as a server that answers each request at once."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=16 * 1024)
    requests: list[list[object]] = []
    whole, refused = 0, False
    connection.receive_data(data)
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                headers = tuple((bytes(name), bytes(value)) for name, value in event.headers)
                requests.append([event.method.decode(), bytes(event.target), headers, b""])
            elif isinstance(event, h11.Data):
                requests[-1][3] = bytes(requests[-1][3]) + bytes(event.data)  # type: ignore[call-overload]
            elif isinstance(event, h11.EndOfMessage):
                whole += 1
                if connection.our_state is not h11.SEND_RESPONSE:
                    break
                connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.states[h11.SERVER] is not h11.DONE:
                    break
                connection.start_next_cycle()
            else:
                break
    except h11.RemoteProtocolError:
        refused = True
    except h11.LocalProtocolError:
        pass  # it would be a tunnel from here on
    return Read(tuple((r[0], r[1], r[2], r[3]) for r in requests), whole, refused)  # type: ignore[misc]


def by_us(*parts: bytes) -> tuple[Read, int | None]:
    """What this server reads, and the status of its refusal."""
    parser = RequestParser(LIMITS)
    for part in parts:
        for start in range(0, len(part), RECEIVE_BYTES):
            parser.feed(part[start : start + RECEIVE_BYTES])
    requests, whole, status = [], 0, None
    for request in parser.ready:
        whole += request.is_complete and request.refusal is None
        if request.refusal is not None:
            status = request.refusal.status
        if request.target:
            requests.append((request.method, request.target, tuple(request.headers), bytes(request.waiting)))
    return Read(tuple(requests), whole, status is not None), status


def splits(data: bytes) -> list[tuple[bytes, ...]]:
    """The bytes whole, in two at every place, and one at a time; long ones in two here and there."""
    step = 1 if len(data) < 2000 else len(data) // 50
    return [(data[:at], data[at:]) for at in range(0, len(data), step)] + [
        tuple(data[at : at + 1] for at in range(len(data)))
    ]


@pytest.mark.parametrize("name", SAME)
def test_requests_do_not_depend_on_how_their_bytes_are_split(name: str) -> None:
    data = SAME[name]
    expected = by_h11(data)
    for parts in splits(data):
        read, _ = by_us(*parts)
        assert read == expected, (name, parts[0][-20:])


@pytest.mark.parametrize("name", STRICTER)
def test_stricter_refusals_do_not_depend_on_the_split(name: str) -> None:
    data, expected = STRICTER[name]
    theirs = by_h11(data)
    for parts in splits(data):
        read, status = by_us(*parts)
        assert status == expected, (name, parts[0][-20:])
        assert read.whole < max(1, theirs.whole)
        assert read != theirs or theirs.refused


def test_an_empty_line_before_a_request_is_skipped() -> None:
    read, status = by_us(b"\r\n" + GET + b"\r\n")
    assert (read.whole, status) == (1, None)


def test_the_transfer_coding_is_case_insensitive() -> None:
    data = POST + b"Transfer-Encoding: Chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    for parts in splits(data):
        read, status = by_us(*parts)
        assert (read.whole, read.requests[0][3], status) == (1, b"{}", None)


def test_pipelined_requests_are_limited() -> None:
    parser = RequestParser(LIMITS)
    parser.feed((GET + b"\r\n") * 1000)
    assert len(parser.ready) == 65
    assert [request.keep_alive for request in parser.ready] == [True] * 64 + [False]
    assert all(request.refusal is None for request in parser.ready)
    assert parser.is_done


def test_a_body_in_tiny_chunks_waits_in_one_piece() -> None:
    parser = RequestParser(LIMITS)
    parser.feed(POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"2\r\nab\r\n" * 9000)
    waiting = parser.ready[0].waiting
    assert bytes(waiting) == b"ab" * 9000
    assert sys.getsizeof(waiting) < 2 * len(waiting)
