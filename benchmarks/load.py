"""A small HTTP/1.1 load client: keep-alive connections in one epoll loop, so that it is not the bottleneck."""

from __future__ import annotations

import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
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


class Connection:
    """A keep-alive connection with at most one request under way."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.body = b""
        """The body of the last response."""
        self._received = b""
        self._begun = 0.0

    def send(self, request: bytes) -> None:
        """Begin a request."""
        self._begun = time.perf_counter()
        self.socket.sendall(request)

    def receive(self) -> tuple[int, float] | None:
        """Receive what has arrived; return status and latency of a complete response. Raises ConnectionError."""
        chunk = self.socket.recv(65536)
        if not chunk:
            raise ConnectionError("the server hung up")
        self._received += chunk
        head, split, body = self._received.partition(b"\r\n\r\n")
        if not split:
            return None
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length" and len(body) >= int(value):
                self.body, self._received = body[: int(value)], body[int(value) :]
                return int(head[9:12]), time.perf_counter() - self._begun
        return None


def run(
    ports: Sequence[int],
    request: Callable[[int, int], bytes],
    *,
    connections: int,
    seconds: float,
    pause_s: float = 0.0,
) -> Result:
    """Keep ``connections`` busy for ``seconds``, spread evenly over servers on this machine.

    ``request(server, n)`` is sent to a server, which is given by its place in ``ports``; every begun request is
    awaited. Each connection pauses for so long between a response and its next request.
    """
    result = Result()
    waiting = selectors.DefaultSelector()
    resting: deque[tuple[float, Connection, int]] = deque()
    begun, sent = time.perf_counter(), 0
    for number in range(connections):
        server = number % len(ports)
        connection = Connection(("127.0.0.1", ports[server]))
        waiting.register(connection.socket, selectors.EVENT_READ, (connection, server))
        connection.send(request(server, sent))
        sent += 1
    while waiting.get_map():
        now = time.perf_counter()
        while resting and resting[0][0] <= now:
            _, connection, server = resting.popleft()
            connection.send(request(server, sent))
            sent += 1
        for key, _ in waiting.select(timeout=max(0.0, resting[0][0] - now) if resting else 30):
            connection, server = key.data
            received = connection.receive()
            if received is None:
                continue
            status, latency_s = received
            result.statuses[status] = result.statuses.get(status, 0) + 1
            result.latencies_s.append(latency_s)
            now = time.perf_counter()
            if now - begun >= seconds:
                waiting.unregister(connection.socket)
                connection.socket.close()
            elif pause_s:
                resting.append((now + pause_s, connection, server))
            else:
                connection.send(request(server, sent))
                sent += 1
    result.took_s = time.perf_counter() - begun
    result.latencies_s.sort()
    return result


def post(path: str, body: bytes, headers: dict[str, str]) -> bytes:
    """Render a POST request."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def get(path: str, headers: dict[str, str]) -> bytes:
    """Render a GET request."""
    lines = [f"GET {path} HTTP/1.1", "Host: localhost", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"
