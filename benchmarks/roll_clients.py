"""Clients that notice every refused, cut or lost request: keep-alive, one connection a request, slow and idle ones.

They speak HTTP/1.1 on plain sockets, because a client library would hide a lost connection by a retry. A create
that is answered 503 is repeated with its Idempotency-Key.
"""

from __future__ import annotations

import itertools
import json
import socket
from collections import Counter
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import trio

BODY: Final = b'{"model":"studio/image-1","input":{"prompt":"a lighthouse at dusk","width":256,"height":256}}'
PAUSE_S: Final = 0.02
IDLE_PAUSE_S: Final = 1.2
"""Less than an idle connection has for one more request when its worker retires."""
SLOW_PARTS: Final = 4
SLOW_PAUSE_S: Final = 0.6
UNAVAILABLE: Final = 503
READ_BYTES: Final = 16 * 1024
SMALL_BUFFER_BYTES: Final = 4096


class _Cut(Exception):
    """The connection ended inside a request."""


@dataclass
class Tally:
    """What the clients saw. ``failed`` has the responses other than 200, ``created`` the tasks by Idempotency-Key;
    ``longest_s`` is the longest wait for a response of clients that are not slow themselves.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    created: dict[str, str] = field(default_factory=dict)
    longest_s: float = 0.0

    @property
    def requests(self) -> int:
        """The number of requests with a response."""
        return self.statuses.total()


class RollClients:
    """Clients of the service at ``url``, for accounts with these API keys; ``body`` is sent to create a task."""

    def __init__(self, url: str, api_keys: list[str], body: bytes = BODY) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._address = (parts.hostname, parts.port)
        self._api_keys = itertools.cycle(api_keys)
        self._body = body
        self._numbers = itertools.count()
        self.tally = Tally()
        self.is_stopping = False

    async def run(
        self, *, keep_alive: int = 8, fresh: int = 4, slow: int = 4, idle: int = 4, pause_s: float = PAUSE_S
    ) -> None:
        """Run so many clients of each kind until :attr:`is_stopping`; each finishes its request."""
        async with trio.open_nursery() as nursery:
            for _ in range(keep_alive):
                nursery.start_soon(self._create, pause_s, False)
            for _ in range(fresh):
                nursery.start_soon(self._create, pause_s, True)
            for _ in range(idle):
                nursery.start_soon(self._create, IDLE_PAUSE_S, False)
            for number in range(slow):
                nursery.start_soon(self._upload_slowly if number % 2 else self._read_slowly)

    async def _create(self, pause_s: float, one_request: bool) -> None:
        client = _Client(self._address)
        key, request = self._create_request()
        try:
            while not self.is_stopping:
                if await self._exchange(client, [request], key) != UNAVAILABLE:
                    key, request = self._create_request()
                if one_request:
                    client.close()
                await trio.sleep(pause_s)
        finally:
            client.close()

    async def _upload_slowly(self) -> None:
        client = _Client(self._address)
        key, request = self._create_request()
        try:
            while not self.is_stopping:
                size = -(-len(request) // SLOW_PARTS)
                parts = [request[at : at + size] for at in range(0, len(request), size)]
                if await self._exchange(client, parts, key) != UNAVAILABLE:
                    key, request = self._create_request()
        finally:
            client.close()

    async def _read_slowly(self) -> None:
        client = _Client(self._address, read_pause_s=0.05)
        try:
            while not self.is_stopping:
                await self._exchange(client, [b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"], None)
        finally:
            client.close()

    def _create_request(self) -> tuple[str, bytes]:
        key = f"roll-{next(self._numbers)}"
        head = (
            "POST /v2/task/create HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {next(self._api_keys)}\r\nIdempotency-Key: {key}\r\n"
            f"Content-Length: {len(self._body)}\r\n\r\n"
        )
        return key, head.encode() + self._body

    async def _exchange(self, client: _Client, parts: list[bytes], key: str | None) -> int | None:
        """Send a request and count what became of it. Returns the status of the response, None without one."""
        began = trio.current_time()
        try:
            status, body = await client.exchange(parts)
        except ConnectionRefusedError as fault:
            self.tally.refused.append(str(fault))
            await trio.sleep(PAUSE_S)
            return None
        except (OSError, _Cut) as fault:
            self.tally.cut.append(f"{fault} ({key}, {len(parts)} parts)")
            client.close()
            return None
        if client.is_fast and len(parts) == 1:
            self.tally.longest_s = max(self.tally.longest_s, trio.current_time() - began)
        self.tally.statuses[status] += 1
        if status != 200:
            self.tally.failed.append(f"{status} {body.decode()}")
        elif key is not None:
            self.tally.created[key] = json.loads(body)["request_id"]
        return status


class _Client:
    """One client's connection, opened again when the server has closed it between two requests."""

    def __init__(self, address: tuple[str, int], *, read_pause_s: float = 0.0) -> None:
        self._address = address
        self._read_pause_s = read_pause_s
        self._socket: trio.socket.SocketType | None = None

    @property
    def is_fast(self) -> bool:
        """Whether it reads without pauses."""
        return self._read_pause_s == 0

    async def exchange(self, parts: list[bytes]) -> tuple[int, bytes]:
        """Send a request and return status and body. Raises OSError or _Cut."""
        if self._socket is None or self._is_closed_by_server(self._socket):
            self.close()
            self._socket = trio.socket.socket()
            if self._read_pause_s:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._socket.connect(self._address)
        stream = trio.SocketStream(self._socket)
        for number, part in enumerate(parts):
            if number:
                await trio.sleep(SLOW_PAUSE_S)
            try:
                await stream.send_all(part)
            except trio.BrokenResourceError as fault:
                raise _Cut("sending") from fault
        received = b""
        while b"\r\n\r\n" not in received:
            received += await self._receive(stream)
        head, _, body = received.partition(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        while len(body) < int(fields[b"content-length"]):
            body += await self._receive(stream)
        if fields.get(b"connection") == b"close":
            self.close()
        return int(head[9:12]), body

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def _receive(self, stream: trio.SocketStream) -> bytes:
        await trio.sleep(self._read_pause_s)
        try:
            data = await stream.receive_some(READ_BYTES)
        except trio.BrokenResourceError as fault:
            raise _Cut("receiving") from fault
        if not data:
            raise _Cut("the connection was closed")
        return bytes(data)

    @staticmethod
    def _is_closed_by_server(found: trio.socket.SocketType) -> bool:
        with socket.fromfd(found.fileno(), found.family, found.type) as same:
            try:
                return not same.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError:
                return True
