"""Requests of OpenAI's clients that are held open: how they end, and which task a resend gets."""

from __future__ import annotations

import io
import itertools
import random
import signal
from functools import partial
from typing import Any

import httpx2
import pytest
import trio
from PIL import Image
from tests.clients import Customer, loopback_client, until

from holdfast.persistence.server.connections import connected

from .conftest import NewCustomer, NewService
from .quiet_provider import MODEL, QuietProvider, signed
from .service_process import SERVER_KEY, Service, start_together, until_linked

FORWARDED = "holdfast_forwarded_asks_total"
REPLAYED = 'holdfast_journal_units_total{result="already_answered"}'
PATH = "/v1/images/generations"


def numbered(attempt: int, timeout_s: float = 600) -> dict[str, str]:
    """What the clients say of an attempt."""
    return {"X-Stainless-Retry-Count": str(attempt), "X-Stainless-Read-Timeout": str(timeout_s)}


async def ask(customer: Customer, headers: dict[str, str] | None = None, **fields: Any) -> httpx2.Response:
    """Ask for an image, by default as a client that does not number its attempts."""
    body = {"model": MODEL, "prompt": "a bell", **fields}
    return await customer.as_key("POST", PATH, body, headers=headers)


@pytest.mark.slow
async def test_a_request_is_answered_before_its_client_gives_up(
    quiet_service: Service, provider: QuietProvider, new_customer: NewCustomer
) -> None:
    customer = await new_customer(quiet_service, credit="50.00")

    first = await ask(customer, numbered(0, 1))
    assert (first.status_code, first.json()["error"]["code"]) == (425, "task_not_ended")
    assert (first.headers["X-Should-Retry"], first.headers["Retry-After"]) == ("true", "1")
    task_id = first.headers["X-Task-Id"]
    assert task_id in first.json()["error"]["message"]

    resends = [await ask(customer, numbered(attempt, 1)) for attempt in (1, 2, 3)]
    assert [each.headers["X-Task-Id"] for each in resends] == [task_id] * 3
    # The same number again is the resend of another request, of whose first attempt nothing is known.
    other = await ask(customer, numbered(3, 1))
    assert other.headers["X-Task-Id"] != task_id
    later = await ask(customer, numbered(4, 1))
    assert later.headers["X-Task-Id"] in {task_id, other.headers["X-Task-Id"]}
    equal = await ask(customer, numbered(0, 1))
    assert equal.headers["X-Task-Id"] not in {task_id, other.headers["X-Task-Id"]}
    assert len(await customer.tasks()) == 3

    # Other fields, and another key, are other requests.
    assert (await ask(customer, numbered(1, 1), prompt="two bells")).headers["X-Task-Id"] != task_id
    minted = await customer.as_session("POST", "/v2/control/api-keys", {})
    customer.key = minted.json()["api_key"]
    assert (await ask(customer, numbered(5, 1))).headers["X-Task-Id"] not in {
        each.headers["X-Task-Id"] for each in (first, other, equal)
    }
    assert len(await customer.tasks()) == 5


@pytest.mark.slow
async def test_equal_requests_with_alternate_resends_are_two_tasks(
    quiet_service: Service, provider: QuietProvider, new_customer: NewCustomer
) -> None:
    customer = await new_customer(quiet_service, credit="50.00")
    # Two equal requests are meant; the second begins while the first is sent again.
    answers = [await ask(customer, numbered(attempt, 1)) for attempt in (0, 1, 0, 2, 1)]
    ids = [each.headers["X-Task-Id"] for each in answers]
    assert ids[:2] == [ids[3]] * 2
    assert ids[2] == ids[4] != ids[0]
    assert len(await customer.tasks()) == 2


