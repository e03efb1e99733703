"""Many concurrent requests for one account: exactly what the credit allows, exactly once."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

import httpx2
import trio
from tests.clients import Customer, Totals, code_of, ok

from .conftest import NewCustomer
from .quiet_provider import MODEL
from .service_process import Service


async def gather(customer: Customer, keys: list[str | None]) -> list[httpx2.Response]:
    """Create a task with each key, all at once."""
    answers: list[httpx2.Response] = []

    async def create(key: str | None) -> None:
        answers.append(await customer.create(MODEL, key=key))

    async with trio.open_nursery() as nursery:
        for key in keys:
            nursery.start_soon(create, key)
    return answers


async def test_50_requests_with_one_key_get_one_task_and_equal_responses(
    quiet_service: Service, new_customer: NewCustomer
) -> None:
    with trio.fail_after(90):
        ada = await new_customer(quiet_service, credit="7.00")
        answers = await gather(ada, ["only once"] * 50)
        while any(answer.status_code == 409 for answer in answers):
            # Still under way is an honest answer too; what counts is what the repeat gets.
            assert {code_of(a) for a in answers if a.status_code == 409} == {"idempotency_key_in_use"}
            settled = [answer for answer in answers if answer.status_code != 409]
            answers = settled + await gather(ada, ["only once"] * (50 - len(settled)))
        assert len({ok(answer)["request_id"] for answer in answers}) == 1
        assert len({answer.content for answer in answers}) == 1
        replayed = Counter(answer.headers.get("Idempotent-Replayed") for answer in answers)
        assert replayed == {None: 1, "true": 49}
        assert await ada.totals() == Totals(Decimal(7), Decimal(1), Decimal(6))
        assert len(await ada.tasks()) == 1
    assert quiet_service.audit() == []
