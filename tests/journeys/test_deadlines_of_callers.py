"""Tasks with a deadline of their callers at two services on one database, of which one is stopped or killed.

The hold of a task is released ten seconds after its deadline at the latest, by whichever process lives.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

import httpx2
import pytest
import trio
from tests.clients import IMAGE, Customer, Totals, loopback_client, ok, refused, until

from .conftest import NewCustomer, customers_of_each
from .quiet_provider import MODEL, QuietProvider, signed
from .service_process import Service, until_linked

CUSTOMERS_EACH = 4
DEADLINE_S = 10
LATE_MAX = timedelta(seconds=60)
CAP = "1.00"


async def create(customer: Customer, **fields: object) -> httpx2.Response:
    """Create a task for a picture that costs 1.00."""
    return await customer.as_key("POST", "/v2/task/create", {"model": MODEL, "input": IMAGE, **fields})


@pytest.mark.slow
@pytest.mark.parametrize("way", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_hold_ends_with_its_deadline_while_a_process_lives(
    two_services: list[Service], provider: QuietProvider, new_customer: NewCustomer, way: signal.Signals
) -> None:
    _, struck = two_services
    await until_linked(two_services)
    customers = await customers_of_each(two_services, new_customer, CUSTOMERS_EACH, credit="5.00")
    assert struck.process is not None
    left, finished = {}, {}
    for customer in customers:
        refused(await create(customer, max_credits="0.99", deadline_s=DEADLINE_S), 402, "max_credits_exceeded")
        finished[customer.account_id] = ok(await create(customer, max_credits=CAP))["request_id"]
        await customer.submitted(finished[customer.account_id])
    began = trio.current_time()

    async def leave(customer: Customer) -> None:
        created = ok(await create(customer, max_credits=CAP, deadline_s=DEADLINE_S))
        left[customer.account_id] = created["request_id"]

    async with trio.open_nursery() as nursery:
        for customer in customers:
            nursery.start_soon(leave, customer)
    struck.process.send_signal(way)
    assert trio.current_time() - began < DEADLINE_S
    try:
        async with trio.open_nursery() as nursery:
            for customer in customers:
                nursery.start_soon(report_success, customer, provider, finished[customer.account_id])
        for customer in customers:
            await check(customer, left[customer.account_id], finished[customer.account_id])
    finally:
        if way is signal.SIGSTOP:
            struck.process.send_signal(signal.SIGCONT)
        else:
            await trio.to_thread.run_sync(struck.kill)
            await trio.to_thread.run_sync(struck.start)
    await until_linked(two_services)
    # What the other process knew, and a success that comes too late, change nothing.
    async with loopback_client(base_url=struck.url, timeout=60) as http:
        for customer in customers:
            await report_success(replace(customer, http=http), provider, left[customer.account_id])
            await check(replace(customer, http=http), left[customer.account_id], finished[customer.account_id])
    for service in two_services:
        assert await trio.to_thread.run_sync(service.audit) == []


async def report_success(customer: Customer, provider: QuietProvider, request_id: str) -> None:
    """Report the success of a task until that is accepted."""
    body = provider.success(request_id, event_id=f"evt_{request_id}", sequence=1)

    async def is_accepted() -> bool:
        answer = await customer.http.post("/v2/callback", content=body, headers=signed(body))
        assert answer.status_code in {200, 503}, answer.text
        return answer.status_code == 200

    await until(is_accepted)


async def check(customer: Customer, left: str, finished: str) -> None:
    """Wait until both tasks have ended: one canceled and released in time, one charged no more than its cap."""
    tasks = await customer.all_ended()
    assert tasks[finished]["status"] == "succeeded"
    assert Decimal(tasks[finished]["usage"]["cost_credits"]) == Decimal(CAP)
    assert tasks[left]["status"] == "canceled"
    assert tasks[left]["error"].startswith("deadline_exceeded")
    operations = await customer.statement()
    settled = {each["reference"]: each for each in operations if each["kind"] in {"capture", "release"}}
    assert {request_id: each["kind"] for request_id, each in settled.items()} == {
        finished: "capture",
        left: "release",
    }
    due = datetime.fromisoformat(tasks[left]["created_at"]) + timedelta(seconds=DEADLINE_S)
    assert timedelta(0) <= datetime.fromisoformat(settled[left]["at"]) - due <= LATE_MAX
    assert await customer.totals() == Totals(Decimal(4), Decimal(0), Decimal(4))