@pytest.mark.slow
async def test_a_refusal_makes_no_later_resend_a_new_task(
    new_service: NewService, provider: QuietProvider, new_customer: NewCustomer
) -> None:
    service = new_service(WAITING_PER_ACCOUNT_MAX="1")
    service.environment["HOLDFAST_CATALOG"] = str(provider.write_catalog(service.data_dir.parent))
    await trio.to_thread.run_sync(service.start)
    customer = await new_customer(service, credit="50.00")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(ask, customer, numbered(0), prompt="another"))

        await until(customer.tasks)
        assert (await ask(customer, numbered(0, 1))).status_code == 429
        nursery.cancel_scope.cancel()

    async def accepted() -> httpx2.Response | None:
        answer = await ask(customer, numbered(0, 1))
        return answer if answer.status_code == 425 else None

    first = await until(accepted)
    again = await ask(customer, numbered(1, 1))
    assert again.headers["X-Task-Id"] == first.headers["X-Task-Id"]


async def test_a_resend_gets_the_result_and_its_bytes(
    quiet_service: Service, provider: QuietProvider, new_customer: NewCustomer
) -> None:
    customer = await new_customer(quiet_service, credit="50.00")
    first = await ask(customer, numbered(0, 1), response_format="b64_json")
    task_id = first.headers["X-Task-Id"]
    body = provider.success(task_id, event_id="evt_done", sequence=1)
    await customer.http.post("/v2/callback", content=body, headers=signed(body))

    again = await ask(customer, numbered(1), response_format="b64_json")

    assert again.status_code == 200
    assert again.headers["X-Task-Id"] == task_id
    [image] = again.json()["data"]
    assert image["b64_json"].startswith("iVBOR")
    assert image["url"] is None


@pytest.mark.slow
async def test_only_clients_that_number_their_attempts_are_asked_again(
    new_service: NewService, provider: QuietProvider, new_customer: NewCustomer
) -> None:
    service = new_service()
    service.environment["HOLDFAST_CATALOG"] = str(provider.write_catalog(service.data_dir.parent))
    await trio.to_thread.run_sync(service.start)
    customer = await new_customer(service, credit="50.00")
    found: dict[str, httpx2.Response] = {}

    async def wait(name: str, headers: dict[str, str] | None, prompt: str) -> None:
        found[name] = await ask(customer, headers, prompt=prompt)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "numbered", numbered(0), "one")
        nursery.start_soon(wait, "other", None, "two")

        async def are_accepted() -> bool:
            return len(await customer.tasks()) == 2

        await until(are_accepted)
        # A process that stops answers what waits.
        assert await trio.to_thread.run_sync(service.stop) == 0
    assert {each.status_code for each in found.values()} == {425}
    assert {name: each.headers["X-Should-Retry"] for name, each in found.items()} == {
        "numbered": "true", "other": "false",
    }  # fmt: skip

    await trio.to_thread.run_sync(service.start)
    again = await ask(customer, numbered(1, 1), prompt="one")
    assert again.headers["X-Task-Id"] == found["numbered"].headers["X-Task-Id"]
    assert len(await customer.tasks()) == 2
    assert await trio.to_thread.run_sync(service.audit) == []


@pytest.mark.slow
async def test_a_resend_joins_at_another_process(
    two_services: list[Service], provider: QuietProvider, new_customer: NewCustomer
) -> None:
    customer = await new_customer(two_services[0], credit="50.00")
    other = Customer(loopback_client(base_url=two_services[1].url, timeout=60), key=customer.key)
    first = await ask(customer, numbered(0, 1))
    again = await ask(other, numbered(1, 1))
    third = await ask(customer, numbered(2, 1))
    assert len({each.headers["X-Task-Id"] for each in (first, again, third)}) == 1
    assert (first.status_code, first.json()["error"]["code"]) == (425, "task_not_ended")
    assert (first.headers["X-Should-Retry"], first.headers["Retry-After"]) == ("true", "1")
    await other.http.aclose()
    assert len(await customer.tasks()) == 1


async def test_a_task_that_failed_is_not_asked_for_again(
    quiet_service: Service, provider: QuietProvider, new_customer: NewCustomer
) -> None:
    customer = await new_customer(quiet_service, credit="50.00")
    expected = {"provider_error": (502, "task_failed"), "content_policy": (400, "content_policy_violation")}
    for code, refusal in expected.items():
        first = await ask(customer, numbered(0, 1), prompt=code)
        task_id = first.headers["X-Task-Id"]
        error = {"code": code, "message": "no"}
        body = provider.callback_body(task_id, "failed", event_id=f"evt_{code}", sequence=1, error=error)
        await customer.http.post("/v2/callback", content=body, headers=signed(body))
        answer = await ask(customer, numbered(1), prompt=code)
        assert (answer.status_code, answer.json()["error"]["code"]) == refusal
        assert answer.headers["X-Should-Retry"] == "false"
        assert answer.headers["X-Task-Id"] == task_id
    assert (await customer.totals()).held == 0


