"""``kill -9`` under load: answered requests stay, nothing is duplicated, unfinished work continues."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from tests.clients import Customer, Totals, until

from .conftest import NewCustomer, NewService
from .load import Witness
from .quiet_provider import MODEL, QuietProvider, signed

ROUNDS = int(os.environ.get("CRASH_ROUNDS", "3"))
CREDIT = Decimal("1000.00")


@pytest.mark.slow
async def test_repeated_kills_lose_and_duplicate_nothing(
    new_service: NewService, new_customer: NewCustomer
) -> None:
    service = new_service()
    service.start()
    ada = await new_customer(service, credit=str(CREDIT))
    witness = Witness(ada, seed=1)
    for round_number in range(1, ROUNDS + 1):
        wanted = witness.answered + 25 + 5 * round_number

        async def enough(wanted: int = wanted) -> bool:
            return witness.answered >= wanted

        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(witness.work)
            await until(enough, within_s=60)
            await trio.to_thread.run_sync(service.kill)
            witness.is_stopping = True
        witness.is_stopping = False
        await trio.to_thread.run_sync(service.start)
        await witness.hold_to_it()
        assert service.audit() == []
    tasks = await witness.settle(CREDIT)
    assert {task["status"] for task in tasks.values()} <= {"succeeded", "canceled", "failed"}
    assert any(task["status"] == "succeeded" for task in tasks.values())
    assert service.audit() == []
    assert service.stop() == 0


async def until_cut(deliver: Callable[[Customer, list[str]], Awaitable[None]], *given: Any) -> None:
    """Send callbacks until the connection breaks."""
    with suppress(httpx2.TransportError):
        await deliver(*given)


@pytest.mark.slow
async def test_acknowledged_callbacks_survive_kills(
    new_service: NewService, new_customer: NewCustomer, provider: QuietProvider, tmp_path: Path
) -> None:
    service = new_service(CATALOG=str(provider.write_catalog(tmp_path)))
    service.start()
    ada = await new_customer(service, credit="200.00")
    created = [(await ada.create(MODEL)).json()["request_id"] for _ in range(40)]
    answered: dict[str, str] = {}

    async def deliver(customer: Customer, request_ids: list[str]) -> None:
        for request_id in request_ids:
            body = provider.callback_body(
                request_id, "failed", event_id="evt_1", sequence=1, error={"message": "no"}
            )
            answer = await customer.http.post("/v2/callback", content=body, headers=signed(body))
            assert answer.status_code == 200
            answered[request_id] = answer.json()["status"]

    async def taken() -> bool:
        tasks = await ada.tasks()
        return all(task["provider_progress"] for task in tasks.values())

    async def some() -> bool:
        return len(answered) >= 12

    await until(taken)
    async with trio.open_nursery() as nursery:
        for lane in range(4):
            nursery.start_soon(until_cut, deliver, ada, created[lane::4])
        await until(some)
        await trio.to_thread.run_sync(service.kill)
    await trio.to_thread.run_sync(service.start)
    tasks = await ada.tasks()
    assert {request_id: tasks[request_id]["status"] for request_id in answered} == answered
    # A sender repeats what was not answered, and some that was.
    await deliver(ada, created)
    tasks = await ada.all_ended()
    assert {task["status"] for task in tasks.values()} == {"failed"}
    assert await ada.totals() == Totals(Decimal(200), Decimal(0), Decimal(200))
    assert service.audit() == []
    assert service.stop() == 0
