"""A customer says "I was charged twice": any id leads to the other request, at two processes."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import httpx2
import pytest
import trio
from tests.clients import Customer, loopback_client, ok, refused, until
from tests.forked_processes import run_holdfast

from .card_provider import CardProviderProcess, Payer
from .conftest import NewCustomer, running_postgres
from .operator_client import Operator
from .quiet_provider import MODEL, QuietProvider
from .service_process import Service, new_folder, start_together, until_linked

SERVER_KEY = "the-server-key-that-both-processes-have-0123456789"


@pytest.fixture(scope="module")
def services(provider: QuietProvider, card_provider: CardProviderProcess) -> Iterator[list[Service]]:
    """Two services on one database, with a card provider."""
    folders = [new_folder(), new_folder()]
    with running_postgres() as server:
        settings = card_provider.settings(CATALOG=str(provider.write_catalog(folders[0])), SERVER_KEY=SERVER_KEY)
        found = [Service(folder, DATABASE_URL=server.url, **settings) for folder in folders]
        try:
            start_together(found)
            yield found
            assert {service.stop() for service in found if service.is_alive()} == {0}
        finally:
            for service in found:
                if service.is_alive():
                    service.kill()
            for folder in folders:
                shutil.rmtree(folder)


@pytest.fixture
async def ada(
    services: list[Service], new_customer: NewCustomer, card_provider: CardProviderProcess
) -> AsyncIterator[Payer]:
    await until_linked(services)
    card_provider.serve(services[0])
    yield Payer(await new_customer(services[0]), card_provider)
    await card_provider.webhooks()


def command(service: Service, *words: str) -> list[str]:
    return ["follow", "--url", service.url, *words]


async def run_once(service: Service, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    run = partial(run_holdfast, *command(service, *words), environment=service.environment)
    return await trio.to_thread.run_sync(run)


async def charged_twice(ada: Payer, services: list[Service]) -> dict[str, str]:
    """Create the same twice, at two processes, and be refused once; return the ids by what they are."""
    order = await ada.paid_order("10.00")
    customer, ids = ada.customer, {"an order": order["order_id"], "a payment": order["provider_payment_id"]}
    assert customer.key is not None
    ids |= {"a key": customer.key[:12], "an address": customer.email}
    for number, service in enumerate(services):
        async with loopback_client(base_url=service.url, timeout=60) as http:
            made = await Customer(http, key=customer.key).create(MODEL)
            ids |= {f"request {number}": made.headers["x-request-id"], f"task {number}": ok(made)["request_id"]}
            if number:
                answer = await Customer(http, key=customer.key).create("none")
                refused(answer, 404, "model_not_found")
                ids["a refused request"] = answer.headers["x-request-id"]
    return ids


async def test_any_id_finds_the_other_request_and_the_refused_one(ada: Payer, services: list[Service]) -> None:
    ids = await charged_twice(ada, services)
    async with Operator(services[1]).http as http:
        refusing = ok(await http.get("/ops/api/tree"))["members"][0]["member_id"]
    for service in services:
        async with Operator(service).http as http:
            for name in (
                "request 0",
                "task 1",
                "an order",
                "a payment",
                "a key",
                "an address",
                "a refused request",
            ):
                # A line of the other process may come a moment later.
                found = await until(partial(follow, http, ids[name], ids), within_s=60)
                assert (found["unreachable"], found["account_id"]) == ([], ada.customer.account_id)
        [refusal] = [each for each in found["data"] if ids["a refused request"] in (each["text"] or "")]
        assert (refusal["what"], refusal["member_id"], refusal["is_own"]) == ("request refused", refusing, True)
        for said in ("code=model_not_found", "origin=127.0.0.1", f"key_prefix={ids['a key']}"):
            assert said in refusal["text"]


async def follow(http: httpx2.AsyncClient, sought: str, ids: dict[str, str]) -> dict[str, Any] | None:
    """Return what is found once both tasks and the refused request are in it."""
    found = ok(await http.get("/ops/api/follow", params={"id": sought}))
    text = json.dumps(found["data"])
    return found if all(ids[name] in text for name in ("task 0", "task 1", "a refused request")) else None


@pytest.mark.slow
async def test_the_command_prints_goes_on_and_names_a_process_that_is_gone(
    ada: Payer, services: list[Service]
) -> None:
    ids = await charged_twice(ada, services)
    first = services[0]
    done = await run_once(first, ids["request 0"], "--json")
    entries = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["at"] for each in entries] == sorted(each["at"] for each in entries)
    assert {ids["task 0"], ids["task 1"]} <= {each["subject"] for each in entries}
    live = partial(
        trio.run_process,
        [sys.executable, "-m", "holdfast", *command(first, ids["an address"], "--live")],
        env=first.environment,
        stdout=subprocess.PIPE,
        check=False,
    )
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(live)
        assert process.stdout is not None
        printed = b""
        while ids["task 1"].encode() not in printed:
            printed += await process.stdout.receive_some()
        made = ok(await ada.customer.create(MODEL))["request_id"].encode()
        while made not in printed:
            part = await process.stdout.receive_some()
            assert part, "the command has ended"
            printed += part
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
    services[1].kill()
    text = await run_once(first, ids["request 0"])
    assert ids["task 1"] in text.stdout
    assert (done.returncode, text.returncode) == (0, 0)
    unknown = await run_once(first, "abc")
    assert (unknown.returncode, "at least 4 characters" in unknown.stderr) == (1, True)
