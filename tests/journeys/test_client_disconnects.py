"""A client that disconnects during its request leaves a whole operation or none."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from decimal import Decimal
from urllib.parse import urlsplit

import httpx2
import pytest
import trio
from tests.clients import Customer, Totals, ok, until

from .conftest import NewCustomer
from .quiet_provider import MODEL
from .service_process import Service

BODY = json.dumps({"model": MODEL, "input": {"prompt": "a lighthouse"}}).encode()


def head(customer: Customer, key: str, length: int = len(BODY)) -> bytes:
    """Return the head of a request to create a task."""
    return (
        f"POST /v2/task/create HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {customer.key}\r\n"
        f"Idempotency-Key: {key}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


def reset(line: socket.socket) -> None:
    """Close the connection with a reset."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    line.close()


def half_close(line: socket.socket) -> None:
    """Half-close the connection, read for a while, then close it."""
    line.shutdown(socket.SHUT_WR)
    line.settimeout(2)
    try:
        line.recv(65536)
    except OSError:
        pass
    finally:
        line.close()


@pytest.mark.parametrize("leave", [socket.socket.close, reset, half_close], ids=["close", "reset", "half-close"])
async def test_a_disconnect_leaves_a_whole_operation_or_none(
    quiet_service: Service, new_customer: NewCustomer, leave: Callable[[socket.socket], None]
) -> None:
    # Operators' tests on this service may have quarantined accounts.
    earlier = quiet_service.faults()
    ada = await new_customer(quiet_service, credit="40.00")
    address = (urlsplit(quiet_service.url).hostname, urlsplit(quiet_service.url).port)
    keys = [f"left-{number}" for number in range(20)]

    def send_and_leave(key: str, sent: bytes) -> None:
        line = socket.create_connection(address)
        line.sendall(sent)
        leave(line)

    with trio.fail_after(240):
        for number, key in enumerate(keys):
            # Some leave between head and body, some in the middle of the body, most after all of it.
            whole = head(ada, key) + BODY
            cut = {0: len(whole) - len(BODY), 1: len(whole) - 10}.get(number % 5, len(whole))
            await trio.to_thread.run_sync(send_and_leave, key, whole[:cut])
        await consistent(ada)
        answers = [await repeat(ada, key) for key in keys]
        assert len({ok(answer)["request_id"] for answer in answers}) == len(keys)
        assert len(await ada.tasks()) == len(keys)
        assert await ada.totals() == Totals(Decimal(40), Decimal(20), Decimal(20))
    assert quiet_service.audit() == []
    assert quiet_service.faults() == earlier


async def repeat(customer: Customer, key: str) -> httpx2.Response:
    """Repeat a request under its key, once an earlier attempt can no longer be running."""

    async def answered() -> httpx2.Response | None:
        headers = {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {customer.key}", "Idempotency-Key": key}
        answer = await customer.http.post("/v2/task/create", content=BODY, headers=headers)
        return None if answer.status_code == 409 else answer

    return await until(answered)


async def consistent(customer: Customer) -> None:
    """Check that there are as many holds as tasks."""

    async def check_consistency() -> bool:
        before = await customer.totals()
        tasks = await customer.tasks()
        return before == await customer.totals() and before.held == len(tasks)

    assert await until(check_consistency)
