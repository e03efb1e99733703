"""A media provider that ends every job at once with one small PNG, for measuring whole tasks.

It speaks the prediction protocol of model containers and reports by our signed callback, over persistent
connections. Each job's picture is another one, so that every output is stored.

Run: python -m benchmarks.instant_provider PORT SECRET
"""

from __future__ import annotations

import asyncio
import itertools
import struct
import sys
import time
import zlib
from urllib.parse import urlsplit

import msgspec

from holdfast.providers.signatures import sign

SIDE = 8
RETRY_S = 0.5
RETRIES_MAX = 60

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def png(number: int) -> bytes:
    """Return a PNG of one color that depends on ``number``."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    row = b"\0" + number.to_bytes(3, "big") * SIDE
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(row * SIDE))
        + chunk(b"IEND", b"")
    )


class InstantProvider:
    """Accepts jobs, calls back, and serves their pictures."""

    def __init__(self, port: int, secret: str) -> None:
        self._port = port
        self._secret = secret
        self._numbers = itertools.count()
        self._idle: dict[tuple[str, int], list[Connection]] = {}
        self._jobs: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until killed."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        await server.serve_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                method, path, _ = head.split(None, 2)
                body = await reader.readexactly(_content_length(head))
                if path.startswith(b"/files/"):
                    content_type, answer = "image/png", png(int(path[7:-4]))
                else:
                    name = path.rpartition(b"/")[2].decode()
                    content_type = "application/json"
                    answer = msgspec.json.encode({"id": name, "status": "processing"})
                    if method == b"put":
                        job = asyncio.create_task(self._finish(name, msgspec.json.decode(body)))
                        self._jobs.add(job)
                        job.add_done_callback(self._jobs.discard)
                lines = ("HTTP/1.1 200 OK", f"Content-Type: {content_type}", f"Content-Length: {len(answer)}")
                writer.write("\r\n".join((*lines, "", "")).encode() + answer)
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    async def _finish(self, name: str, job: dict[str, object]) -> None:
        """Report a job as succeeded until the callback is accepted."""
        number = next(self._numbers)
        request_id, _, attempt = name.rpartition(".")
        body = msgspec.json.encode(
            {
                "event_id": f"evt_{number}_{name}",
                "request_id": request_id,
                "attempt": int(attempt),
                "provider_ref": name,
                "status": "succeeded",
                "outputs": [{"url": f"http://127.0.0.1:{self._port}/files/{number}.png"}],
            }
        )
        url = urlsplit(str(job["webhook"]))
        address = url.hostname or "", url.port or 80
        for _ in range(RETRIES_MAX):
            lines = (
                f"POST {url.path} HTTP/1.1",
                f"Host: {url.netloc}",
                "Content-Type: application/json",
                f"X-Callback-Signature: {sign(self._secret, body, at=int(time.time()))}",
                f"Content-Length: {len(body)}",
            )
            if await self._send(address, "\r\n".join((*lines, "", "")).encode() + body) == 200:
                return
            await asyncio.sleep(RETRY_S)

    async def _send(self, address: tuple[str, int], request: bytes) -> int | None:
        """Send a request on an idle connection; return the status, or None if the connection failed."""
        idle = self._idle.setdefault(address, [])
        try:
            reader, writer = idle.pop() if idle else await asyncio.open_connection(*address)
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(_content_length(head))
        except (OSError, asyncio.IncompleteReadError):
            return None
        idle.append((reader, writer))
        return int(head[9:12])


def _content_length(head: bytes) -> int:
    """Return the length of the body that follows a lower-case head."""
    _, found, rest = head.partition(b"\r\ncontent-length:")
    return int(rest.partition(b"\r\n")[0]) if found else 0


if __name__ == "__main__":
    asyncio.run(InstantProvider(int(sys.argv[1]), sys.argv[2]).run())
