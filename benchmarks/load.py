"""A small HTTP/1.1 load client: keep-alive connections in one epoll loop, so that it is not the bottleneck."""

from __future__ import annotations

import random
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

    def add(self, status: int, latency_s: float) -> None:
        """Add a response."""
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.latencies_s.append(latency_s)

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

    def send(self, request: bytes, due: float | None = None) -> None:
        """Begin a request, whose latency counts from now, or from when it was ``due``."""
        self._begun = time.perf_counter() if due is None else due
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


def run(ports: Sequence[int], request: Callable[[int, int], bytes], *, connections: int, seconds: float) -> Result:
    """Keep ``connections`` busy for ``seconds``, spread evenly over servers on this machine.

    ``request(server, n)`` is sent to a server, which is given by its place in ``ports``; every begun request is
    awaited.
    """
    result = Result()
    waiting = selectors.DefaultSelector()
    begun, sent = time.perf_counter(), 0
    for number in range(connections):
        server = number % len(ports)
        connection = Connection(("127.0.0.1", ports[server]))
        waiting.register(connection.socket, selectors.EVENT_READ, (connection, server))
        connection.send(request(server, sent))
        sent += 1
    while waiting.get_map():
        for key, _ in waiting.select(timeout=30):
            connection, server = key.data
            received = connection.receive()
            if received is None:
                continue
            result.add(*received)
            if time.perf_counter() - begun < seconds:
                connection.send(request(server, sent))
                sent += 1
            else:
                waiting.unregister(connection.socket)
                connection.socket.close()
    result.took_s = time.perf_counter() - begun
    result.latencies_s.sort()
    return result


def offer(
    ports: Sequence[int], requests: Sequence[bytes], *, rate: float, connections: int, seconds: float
) -> Result:
    """Send requests in turn at random moments, ``rate`` a second on average, to servers on this machine in turn.

    The moments are the same each time. A latency counts from its moment: that a connection becomes free is part of
    it. Every begun request is awaited.
    """
    result = Result()
    # epoll waits whole milliseconds.
    waiting = selectors.SelectSelector()
    idle = deque(Connection(("127.0.0.1", ports[number % len(ports)])) for number in range(connections))
    for connection in idle:
        waiting.register(connection.socket, selectors.EVENT_READ, connection)
    gaps_s = random.Random(rate)
    due = begun = time.perf_counter()
    sent = 0
    while due < begun + seconds or len(idle) < connections:
        while idle and due < begun + seconds and due <= time.perf_counter():
            idle.popleft().send(requests[sent % len(requests)], due)
            sent += 1
            due += gaps_s.expovariate(rate)
        is_due_next = idle and due < begun + seconds
        for key, _ in waiting.select(max(0.0, due - time.perf_counter()) if is_due_next else 30):
            received = key.data.receive()
            if received is not None:
                result.add(*received)
                idle.append(key.data)
    for connection in idle:
        connection.socket.close()
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
