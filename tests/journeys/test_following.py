"""Waiting for tasks and following them, at two processes: woken by the commit of either."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx2
import pytest
import trio
from tests.clients import ENDED, Customer, loopback_client, ok, refused, until
from tests.event_streams import StreamReader, reading

from .conftest import NewCustomer, NewService
from .quiet_provider import MODEL, QuietProvider, signed
from .service_process import Service, new_folder, start_together, until_linked

WAITING = "holdfast_http_waiting"
WAITS_MAX = 3
ACCOUNT_STREAM = "/v2/control/stream"


@pytest.fixture
def pair(new_service: NewService, shared_url: str, provider: QuietProvider) -> Iterator[list[Service]]:
    """Two services on one database."""
    settings = {
        "DATABASE_URL": shared_url,
        "CATALOG": str(provider.write_catalog(new_folder())),
        "SERVER_KEY": "the-server-key-that-both-processes-have-0123456789",
        "WAITING_PER_ACCOUNT_MAX": str(WAITS_MAX),
    }
    services = [new_service(**settings), new_service(**settings)]
    start_together(services)
    trio.run(until_linked, services)
    yield services
    for service in services:
        if service.is_alive():
            assert service.stop() == 0


@asynccontextmanager
async def at(service: Service, customer: Customer) -> AsyncIterator[Customer]:
    """Yield the customer with its connections to a service."""
    async with loopback_client(base_url=service.url, timeout=90) as http:
        yield replace(customer, http=http)


async def begin(customer: Customer, provider: QuietProvider) -> str:
    """Create a task and wait until its provider has the job."""
    request_id: str = ok(await customer.create(MODEL))["request_id"]

    async def is_put() -> bool:
        task = await customer.task(request_id)
        return any(line["status"] == "submitted" for line in task["provider_progress"])

    await until(is_put)
    return request_id


async def call_back(customer: Customer, body: bytes) -> None:
    ok(await customer.http.post("/v2/callback", content=body, headers=signed(body)))


async def waits(service: Service, count: int) -> None:
    async def is_reached() -> bool:
        return service.metric(WAITING) == count

    await until(is_reached)


class Waits:
    """Requests that wait, and their responses."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.responses: list[httpx2.Response] = []

    def start(self, customer: Customer, request_id: str, wait: str = "60") -> None:
        async def run() -> None:
            self.responses.append(await customer.as_key("GET", f"/v2/task/{request_id}?wait={wait}"))

        self._nursery.start_soon(run)


async def test_a_wait_ends_with_the_commit_that_ends_the_task_at_either_process(
    pair: list[Service], provider: QuietProvider, new_customer: NewCustomer
) -> None:
    ada = await new_customer(pair[0], credit="10.00")
    async with at(pair[0], ada) as here, at(pair[1], ada) as there:
        for sender in (here, there):
            request_id = await begin(here, provider)
            # Well below the wait: only a notice of the commit ends it in time.
            with trio.fail_after(58):
                async with trio.open_nursery() as nursery:
                    waiting = Waits(nursery)
                    waiting.start(here, request_id)
                    waiting.start(there, request_id)
                    for service in pair:
                        await waits(service, 1)
                    await call_back(sender, provider.success(request_id, event_id=request_id, sequence=9))
            bodies = [ok(response) for response in waiting.responses]
            assert [body["status"] for body in bodies] == ["succeeded"] * 2
            assert bodies[0]["usage"]["cost_credits"] == "1.00"
            assert all(body["output"][0]["url"] for body in bodies)
        ended = ok(await there.as_key("GET", f"/v2/task/{request_id}?wait=60"))
        assert ended["status"] == "succeeded"
    assert [service.faults() for service in pair] == [[], []]


async def test_a_wait_that_ends_first_shows_the_task_as_it_is(
    pair: list[Service], provider: QuietProvider, new_customer: NewCustomer
) -> None:
    ada = await new_customer(pair[0], credit="10.00")
    async with at(pair[1], ada) as there:
        request_id = await begin(there, provider)
        body = ok(await there.as_key("GET", f"/v2/task/{request_id}?wait=0.05"))
        assert body["status"] not in ENDED
        assert body == ok(await there.as_key("GET", f"/v2/task/{request_id}?wait=0"))
        for wrong in ("61", "-1", "soon", "1e1", ""):
            refused(await there.as_key("GET", f"/v2/task/{request_id}?wait={wrong}"), 400, "invalid_parameter")
        refused(await there.as_key("GET", "/v2/task/task_unknown?wait=5"), 404, "task_not_found")