async def test_an_idempotency_key_of_the_callers_own_holds(
    quiet_service: Service, provider: QuietProvider, new_customer: NewCustomer
) -> None:
    customer = await new_customer(quiet_service, credit="50.00")
    keyed = {**numbered(0, 1), "Idempotency-Key": "mine"}
    first, again = [await ask(customer, keyed) for _ in range(2)]
    assert first.headers["X-Task-Id"] == again.headers["X-Task-Id"]
    assert (await ask(customer, keyed, prompt="other")).json()["error"]["code"] == "idempotency_key_reused"


@pytest.mark.slow
async def test_an_upload_may_be_larger_than_other_bodies(
    shared_service: Service, new_customer: NewCustomer
) -> None:
    customer = await new_customer(shared_service, credit="50.00")
    file = io.BytesIO()
    Image.frombytes("L", (2000, 2000), random.Random(7).randbytes(4_000_000)).save(file, "PNG")
    form = {"model": "studio/edit-1", "size": "64x64"}
    answer = await customer.as_key("POST", "/v1/images/edits", data=form, files={"image[]": file.getvalue()})
    assert answer.status_code == 200, answer.text
    [task] = (await customer.tasks()).values()
    assert task["output"][0]["url"].split("?")[0] == answer.json()["data"][0]["url"].split("?")[0]
    two = [("image[]", file.getvalue()[:100]), ("image[]", file.getvalue()[:100])]
    refused = await customer.as_key("POST", "/v1/images/edits", data=form, files=two)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "image")


@pytest.mark.slow
async def test_a_frozen_process_creates_nothing_that_was_sent_again_elsewhere(
    new_service: NewService, provider: QuietProvider, new_customer: NewCustomer, shared_url: str
) -> None:
    services = [new_service(DATABASE_URL=shared_url, SERVER_KEY=SERVER_KEY, ASK_DEADLINE_S="60") for _ in range(2)]
    catalog = str(provider.write_catalog(services[0].data_dir.parent))
    for each in services:
        each.environment["HOLDFAST_CATALOG"] = catalog
    await trio.to_thread.run_sync(start_together, services)
    await until_linked(services)
    frozen, other = services
    while True:
        customer = await new_customer(frozen, credit="50.00")
        before = frozen.metric(FORWARDED)
        assert (await ask(customer, numbered(0, 1), prompt="whose it is")).status_code == 425
        if frozen.metric(FORWARDED) == before:
            break
    at_other = Customer(loopback_client(base_url=other.url, timeout=60), key=customer.key)
    assert frozen.process is not None

    async def is_undecided() -> bool:
        with connected(shared_url) as rows:
            waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query ~ 'accounts'"
            return bool(rows.exec_driver_sql(waiting).scalar())

    async def resent() -> httpx2.Response | None:
        answer = await ask(at_other, numbered(next(attempts), 1))
        return answer if answer.status_code == 425 else None

    attempts = itertools.count(1)
    with connected(shared_url) as holder:
        holder.exec_driver_sql("select from accounts where id = %s for no key update", (customer.account_id,))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, customer, numbered(0))
            await until(is_undecided)
            frozen.process.send_signal(signal.SIGSTOP)
            nursery.cancel_scope.cancel()
        holder.rollback()
    try:
        again = await until(resent)
    finally:
        frozen.process.send_signal(signal.SIGCONT)

    async def is_decided() -> bool:
        return frozen.metric(REPLAYED) > 0 or len(await at_other.tasks()) > 2

    await until(is_decided)
    later = await ask(customer, numbered(next(attempts), 1))
    assert later.headers["X-Task-Id"] == again.headers["X-Task-Id"]
    assert len(await at_other.tasks()) == 2
    assert await trio.to_thread.run_sync(frozen.audit) == []
    await at_other.http.aclose()
