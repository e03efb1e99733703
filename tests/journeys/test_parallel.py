"""Many concurrent requests for one account: exactly what the credit allows, exactly once."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

import httpx2
import trio

from .conftest import NewCustomer
from .quiet_provider import MODEL
from .service_process import Customer, Service, Totals, code_of, ok


async def gather(customer: Customer, keys: list[str | None]) -> list[httpx2.Response]:
    """Create a task with each key, all at once."""
    answers: list[httpx2.Response] = []

    async def create(key: str | None) -> None:
        answers.append(await customer.create(MODEL, key=key))

    async with trio.open_nursery() as nursery:
        for key in keys:
            nursery.start_soon(create, key)
    return answers


async def test_credit_for_seven_of_200_parallel_tasks_creates_seven(
    quiet_service: Service, new_customer: NewCustomer
) -> None:
    with trio.fail_after(90):
        ada = await new_customer(quiet_service, credit="7.00")
        answers = await gather(ada, [None] * 200)
        assert Counter(answer.status_code for answer in answers) == {200: 7, 402: 193}
        refused = [answer for answer in answers if answer.status_code == 402]
        assert {code_of(answer) for answer in refused} == {"insufficient_credit"}
        assert all(answer.json()["error"]["required"] == "1.00" for answer in refused)
        assert await ada.totals() == Totals(Decimal(7), Decimal(7), Decimal(0))
        accepted = {ok(answer)["request_id"] for answer in answers if answer.status_code == 200}
        assert set(await ada.tasks()) == accepted
    assert quiet_service.audit() == []


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


async def test_concurrent_cancels_release_a_hold_once(quiet_service: Service, new_customer: NewCustomer) -> None:
    with trio.fail_after(90):
        ada = await new_customer(quiet_service, credit="5.00")
        created = [ok(answer)["request_id"] for answer in await gather(ada, [None] * 5)]
        answers: list[httpx2.Response] = []

        async def cancel(request_id: str) -> None:
            answers.append(await ada.call("POST", f"/v2/task/{request_id}/cancel"))

        async with trio.open_nursery() as nursery:
            for request_id in created * 10:
                nursery.start_soon(cancel, request_id)
        assert {ok(answer)["status"] for answer in answers} == {"canceled"}
        assert await ada.totals() == Totals(Decimal(5), Decimal(0), Decimal(5))
    assert quiet_service.audit() == []
