"""One account's hundred tasks beside another's single task; large inputs of canceled tasks."""

from __future__ import annotations

import psycopg
import trio
from tests.clients import ENDED, code_of, ok, until

from .conftest import NewCustomer
from .quiet_provider import MODEL
from .service_process import Service

MANY = 40
LARGE = "x" * 300_000


async def test_one_task_waits_for_a_slot_not_for_anothers_queue(
    shared_service: Service, new_customer: NewCustomer
) -> None:
    with trio.fail_after(180):
        many, one = (
            await new_customer(shared_service, credit="100.00"),
            await new_customer(shared_service, credit="5.00"),
        )
        async with trio.open_nursery() as nursery:
            for _ in range(MANY):
                nursery.start_soon(many.create)
        wanted = ok(await one.create())["request_id"]

        async def ended() -> bool:
            return (await one.task(wanted))["status"] in ENDED

        await until(ended, within_s=120)
        over = [task for task in (await many.tasks()).values() if task["status"] in ENDED]
        assert len(over) < MANY / 2
        for request_id in await many.tasks():
            await many.as_key("POST", f"/v2/task/{request_id}/cancel")


async def test_large_inputs_of_canceled_tasks_are_deleted(
    quiet_service: Service, new_customer: NewCustomer
) -> None:
    with trio.fail_after(60):
        ada = await new_customer(quiet_service, credit="100.00")
        created = [ok(await ada.create(MODEL, prompt=LARGE))["request_id"] for _ in range(5)]
        small = ok(await ada.create(MODEL))["request_id"]
        for request_id in (*created, small):
            assert ok(await ada.as_key("POST", f"/v2/task/{request_id}/cancel"))["status"] == "canceled"
        with psycopg.connect(quiet_service.database_url) as connection:
            stored = connection.execute(
                "select sum(octet_length(cast(request as text))) from tasks where account_id = %s",
                (ada.account_id,),
            ).fetchone()
        assert stored is not None
        assert stored[0] < 20_000
        assert code_of(await ada.as_key("POST", f"/v2/task/{created[0]}/retry")) == "task_input_expired"
        again = ok(await ada.as_key("POST", f"/v2/task/{small}/retry"))
        ok(await ada.as_key("POST", f"/v2/task/{again['request_id']}/cancel"))
    assert quiet_service.audit() == []