async def test_waits_are_limited_by_account_and_end_with_their_client(
    pair: list[Service], provider: QuietProvider, new_customer: NewCustomer
) -> None:
    ada, bob = [await new_customer(pair[0], credit="10.00") for _ in range(2)]
    mine, theirs = await begin(ada, provider), await begin(bob, provider)
    with trio.fail_after(58):
        async with trio.open_nursery() as nursery:
            waiting = Waits(nursery)
            for _ in range(WAITS_MAX):
                waiting.start(ada, mine)
            await waits(pair[0], WAITS_MAX)
            refused(await ada.as_key("GET", f"/v2/task/{mine}?wait=60"), 429, "rate_limit_exceeded")
            async with reading(pair[0].url, ada.session, path=ACCOUNT_STREAM, status=429) as stream:
                assert "retry-after" in stream.head
            # Its other requests work, and so do those of others.
            assert (await ada.task(mine))["status"] not in ENDED
            assert ok(await bob.as_key("GET", f"/v2/task/{theirs}?wait=0.05"))["request_id"] == theirs
            nursery.cancel_scope.cancel()
    await waits(pair[0], 0)


async def test_a_create_waits_for_its_task_and_goes_on_without_its_client(
    pair: list[Service], provider: QuietProvider, new_customer: NewCustomer
) -> None:
    ada = await new_customer(pair[0], credit="10.00")
    body = {"model": MODEL, "input": {"prompt": "a lighthouse"}}
    path, answers = "/v2/task/create?wait=60", list[httpx2.Response]()

    async def create(caller: Customer) -> None:
        answers.append(await caller.as_key("POST", path, body, key="once"))

    async with at(pair[0], ada) as here, at(pair[1], ada) as there:
        with trio.fail_after(58):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(create, here)
                await waits(pair[0], 1)
                # It hangs up.
                nursery.cancel_scope.cancel()
            await waits(pair[0], 0)
            [request_id] = await ada.tasks()
            assert (await ada.totals()).held == 1
            async with trio.open_nursery() as nursery:
                nursery.start_soon(create, here)
                nursery.start_soon(create, there)
                for service in pair:
                    await waits(service, 1)
                await ada.submitted(request_id)
                await call_back(ada, provider.success(request_id, event_id=request_id, sequence=9))
        assert [ok(each)["status"] for each in answers] == ["succeeded"] * 2
        assert ok(answers[0])["usage"]["cost_credits"] == "1.00"
        assert {each.headers["Idempotent-Replayed"] for each in answers} == {"true"}
        assert ok(answers[0])["request_id"] == request_id
        again = ok(await here.as_key("POST", f"/v2/task/{request_id}/retry", {}, headers={"Prefer": "wait=1"}))
        assert (again["retry_of"], again["status"] in ENDED) == (request_id, False)
        assert set(await ada.tasks()) == {request_id, again["request_id"]}
    assert [service.faults() for service in pair] == [[], []]


