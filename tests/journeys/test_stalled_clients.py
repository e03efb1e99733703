"""Clients that do not read, send or close: others are served, and a stop takes no longer than allowed."""

from __future__ import annotations

import resource
import signal
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from holdfast.start.exit_codes import CLEAN, GAVE_UP

from .conftest import NewService
from .service_process import Service

GET = b"GET /v2/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY_BYTES = 31 * 1024 * 1024


def connect(service: Service, *, receive_bytes: int | None = None) -> socket.socket:
    """Open a connection, optionally with a small receive buffer."""
    parts = urlsplit(service.url)
    line = socket.socket()
    if receive_bytes is not None:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    line.settimeout(60)
    line.connect((str(parts.hostname), parts.port))
    return line


def stall(service: Service) -> socket.socket:
    """A client that requests much and reads nothing."""
    line = connect(service, receive_bytes=4096)
    line.settimeout(0.5)
    with suppress(OSError):
        for _ in range(5000):
            line.sendall(GET * 20)
    return line


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def served(service: Service) -> None:
    with httpx2.Client(base_url=service.url, verify=False, timeout=60) as client:
        for path in ("/healthz", "/readyz", "/v2/models"):
            assert client.get(path).status_code == 200, path


@pytest.mark.slow
def test_idle_sockets_beyond_the_file_limit_block_no_client(new_service: NewService) -> None:
    service = new_service()
    service.open_files = 320
    service.start()
    with ExitStack() as stack:
        for _ in range(600):
            stack.enter_context(connect(service))
        served(service)
        assert service.is_alive()
        logged = [line["event"] for line in service.log_lines()]
        assert "too few open files for CONNECTIONS_MAX" in logged
        assert service.faults() == []
        assert service.stop() == 0


@pytest.mark.slow
def test_unread_responses_and_bodies_hold_neither_memory_nor_the_stop(new_service: NewService) -> None:
    service = new_service()
    service.start()
    assert service.process is not None
    before_bytes = resident_bytes(service.process.pid)
    head = b"POST /v2/callback/studio HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with ExitStack() as stack:
        for _ in range(12):
            line = stack.enter_context(connect(service))
            line.settimeout(0.3)
            with suppress(OSError):
                line.sendall(head + b"Content-Length: %d\r\n\r\n" % BODY_BYTES)
                line.sendall(b" " * BODY_BYTES)
        for _ in range(3):
            stack.enter_context(stall(service))
        half = stack.enter_context(connect(service))
        half.sendall(GET[:-2])
        served(service)
        assert resident_bytes(service.process.pid) - before_bytes < 60 * 1024 * 1024
        assert service.stop() == 0
    assert "Traceback" not in service.log_path.read_text()


@pytest.mark.slow
def test_a_second_signal_stops_at_once(new_service: NewService) -> None:
    service = new_service()
    service.start()
    assert service.process is not None
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(stall(service))
        service.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 60
        while "stopping" not in [line["event"] for line in service.log_lines()]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        service.process.send_signal(signal.SIGTERM)
        # The process ends itself where a busy machine takes longer to cancel everything.
        assert service.process.wait(timeout=60) in {CLEAN, GAVE_UP}
    logged = service.log_lines()
    assert "stopping at once" in [line["event"] for line in logged]
    assert "Traceback" not in service.log_path.read_text()


@pytest.mark.slow
def test_operators_routes_have_their_own_listener(new_service: NewService) -> None:
    service = new_service(OPS_PORT="0", OPERATOR_TOKEN="operator-token-of-the-listener-0123456789")
    service.start()
    logged = next(line for line in service.log_lines() if line["event"] == "holdfast serves")
    asks = {"Authorization": "Bearer operator-token-of-the-listener-0123456789"}
    with httpx2.Client(base_url=service.url, verify=False) as public:
        for path in ("/metrics", "/ops/api/reviews", "/ops/api/payments"):
            assert public.get(path, headers=asks).status_code == 404
        for path in ("/healthz", "/readyz", "/v2/models"):
            assert public.get(path).status_code == 200
    with httpx2.Client(
        base_url=str(logged["operators"]).removesuffix("/ops"), verify=False, headers=asks
    ) as operators:
        for path in ("/healthz", "/readyz", "/metrics", "/ops/api/reviews", "/ops/api/payments"):
            assert operators.get(path).status_code == 200
        assert operators.get("/v2/models").status_code == 404
    assert service.stop() == 0


@pytest.mark.slow
def test_public_clients_take_no_place_of_operators(new_service: NewService) -> None:
    service = new_service(
        OPS_PORT="0",
        OPERATOR_TOKEN="operator-token-of-the-listener-0123456789",
        CONNECTIONS_MAX="32",
        CONNECTIONS_PER_PEER_MAX="1000",
    )
    service.start()
    logged = next(line for line in service.log_lines() if line["event"] == "holdfast serves")
    asks = {"Authorization": "Bearer operator-token-of-the-listener-0123456789"}
    head = b"POST /v2/quote HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n"
    with ExitStack() as stack:

        def stalled() -> bytes:
            line = stack.enter_context(connect(service))
            line.sendall(head + b"Expect: 100-continue\r\n\r\n")
            return line.recv(12)

        # An eighth of all places is the operators'.
        assert [stalled() for _ in range(29)] == [b"HTTP/1.1 100"] * 28 + [b"HTTP/1.1 503"]
        with httpx2.Client(
            base_url=str(logged["operators"]).removesuffix("/ops"), verify=False, headers=asks, timeout=60
        ) as operators:
            for path in ("/readyz", "/metrics", "/ops"):
                assert operators.get(path).status_code == 200
    assert service.stop() == 0
