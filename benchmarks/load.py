"""A small HTTP/1.1 load client: keep-alive connections in one epoll loop, so that it is not the bottleneck."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Result:
    """The result of a run: responses by status, seconds, and sorted latencies in seconds."""

    statuses: dict[int, int] = field(default_factory=dict)
    took_s: float = 0.0
    latencies_s: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Return responses per second."""
        return len(self.latencies_s) / self.took_s

    def percentile_ms(self, share: float) -> float:
        """Return the latency quantile ``share``."""
        return self.latencies_s[min(len(self.latencies_s) - 1, int(len(self.latencies_s) * share))] * 1e3


class _Line:
    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = b""
        self.begun = 0.0

    def send(self, request: bytes) -> None:
        self.begun = time.perf_counter()
        self.socket.sendall(request)

    def answer(self) -> int | None:
        """Return the status of a complete response, or None."""
        head, split, body = self.received.partition(b"\r\n\r\n")
        if not split:
            return None
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length" and len(body) >= int(value):
                self.received = body[int(value) :]
                return int(head[9:12])
        return None


def run(address: tuple[str, int], request: Callable[[int], bytes], *, connections: int, seconds: float) -> Result:
    """Keep ``connections`` busy for ``seconds`` with ``request(n)``; every begun request is awaited."""
    result = Result()
    waiting = selectors.DefaultSelector()
    sent = 0
    begun = time.perf_counter()
    for _ in range(connections):
        line = _Line(address)
        waiting.register(line.socket, selectors.EVENT_READ, line)
        line.send(request(sent))
        sent += 1
    open_lines = connections
    while open_lines:
        for key, _ in waiting.select(timeout=30):
            line = key.data
            chunk = line.socket.recv(65536)
            if not chunk:
                raise ConnectionError("the server hung up")
            line.received += chunk
            status = line.answer()
            if status is None:
                continue
            now = time.perf_counter()
            result.statuses[status] = result.statuses.get(status, 0) + 1
            result.latencies_s.append(now - line.begun)
            if now - begun < seconds:
                line.send(request(sent))
                sent += 1
            else:
                waiting.unregister(line.socket)
                line.socket.close()
                open_lines -= 1
    result.took_s = time.perf_counter() - begun
    result.latencies_s.sort()
    return result


def post(path: str, body: bytes, headers: dict[str, str]) -> bytes:
    """Render a POST request."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
