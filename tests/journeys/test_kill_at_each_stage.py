"""``kill -9`` at each stage of a task: afterwards there is one job, one charge and one event."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
import trio
from tests.clients import Customer, Totals, ok, until

from .conftest import NewCustomer
from .quiet_provider import MODEL, QuietProvider, quiet_provider, signed
from .receiver import receiver
from .service_process import Service, new_folder, running_service


@pytest.fixture(scope="module")
def slow_provider() -> Iterator[QuietProvider]:
    """Run a provider with one slot, whose responses the tests hold back."""
    with quiet_provider() as found:
        yield found


@pytest.fixture(scope="module")
def mortal(slow_provider: QuietProvider) -> Iterator[Service]:
    """A running service that these tests kill and restart."""
    folder = new_folder()
    catalog = slow_provider.write_catalog(folder, concurrency=1)
    # A delivery that was cut off is repeated when its time is over.
    with running_service(folder, CATALOG=str(catalog), WEBHOOK_TIMEOUT_S="1") as service:
        try:
            yield service
        finally:
            slow_provider.puts.open()
            slow_provider.pictures.open()


@pytest.fixture
async def ada(mortal: Service, new_customer: NewCustomer) -> Customer:
    """A customer with credit for two pictures."""
    return await new_customer(mortal, credit="2.00")


async def restart(service: Service) -> None:
    """Kill the service and start it again."""
    await trio.to_thread.run_sync(service.kill)
    await trio.to_thread.run_sync(service.start)


async def create(customer: Customer) -> str:
    """Create a task for a picture; returns its id."""
    return str(ok(await customer.create(MODEL))["request_id"])


async def reaches(provider: QuietProvider, gate: str, count: int) -> None:
    """Wait until so many requests have reached a gate."""

    async def came() -> bool:
        return int(getattr(provider, gate).reached) >= count

    await until(came)


async def deliver(customer: Customer, provider: QuietProvider, request_id: str) -> None:
    """Report success."""
    body = provider.success(request_id, event_id="evt_1", sequence=1)
    ok(await customer.http.post("/v2/callback", content=body, headers=signed(body)))


async def ends_whole(
    service: Service, customer: Customer, provider: QuietProvider, created: list[str]
) -> dict[str, dict[str, Any]]:
    """Check that all succeed with one job and one charge each, and that the audit passes."""
    tasks = await customer.all_ended()
    assert {request_id: task["status"] for request_id, task in tasks.items()} == dict.fromkeys(created, "succeeded")
    for request_id in created:
        jobs = [order["client"] for order in provider.jobs.values() if order["client"]["request_id"] == request_id]
        assert jobs == [{"request_id": request_id, "attempt": 1}]
    path = "/v2/control/ledger?limit=100"
    operations = ok(await customer.as_session("GET", path))["data"]
    settled = [(each["kind"], each["reference"]) for each in operations if each["kind"] in {"capture", "release"}]
    assert sorted(settled) == sorted(("capture", request_id) for request_id in created)
    left = Decimal(2 - len(created))
    assert await customer.totals() == Totals(left, Decimal(0), left)
    assert service.audit() == []
    return tasks


async def test_a_kill_between_commit_and_dispatch(
    mortal: Service, ada: Customer, slow_provider: QuietProvider
) -> None:
    with trio.fail_after(240):
        first = await create(ada)
        await ada.submitted(first)
        waiting = await create(ada)
        # The only slot is taken, so this one has not been submitted.
        assert (await ada.task(waiting))["provider_progress"] == []
        assert f"{waiting}.1" not in slow_provider.jobs
        await restart(mortal)
        await deliver(ada, slow_provider, first)
        await ada.submitted(waiting)
        await deliver(ada, slow_provider, waiting)
        await ends_whole(mortal, ada, slow_provider, [first, waiting])


async def test_a_kill_between_dispatch_and_its_stored_answer(
    mortal: Service, ada: Customer, slow_provider: QuietProvider
) -> None:
    with trio.fail_after(240):
        slow_provider.puts.shut()
        before = slow_provider.puts.reached
        request_id = await create(ada)
        await reaches(slow_provider, "puts", before + 1)
        assert f"{request_id}.1" in slow_provider.jobs
        await trio.to_thread.run_sync(mortal.kill)
        slow_provider.puts.open()
        await trio.to_thread.run_sync(mortal.start)
        await ada.submitted(request_id)
        # The same job was put a second time, under the same name.
        assert slow_provider.puts.reached == before + 2
        await deliver(ada, slow_provider, request_id)
        await ends_whole(mortal, ada, slow_provider, [request_id])


async def test_a_kill_while_the_result_is_downloaded(
    mortal: Service, ada: Customer, slow_provider: QuietProvider
) -> None:
    with trio.fail_after(240):
        slow_provider.pictures.shut()
        before = slow_provider.pictures.reached
        request_id = await create(ada)
        await ada.submitted(request_id)
        await deliver(ada, slow_provider, request_id)
        await reaches(slow_provider, "pictures", before + 1)
        assert (await ada.task(request_id))["status"] == "processing"
        await trio.to_thread.run_sync(mortal.kill)
        slow_provider.pictures.open()
        await trio.to_thread.run_sync(mortal.start)
        tasks = await ends_whole(mortal, ada, slow_provider, [request_id])
        assert slow_provider.pictures.reached == before + 2
        picture = await ada.http.get(tasks[request_id]["output"][0]["url"])
        assert (picture.status_code, picture.headers["Content-Type"]) == (200, "image/png")


@pytest.mark.slow
async def test_a_kill_between_completion_and_event_delivery(
    mortal: Service, ada: Customer, slow_provider: QuietProvider
) -> None:
    with trio.fail_after(240), receiver() as endpoint:
        endpoint.mute.add("/ended")
        wanted = {"model": MODEL, "input": {"prompt": "a lighthouse"}, "webhook_url": f"{endpoint.url}/ended"}
        wanted["webhook_events"] = ["task.succeeded"]
        request_id = str(ok(await ada.as_key("POST", "/v2/task/create", wanted))["request_id"])
        await ada.submitted(request_id)
        await deliver(ada, slow_provider, request_id)
        [first] = await endpoint.wait("/ended", 1)
        await trio.to_thread.run_sync(mortal.kill)
        endpoint.mute.clear()
        await trio.to_thread.run_sync(mortal.start)
        [_, second] = await endpoint.wait("/ended", 2, within_s=60)
        assert first.event_id == second.event_id
        for post in (first, second):
            assert (post.event["type"], post.event["data"]["request_id"]) == ("task.succeeded", request_id)

        async def delivered() -> bool:
            [event] = ok(await ada.as_key("GET", f"/v2/task/{request_id}/events"))["data"]
            return (event["event_id"], event["status"]) == (first.event_id, "delivered")

        await until(delivered)
        await ends_whole(mortal, ada, slow_provider, [request_id])
        assert len(endpoint.posts) == 2
