"""A client of streams that sees each event, and whether the stream ends as it should."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import trio

STREAM = "/ops/api/reports/stream"


@dataclass
class Event:
    """A server-sent event as it was received."""

    fields: dict[str, str] = field(default_factory=dict)

    @property
    def data(self) -> Any:
        return msgspec.json.decode(self.fields["data"])


class StreamReader:
    """A client of a stream, which reads its chunks itself. ``status`` and ``head`` are the response's."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._received = b""
        self._text = b""
        self.head = ""
        self.status = 0
        self.is_complete = False
        """Whether the response has ended as it should: with its last chunk."""
        self.chunks = 0
        """How many parts of the response have been received."""

    async def read_head(self) -> None:
        self.head = (await self._until(b"\r\n\r\n")).decode().lower()
        self.status = int(self.head.split()[1])

    async def next(self) -> Event | None:
        """Return the next event with data; None at the end of the stream."""
        with trio.fail_after(60):
            while True:
                while b"\n\n" not in self._text:
                    size = int((await self._until(b"\r\n")).strip() or b"0", 16)
                    self._text += (await self._exactly(size + 2))[:size]
                    self.chunks += 1
                    if not size:
                        self.is_complete = True
                        return None
                block, _, self._text = self._text.partition(b"\n\n")
                lines = [line.partition(": ") for line in block.decode().split("\n") if not line.startswith(":")]
                event = Event({name: value for name, _, value in lines})
                if "data" in event.fields:
                    return event

    async def keys(self, count: int) -> list[str]:
        found = [await self.next() for _ in range(count)]
        return [event.data["key"] for event in found if event is not None]

    async def _until(self, end: bytes) -> bytes:
        while end not in self._received:
            await self._receive()
        part, _, self._received = self._received.partition(end)
        return part

    async def _exactly(self, size: int) -> bytes:
        while len(self._received) < size:
            await self._receive()
        part, self._received = self._received[:size], self._received[size:]
        return part

    async def _receive(self) -> None:
        data = await self._stream.receive_some(65_536)
        assert data, "the response was cut"
        self._received += data


@asynccontextmanager
async def reading(
    base: str, token: str | None, query: str = "", *, path: str = STREAM, status: int = 200, **headers: str
) -> AsyncIterator[StreamReader]:
    """Open a stream of the service at ``base``, with a bearer or the headers alone."""
    host, _, port = base.removeprefix("http://").partition(":")
    lines = [f"GET {path}{query} HTTP/1.1", f"Host: {host}"]
    lines += [] if token is None else [f"Authorization: Bearer {token}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        await stream.send_all("\r\n".join([*lines, "", ""]).encode())
        reader = StreamReader(stream)
        await reader.read_head()
        assert reader.status == status, reader.head
        yield reader
