"""A cancel and the provider's success at the same instant: one of the two outcomes, and consistent credit."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

import httpx2
import pytest
import trio
from tests.clients import Customer, Totals, code_of, ok, until

from .conftest import NewCustomer
from .quiet_provider import MODEL, QuietProvider, signed
from .service_process import Service

PAIRS = 200
PAIRS_AT_ONCE = 20


async def make_running(customer: Customer, count: int) -> list[str]:
    """Create tasks and wait until their provider has accepted them."""
    created: list[str] = []

    async def create() -> None:
        created.append(ok(await customer.create(MODEL))["request_id"])

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(create)

    async def taken() -> bool:
        tasks = await customer.tasks()
        known = [{line["status"] for line in task["provider_progress"]} for task in tasks.values()]
        return len(known) == count and all("submitted" in statuses for statuses in known)

    await until(taken, within_s=60)
    return created


@pytest.mark.slow
async def test_a_cancel_racing_a_success_has_one_outcome(
    quiet_service: Service, provider: QuietProvider, new_customer: NewCustomer
) -> None:
    # Operators' tests on this service may have quarantined accounts.
    earlier = quiet_service.faults()
    with trio.fail_after(180):
        ada = await new_customer(quiet_service, credit=str(PAIRS))
        created = await make_running(ada, PAIRS)
        canceled: dict[str, httpx2.Response] = {}
        reported: dict[str, httpx2.Response] = {}

        async def race(request_id: str) -> None:
            body = provider.success(request_id, event_id="evt_1", sequence=1)
            headers = signed(body)

            async def cancel() -> None:
                canceled[request_id] = await ada.as_key("POST", f"/v2/task/{request_id}/cancel")

            async def send() -> None:
                reported[request_id] = await ada.http.post("/v2/callback", content=body, headers=headers)

            async def has_succeeded() -> bool:
                return bool((await ada.task(request_id))["status"] == "succeeded")

            # One in ten ends each way for sure; the others are races.
            if created.index(request_id) % 10 == 0:
                await cancel()
                await send()
            elif created.index(request_id) % 10 == 1:
                await send()
                await until(has_succeeded, within_s=60)
                await cancel()
            else:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(cancel)
                    nursery.start_soon(send)

        async def lane(request_ids: list[str]) -> None:
            for request_id in request_ids:
                await race(request_id)

        async with trio.open_nursery() as nursery:
            for first in range(PAIRS_AT_ONCE):
                nursery.start_soon(lane, created[first::PAIRS_AT_ONCE])

        tasks = await ada.all_ended()
        operations = await ada.statement()
        settled: dict[str, list[tuple[str, str]]] = {request_id: [] for request_id in created}
        for operation in operations:
            if operation["kind"] in {"capture", "release"}:
                settled[operation["reference"]].append((operation["kind"], operation["balance_change"]))
        for request_id, task in tasks.items():
            assert ok(reported[request_id])["request_id"] == request_id
            if task["status"] == "succeeded":
                assert code_of(canceled[request_id]) == "task_already_terminal"
                assert settled[request_id] == [("capture", "-1.00")]
                assert (task["usage"]["cost_credits"], len(task["output"])) == ("1.00", 1)
                assert task["hosting"]["final_url_ready"]
                picture = await ada.http.get(task["output"][0]["url"])
                assert (picture.status_code, picture.headers["Content-Type"]) == (200, "image/png")
            else:
                assert task["status"] == "canceled"
                assert ok(canceled[request_id])["status"] == "canceled"
                assert settled[request_id] == [("release", "0.00")]
                assert (task["usage"]["cost_credits"], task["output"]) == ("0.00", [])
        ends = Counter(task["status"] for task in tasks.values())
        assert min(ends["succeeded"], ends["canceled"]) > 0
        captured = sum(Decimal(o["amount"]) for o in operations if o["kind"] == "capture")
        charged = sum((Decimal(task["usage"]["cost_credits"]) for task in tasks.values()), start=Decimal(0))
        assert captured == charged == ends["succeeded"]
        assert await ada.totals() == Totals(PAIRS - charged, Decimal(0), PAIRS - charged)
    assert quiet_service.audit() == []
    assert quiet_service.faults() == earlier