@pytest.mark.slow
async def test_a_stop_ends_the_wait_of_a_create_in_order(
    pair: list[Service], provider: QuietProvider, new_customer: NewCustomer
) -> None:
    ada = await new_customer(pair[0], credit="10.00")
    body = {"model": MODEL, "input": {"prompt": "a lighthouse"}}
    answers: list[httpx2.Response] = []
    async with at(pair[1], ada) as there:

        async def create() -> None:
            answers.append(await there.as_key("POST", "/v2/task/create?wait=60", body, key="once"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create)
            await waits(pair[1], 1)
            assert await trio.to_thread.run_sync(pair[1].stop) == 0
    assert ok(answers[0])["status"] not in ENDED
    assert set(await ada.tasks()) == {ok(answers[0])["request_id"]}


@pytest.mark.slow
async def test_a_stop_ends_waits_and_streams_in_order(
    pair: list[Service], provider: QuietProvider, new_customer: NewCustomer
) -> None:
    ada = await new_customer(pair[0], credit="10.00")
    request_id = await begin(ada, provider)
    async with (
        at(pair[1], ada) as there,
        reading(pair[1].url, ada.key, path=f"/v2/task/{request_id}/stream") as one,
        reading(pair[1].url, ada.session, path=ACCOUNT_STREAM) as all_of_it,
    ):
        first = await one.next()
        assert first is not None
        assert (await all_of_it.next()) is not None
        async with trio.open_nursery() as nursery:
            waiting = Waits(nursery)
            waiting.start(there, request_id)
            await waits(pair[1], 3)
            assert await trio.to_thread.run_sync(pair[1].stop) == 0
        assert ok(waiting.responses[0])["status"] not in ENDED
        for stream in (one, all_of_it):
            while await stream.next() is not None:
                pass
            assert stream.is_complete
    # The reader resumes at the other process, and misses nothing.
    path = f"/v2/task/{request_id}/stream"
    async with reading(pair[0].url, ada.key, path=path, Last_Event_ID=first.fields["id"]) as resumed:
        await call_back(ada, provider.success(request_id, event_id="evt_end", sequence=9))
        found = await rest_of(resumed)
    assert found[-1]["status"] == "succeeded"


@pytest.mark.slow
async def test_a_killed_owner_delays_a_wait_and_a_stream_and_loses_neither(
    pair: list[Service], provider: QuietProvider, new_customer: NewCustomer
) -> None:
    ada = await new_customer(pair[0], credit="10.00")
    async with at(pair[0], ada) as here:
        request_id = await begin(here, provider)
        async with reading(pair[0].url, ada.key, path=f"/v2/task/{request_id}/stream") as stream:
            with trio.fail_after(58):
                async with trio.open_nursery() as nursery:
                    waiting = Waits(nursery)
                    waiting.start(here, request_id)
                    await waits(pair[0], 2)
                    pair[1].kill()
                    await call_back(here, provider.success(request_id, event_id="evt_end", sequence=9))
                assert ok(waiting.responses[0])["status"] == "succeeded"
                assert (await rest_of(stream))[-1]["status"] == "succeeded"


async def rest_of(stream: StreamReader) -> list[dict[str, Any]]:
    """Return the data of the events until the stream has ended in order."""
    found = []
    while (event := await stream.next()) is not None:
        found.append(event.data)
    assert stream.is_complete
    return found


async def test_a_stream_sends_each_change_and_resumes(
    pair: list[Service], provider: QuietProvider, new_customer: NewCustomer
) -> None:
    ada = await new_customer(pair[0], credit="10.00")
    request_id = await begin(ada, provider)
    path = f"/v2/task/{request_id}/stream"
    async with reading(pair[1].url, ada.key, path=path) as stream:
        first = await stream.next()
        assert first is not None
        assert first.fields["event"] == "task"
        assert first.data["request_id"] == request_id
        body = provider.callback_body(request_id, "processing", event_id="evt_1", sequence=1, percent=40)
        await call_back(ada, body)
        second = await stream.next()
        assert second is not None
        assert second.data["status"] == "processing"
        assert second.data["provider_progress"][-1]["percent"] == 40
        assert int(second.fields["id"]) > int(first.fields["id"])
    # Without a reader the task goes on.
    await call_back(ada, provider.success(request_id, event_id="evt_2", sequence=2))
    ended = ok(await ada.as_key("GET", f"/v2/task/{request_id}?wait=60"))
    async with reading(pair[0].url, ada.key, path=path, Last_Event_ID=second.fields["id"]) as resumed:
        last = await resumed.next()
        assert last is not None
        assert last.data["status"] == "succeeded"
        assert last.data["usage"] == ended["usage"]
        assert await resumed.next() is None
        assert resumed.is_complete
    async with reading(pair[1].url, ada.key, path=path, status=204, Last_Event_ID=last.fields["id"]):
        pass
    async with reading(pair[1].url, ada.key, path=path, status=400, Last_Event_ID="newest"):
        pass
    async with reading(pair[1].url, "hk_test_unknown", path=path, status=401):
        pass


@pytest.mark.slow
async def test_the_stream_of_an_account_has_its_totals_tasks_and_orders(
    pair: list[Service], provider: QuietProvider, new_customer: NewCustomer
) -> None:
    ada, bob = [await new_customer(pair[0], credit="10.00") for _ in range(2)]
    before = await begin(ada, provider)
    async with reading(pair[1].url, ada.session, path=ACCOUNT_STREAM) as stream:
        # It begins with what has not ended.
        assert await ids_until_account(stream) == ({before}, "9.00")
        other = await begin(bob, provider)
        mine = await begin(ada, provider)
        found, available = await ids_until(stream, mine)
        # That the provider has accepted the first task may be recorded, and sent, only now.
        assert (found - {before}, available) == ({mine}, "8.00")
        order = ok(await ada.as_session("POST", "/v2/control/payments/sandbox", {"amount": "5.00"}))
        found, available = await ids_until(stream, order["order_id"])
        assert (found - {mine, before}, available) == ({order["order_id"]}, "8.00")
        callback = order["callback"]
        paid = {callback["signature_header"]: callback["signature"]}
        ok(await ada.call("POST", "/v2/control/payments/sandbox/callback", callback["payload"], headers=paid))
        last = await account_until(stream, "13.00")
    for each in (mine, before):
        ok(await ada.as_key("POST", f"/v2/task/{each}/cancel"))
    async with reading(pair[0].url, ada.session, path=ACCOUNT_STREAM, Last_Event_ID=last) as resumed:
        found, available = await ids_until_account(resumed)
        assert available == "15.00"
        assert {mine, before} <= found
        assert other not in found


def id_of(data: dict[str, Any]) -> str:
    return str(data.get("request_id") or data.get("order_id"))


async def ids_until_account(stream: StreamReader) -> tuple[set[str], str]:
    """Return the tasks and orders before the next event of the account, and its available balance."""
    found: set[str] = set()
    while True:
        event = await stream.next()
        assert event is not None
        if event.fields["event"] == "account":
            return found, event.data["available_balance"]
        found.add(id_of(event.data))


async def ids_until(stream: StreamReader, wanted: str) -> tuple[set[str], str]:
    """Return the same of all batches until one has ``wanted``."""
    found: set[str] = set()
    while wanted not in found:
        more, available = await ids_until_account(stream)
        found |= more
    return found, available


async def account_until(stream: StreamReader, available: str) -> str:
    """Return the id of the account's event with this available balance."""
    while True:
        event = await stream.next()
        assert event is not None
        if event.fields["event"] == "account" and event.data["available_balance"] == available:
            return event.fields["id"]
