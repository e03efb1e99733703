"""Two services on one database under load for one account: one owns it, the fence keeps them consistent."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from decimal import Decimal

import httpx2
import pytest
import trio
from tests.clients import Customer, Totals, loopback_client, ok, until

from .conftest import NewCustomer, customers_of_each
from .quiet_provider import MODEL
from .service_process import Service, until_linked

STALE = "holdfast_fence_stale_units_total"
STALE_MAX = 10
"""Units decided while the second process joined."""
MEMBERS = "holdfast_members"
FORWARDED = "holdfast_forwarded_asks_total"


@pytest.fixture
async def services(two_services: list[Service]) -> list[Service]:
    """The two, once each knows the other."""
    await until_linked(two_services)
    return two_services


async def test_two_processes_serve_one_account_consistently(
    services: list[Service], new_customer: NewCustomer
) -> None:
    ada = await new_customer(services[0], credit="500.00")
    answers: list[httpx2.Response] = []
    shared_keys: dict[str, set[str]] = {}
    canceled = 0
    recharged = 0
    async with loopback_client(base_url=services[1].url, timeout=60) as other:
        twins = [ada, replace(ada, http=other)]

        async def hammer(lane: int) -> None:
            nonlocal canceled, recharged
            for turn in range(12):
                customer = twins[(lane + turn) % 2]
                key = f"{lane}-{turn}"
                answer = await customer.create(MODEL, key=key)
                answers.append(answer)
                request_id = ok(answer)["request_id"]
                # The same key at the other process is the same task.
                twin = twins[(lane + turn + 1) % 2]
                repeated = ok(await twin.create(MODEL, key=key))["request_id"]
                shared_keys.setdefault(key, set()).update({request_id, repeated})
                if turn % 3 == 0:
                    ok(await twin.as_key("POST", f"/v2/task/{request_id}/cancel"))
                    canceled += 1
                if turn % 4 == 0:
                    await twin.recharge("0.50", key=key)
                    recharged += 1

        with trio.fail_after(180):
            async with trio.open_nursery() as nursery:
                for lane in range(8):
                    nursery.start_soon(hammer, lane)
        assert Counter(answer.status_code for answer in answers) == {200: 96}
        assert all(len(request_ids) == 1 for request_ids in shared_keys.values())
        credit = 500 + Decimal("0.50") * recharged
        held = Decimal(96 - canceled)
        assert [await twin.totals() for twin in twins] == [Totals(credit, held, credit - held)] * 2
        assert len(await twins[1].tasks()) == 96
    # Each process sent the owner what it received itself, so hardly anything was decided twice.
    assert sum(service.metric(FORWARDED) for service in services) > 96
    assert sum(service.metric(STALE) for service in services) <= STALE_MAX
    assert services[0].audit() == []
    assert [service.faults() for service in services] == [[], []]


async def test_two_processes_never_overspend_an_account(services: list[Service], new_customer: NewCustomer) -> None:
    ada = await new_customer(services[0], credit="7.00")
    answers: list[httpx2.Response] = []
    async with loopback_client(base_url=services[1].url, timeout=60) as other:
        twins = [ada, replace(ada, http=other)]

        async def create(number: int) -> None:
            answers.append(await twins[number % 2].create(MODEL))

        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                for number in range(100):
                    nursery.start_soon(create, number)
        assert Counter(answer.status_code for answer in answers) == {200: 7, 402: 93}
        assert await ada.totals() == Totals(Decimal(7), Decimal(7), Decimal(0))
    assert services[1].audit() == []


async def test_accounts_of_a_killed_process_move_to_the_other(
    services: list[Service], new_customer: NewCustomer
) -> None:
    customers = await customers_of_each(services, new_customer, 3, credit="50.00")
    outcomes: Counter[int] = Counter()

    async def create_through_all(turns: range) -> None:
        """Create tasks of every account through every process. What is lost is sent again, to the first process."""

        async def create(customer: Customer, service: Service, key: str) -> None:
            url = service.url

            async def created() -> bool:
                nonlocal url
                async with loopback_client(base_url=url, timeout=60) as http:
                    try:
                        answer = await replace(customer, http=http).create(MODEL, key=key)
                    except httpx2.TransportError:
                        url = services[0].url
                        return False
                outcomes[answer.status_code] += 1
                return answer.status_code == 200

            await until(created)

        async with trio.open_nursery() as nursery:
            for service in filter(Service.is_alive, services):
                for customer in customers:
                    for turn in turns:
                        nursery.start_soon(create, customer, service, f"{services.index(service)}-{turn}")

    await create_through_all(range(3))
    assert outcomes == {200: 36}
    forwarded = [service.metric(FORWARDED) for service in services]
    assert min(forwarded) > 0
    assert [service.metric(MEMBERS) for service in services] == [2, 2]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(create_through_all, range(3, 6))
        await trio.to_thread.run_sync(services[1].kill)
    await create_through_all(range(6, 8))
    assert outcomes.keys() <= {200, 503}
    assert services[0].metric(MEMBERS) == 1
    await trio.to_thread.run_sync(services[1].start)
    await until_linked(services)
    await create_through_all(range(8, 10))
    # Each key created one task, though some were sent again.
    assert [len(await customer.tasks()) for customer in customers] == [6 + 6 + 2 + 4] * len(customers)
    assert services[0].audit() == []
    assert [service.faults() for service in services] == [[], []]
