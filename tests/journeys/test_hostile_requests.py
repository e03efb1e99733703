"""Hostile bytes on connections: the service keeps running and serves its customers.

``CLOSE_RACES=10000`` makes that many close races instead of three hundred.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx2
import pytest

from .service_process import Service

CLOSE_RACES = int(os.environ.get("CLOSE_RACES", "300"))

HOST = b"Host: localhost\r\n"
SECRETS = (
    b"Authorization: Bearer hk_live_topsecretofthisverytest0123\r\nCookie: session=topsecretofthisverytest\r\n"
)
GET = b"GET /healthz HTTP/1.1\r\n" + HOST + SECRETS
POST = b"POST /v2/task/create HTTP/1.1\r\n" + HOST + SECRETS + b"Content-Type: application/json\r\n"
OTP = b"POST /v2/control/auth/otp HTTP/1.1\r\n" + HOST + SECRETS + b"Content-Type: application/json\r\n"
CHUNKED = OTP + b"Transfer-Encoding: chunked\r\n\r\n"
UPGRADE = GET + b"Connection: Upgrade\r\n"
H2C = GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
WEBSOCKET = UPGRADE + b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
WS_KEY = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return an HTTP/2 frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def literal(name: bytes, value: bytes) -> bytes:
    """Return an HTTP/2 header without compression."""
    return b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value


def h2(*headers: tuple[bytes, bytes]) -> bytes:
    """Return an HTTP/2 connection with one request."""
    block = b"".join(literal(name, value) for name, value in headers)
    return PREFACE + SETTINGS + frame(1, 5, 1, block)


PLAIN_H2 = ((b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"x"))

OPENINGS: dict[str, tuple[bytes, ...]] = {
    "h2c with settings A": (H2C + b"HTTP2-Settings: A\r\n\r\n",),
    "h2c with empty settings": (H2C + b"HTTP2-Settings:\r\n\r\n",),
    "h2c with settings that are no base64": (H2C + b"HTTP2-Settings: !!!\r\n\r\n",),
    "h2c with settings of the wrong length": (H2C + b"HTTP2-Settings: AAMA\r\n\r\n",),
    "h2c with good settings": (H2C + b"HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n", PREFACE + SETTINGS),
    "h2c without settings": (UPGRADE + b"Upgrade: h2c\r\n\r\n",),
    "h2c twice": (H2C + b"Upgrade: h2c\r\nHTTP2-Settings: A\r\nHTTP2-Settings: B\r\n\r\n",),
    "h2c with a body": (H2C.replace(b"GET", b"POST") + b"HTTP2-Settings: A\r\nContent-Length: 2\r\n\r\n{}",),
    "h2c with chunks": (H2C.replace(b"GET", b"POST") + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",),
    "h2c, then a request": (H2C + b"HTTP2-Settings: A\r\n\r\n" + GET + b"\r\n",),
    "a websocket": (WEBSOCKET + WS_KEY + b"\r\n",),
    "a websocket without a key": (WEBSOCKET + b"\r\n",),
    "a websocket of version 7": (WEBSOCKET.replace(b"13", b"7") + WS_KEY + b"\r\n",),
    "a websocket whose protocol is not ASCII": (
        WEBSOCKET + WS_KEY + b"Sec-WebSocket-Protocol: \xe4\xf6\xfc\r\n\r\n",
    ),
    "a websocket with a length": (WEBSOCKET + WS_KEY + b"Content-Length: 5\r\n\r\nhello",),
    "a websocket with a length and no body": (WEBSOCKET + WS_KEY + b"Content-Length: 5\r\n\r\n",),
    "a websocket with data after it": (WEBSOCKET + WS_KEY + b"\r\n\x81\x85\x00\x00\x00\x00hello",),
    "a websocket with chunks": (WEBSOCKET + WS_KEY + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",),
    "a websocket by POST": (WEBSOCKET.replace(b"GET", b"POST") + WS_KEY + b"\r\n",),
    "a websocket at an asset": (WEBSOCKET.replace(b"/healthz", b"/v2/assets/x") + WS_KEY + b"\r\n",),
    "a websocket with bad extensions": (WEBSOCKET + WS_KEY + b"Sec-WebSocket-Extensions: ;;,=\r\n\r\n",),
    "a websocket with two keys": (WEBSOCKET + WS_KEY + WS_KEY + b"\r\n",),
    "an upgrade to TLS": (UPGRADE + b"Upgrade: TLS/1.0\r\n\r\n",),
    "an upgrade to nothing": (UPGRADE + b"Upgrade:\r\n\r\n",),
    "an upgrade to many": (UPGRADE + b"Upgrade: h2c, websocket, TLS/1.2, x/1\r\n\r\n",),
    "the preface alone": (PREFACE,),
    "the preface, cut": (PREFACE[:10],),
    "the preface and settings": (PREFACE + SETTINGS,),
    "the preface and nonsense": (PREFACE + b"nonsense" * 20,),
    "h2: a plain request": (h2(*PLAIN_H2, (b":path", b"/healthz")),),
    "h2: a path that is not ASCII": (h2(*PLAIN_H2, (b":path", b"/\xff\xfe")),),
    "h2: no path": (h2(*PLAIN_H2),),
    "h2: an empty path": (h2(*PLAIN_H2, (b":path", b"")),),
    "h2: CONNECT without a path": (h2((b":method", b"CONNECT"), (b":authority", b"x:1")),),
    "h2: a method that is not ASCII": (h2((b":method", b"\xff"), *PLAIN_H2[1:], (b":path", b"/")),),
    "h2: 1,200 PRIORITY frames": (
        PREFACE + SETTINGS + b"".join(frame(2, 0, 2 * n + 1, b"\0\0\0\0\x10") for n in range(1200)),
    ),
    "h2: a PRIORITY on itself": (PREFACE + SETTINGS + frame(2, 0, 1, b"\0\0\0\1\x10"),),
    "h2: DATA after an early answer": (
        h2((b":method", b"POST"), *PLAIN_H2[1:], (b":path", b"/x")),
        frame(0, 0, 1, b"x" * 1000),
        frame(0, 1, 1, b"x" * 1000),
    ),
    "h2: DATA on no stream": (PREFACE + SETTINGS + frame(0, 1, 1, b"x"),),
    "h2: a window of nothing": (PREFACE + SETTINGS + frame(8, 0, 0, b"\0\0\0\0"),),
    "h2: a frame larger than allowed": (PREFACE + SETTINGS + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",),
    "h2: many resets": (PREFACE + SETTINGS + b"".join(frame(3, 0, 2 * n + 1, b"\0\0\0\x08") for n in range(500)),),
    "h2: pings": (PREFACE + SETTINGS + frame(6, 0, 0, b"12345678") * 500,),
    "h2: settings of an odd length": (PREFACE + frame(4, 0, 0, b"\0\1\0"),),
    "h2: continuation without a head": (PREFACE + SETTINGS + frame(9, 4, 1, b"x"),),
    "CONNECT": (b"CONNECT localhost:443 HTTP/1.1\r\n" + HOST + SECRETS + b"\r\n",),
    "CONNECT without a target": (b"CONNECT  HTTP/1.1\r\n" + HOST + b"\r\n",),
    "CONNECT with bytes after it": (b"CONNECT x:1 HTTP/1.1\r\n" + HOST + b"\r\n" + b"\x16\x03\x01" * 20,),
    "TLS": (bytes.fromhex("160301020001fc0303") + os.urandom(500),),
    "SSL 2": (bytes.fromhex("802e0100020015000000100100800200800300800400800500800600400700c0"),),
    "SMTP": (b"EHLO example.com\r\n", b"MAIL FROM:<a@example.com>\r\n"),
    "SSH": (b"SSH-2.0-OpenSSH_9.6\r\n",),
    "Redis": (b"*1\r\n$4\r\nPING\r\n",),
    "PostgreSQL": (b"\0\0\0\x08\x04\xd2\x16\x2f",),
    "a proxy's first line": (b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n" + GET + b"\r\n",),
    "a proxy's binary first line": (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c" + b"\0" * 12,),
    "null bytes": (b"\0" * 1000,),
    "random bytes": (bytes(range(256)) * 8,),
    "line ends alone": (b"\r\n" * 5000,),
    "bare line feeds": (b"GET /healthz HTTP/1.1\nHost: x\n\n",),
    "half a request line": (b"GET /heal",),
    "a target that is no path": (b"GET ? HTTP/1.1\r\n" + HOST + b"\r\n",),
    "half an address": (b"GET http://[ HTTP/1.1\r\n" + HOST + b"\r\n",),
    "an address of another host": (b"GET http://evil.example/metrics HTTP/1.1\r\n" + HOST + b"\r\n",),
    "a target of 100 kB": (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",),
    "a target that is not UTF-8": (b"GET /%ff%fe?%ff HTTP/1.1\r\n" + HOST + b"\r\n",),
    "a target beyond ASCII": (b"GET /\xc3\xa4 HTTP/1.1\r\n" + HOST + b"\r\n",),
    "a header of 1 MB": (GET + b"X: " + b"y" * 1_000_000 + b"\r\n\r\n",),
    "10,000 headers": (GET + b"X: y\r\n" * 10_000 + b"\r\n",),
    "a header's name of 1 MB": (GET + b"y" * 1_000_000 + b": x\r\n\r\n",),
    "a folded header": (GET + b"X: a\r\n b\r\n\r\n",),
    "a length and chunks": (OTP + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x",),
    "two lengths": (OTP + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",),
    "an endless length": (OTP + b"Content-Length: 99999999999999999999\r\n\r\n",),
    "a negative length": (OTP + b"Content-Length: -1\r\n\r\n",),
    "an unknown coding": (OTP + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",),
    "a bad chunk": (CHUNKED + b"zz\r\n",),
    "an endless chunk": (CHUNKED + b"ffffffffffffffff\r\nx",),
    "a chunk with a huge extension": (CHUNKED + b"1;" + b"x" * 300_000 + b"\r\n",),
    "many trailers": (CHUNKED + b"0\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",),
    "a body after an early answer": (POST + b"Content-Length: 100000\r\n\r\n", b"x" * 50_000, b"x" * 50_000),
    "half a body, then silence": (OTP + b"Content-Length: 1000\r\n\r\n{",),
    "100 (Continue), and no body": (OTP + b"Expect: 100-continue\r\nContent-Length: 10\r\n\r\n",),
    "an unknown expectation": (GET + b"Expect: a-miracle\r\n\r\n",),
    "HTTP/0.9": (b"GET /healthz\r\n\r\n",),
    "HTTP/1.0": (b"GET /healthz HTTP/1.0\r\n\r\n",),
    "HTTP/3.7": (b"GET /healthz HTTP/3.7\r\n" + HOST + b"\r\n",),
    "no host": (b"GET /healthz HTTP/1.1\r\n\r\n",),
    "2,000 requests at once": ((GET + b"\r\n") * 2000,),
    "close, and one more byte": (GET + b"Connection: close\r\n\r\n", b"x"),
    "close, and one more request": (GET + b"Connection: close\r\n\r\n" + GET + b"\r\n",),
    "close and keep-alive": (GET + b"Connection: close, keep-alive\r\n\r\n" + GET + b"\r\n",),
    "a request, then nonsense": (GET + b"\r\n" + b"\xff" * 100,),
}


@dataclass
class HostileClient:
    """Opens connections to a service."""

    service: Service

    def connect(self) -> socket.socket:
        parts = urlsplit(self.service.url)
        return socket.create_connection((str(parts.hostname), parts.port), timeout=60)

    def open(self, parts: tuple[bytes, ...], *, leave: str) -> bytes:
        """Send the parts with pauses, read the response, and disconnect."""
        received = b""
        line = self.connect()
        try:
            for part in parts:
                line.sendall(part)
                time.sleep(0.003)
            line.settimeout(0.15)
            if leave == "reset":
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                return b""
            if leave == "half-close":
                line.shutdown(socket.SHUT_WR)
            while part := line.recv(65536):
                received += part
        except OSError:
            pass  # cut off, or nothing more to read
        finally:
            line.close()
        return received


def healthy(client: httpx2.Client) -> None:
    """Check that a customer on another connection gets no error."""
    assert client.get("/healthz").status_code == 200


def unexpected(service: Service) -> list[str]:
    """Return lines that are not JSON, and lines that report a fault."""
    lines = service.log_path.read_text().splitlines()
    return [
        line for line in lines if not line.startswith("{") or '"level": "error"' in line or '"critical"' in line
    ]


def test_there_are_more_than_76_hostile_requests() -> None:
    assert len(OPENINGS) >= 76


@pytest.mark.parametrize("leave", ["close", "reset", "half-close"])
@pytest.mark.slow
def test_hostile_requests_disturb_neither_service_nor_customers(shared_service: Service, leave: str) -> None:
    hostile = HostileClient(shared_service)
    with httpx2.Client(base_url=shared_service.url, verify=False, timeout=60) as client:
        for name, parts in OPENINGS.items():
            received = hostile.open(parts, leave=leave)
            assert shared_service.is_alive(), name
            for answer in received.split(b"HTTP/1.1 ")[1:]:
                assert answer[:3] in {b"200", b"400", b"401", b"404", b"405", b"408", b"413", b"431", b"501",
                                      b"505", b"100", b"403"}, (name, answer[:200])  # fmt: skip
                if answer[:3] not in {b"200", b"100"}:
                    assert b'{"error":{"message":' in answer, (name, answer)
                    assert b"x-request-id: req_" in answer.lower(), (name, answer)
            healthy(client)
    assert unexpected(shared_service) == []
    assert "topsecretofthisverytest" not in shared_service.log_path.read_text()


def test_a_byte_sent_after_the_last_request_is_harmless(shared_service: Service) -> None:
    hostile = HostileClient(shared_service)
    answered = 0
    with httpx2.Client(base_url=shared_service.url, verify=False, timeout=60) as client:
        for number in range(CLOSE_RACES):
            with hostile.connect() as line:
                line.sendall(GET + b"Connection: close\r\n\r\n")
                time.sleep((number % 40) / 20_000)
                try:
                    line.sendall(b"x")
                    answered += line.recv(65536).startswith(b"HTTP/1.1 200")
                except OSError:
                    pass  # the answer came first, and with it the end
            if number % 100 == 0:
                healthy(client)
        healthy(client)
    assert shared_service.is_alive()
    # The byte never costs the client its answer: the server reads on for a moment after its close.
    assert answered == CLOSE_RACES
    assert unexpected(shared_service) == []
