"""A proxy between clients and a service that cuts connections, each at a stage that a seed chooses."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Literal
from urllib.parse import urlsplit

import trio

Stage = Literal["refused", "unsent", "half a request", "unanswered", "late", "half an answer", "answered", "whole"]
STAGES: Final[tuple[Stage, ...]] = (
    "refused", "unsent", "half a request", "unanswered", "late", "half an answer", "answered", "whole",
)  # fmt: skip
"""After which the connection is cut: nothing was read; the request was read and not passed on; half of it was; all
of it; that and a moment; half of the answer was passed on; all but its last byte; "whole" is not cut."""
LATE_S: Final = 0.05

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *([0-9]+)\r\n", re.IGNORECASE)


class CuttingProxy:
    """``cut`` is the share of requests that are cut; ``cuts`` counts them by their stage."""

    def __init__(self, target: str, *, cut: float, seed: int) -> None:
        address = urlsplit(target)
        assert address.hostname is not None
        assert address.port is not None
        self._target = address.hostname, address.port
        self._random = random.Random(seed)
        self.cut = cut
        self.cuts: Counter[Stage] = Counter()
        self.url = ""
        self._counted = trio.Event()

    def _stage(self) -> Stage:
        stage = self._random.choice(STAGES[:-1]) if self._random.random() < self.cut else "whole"
        self.cuts[stage] += 1
        self._counted.set()
        return stage

    async def reached(self, count: int) -> None:
        """Wait until so many requests have come."""
        while self.cuts.total() < count:
            self._counted = trio.Event()
            await self._counted.wait()

    async def serve(self, client: trio.SocketStream) -> None:
        """Pass requests on, one after the other, until one is cut."""
        upstream: trio.SocketStream | None = None
        try:
            rest = b""
            while True:
                stage = self._stage()
                if stage == "refused":
                    return
                request, rest = await read_message(client, rest)
                if not request or stage == "unsent":
                    return
                if upstream is None:
                    upstream = await trio.open_tcp_stream(*self._target)
                if stage == "half a request":
                    await upstream.send_all(request[: len(request) // 2])
                    return
                await upstream.send_all(request)
                if stage in {"unanswered", "late"}:
                    await trio.sleep(LATE_S if stage == "late" else 0)
                    return
                answer, _ = await read_message(upstream, b"")
                cut_at = {"half an answer": len(answer) // 2, "answered": len(answer) - 1}
                await client.send_all(answer[: cut_at.get(stage, len(answer))])
                if stage != "whole" or not answer:
                    return
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the service was killed, or the client has gone
        finally:
            for stream in (client, upstream):
                if stream is not None:
                    await trio.aclose_forcefully(stream)


async def read_message(stream: trio.SocketStream, rest: bytes) -> tuple[bytes, bytes]:
    """Return the next message with a Content-Length, and what came after it; empty at the end of the stream."""
    data = rest
    while True:
        head, found, _ = data.partition(b"\r\n\r\n")
        if found:
            length = _LENGTH.search(head + b"\r\n")
            size = len(head) + 4 + (int(length[1]) if length else 0)
            if len(data) >= size:
                return data[:size], data[size:]
        received = await stream.receive_some(65536)
        if not received:
            return b"", b""
        data += received


@asynccontextmanager
async def cutting_proxy(target: str, *, cut: float, seed: int = 7) -> AsyncIterator[CuttingProxy]:
    """Run a proxy."""
    proxy = CuttingProxy(target, cut=cut, seed=seed)
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        proxy.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, proxy.serve, listeners)
        yield proxy
        nursery.cancel_scope.cancel()
