"""Attempts that a service reads after a later one was answered, of unmodified clients: as many tasks as were meant.

``LATE=600`` delays so many first attempts of each client, and ``FREEZES=50`` freezes processes so often.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest
import trio
from benchmarks.rolls import workers_of
from tests.clients import Customer, loopback_client, until

from .client_programs import run_node, run_python
from .conftest import NewCustomer, NewService
from .late_proxies import RESET_ON_CLOSE, Balancer, LateProxy, address_of
from .quiet_provider import MODEL, QuietProvider
from .replicate_programs import STARTS
from .service_process import SERVER_KEY, Service, start_together, until_linked
from .test_resent_creates import prompts_of

LATE = int(os.environ.get("LATE", "30"))
FREEZES = int(os.environ.get("FREEZES", "1"))
FROZEN_S = 5.0
"""Longer than the three seconds after which another worker accepts for a frozen one."""
MINUTES_S = 600.0 + LATE + 20 * FREEZES

OPENAI = """
import asyncio, warnings, openai
warnings.simplefilter("ignore", DeprecationWarning)
client = openai.AsyncOpenAI(
    base_url=given["url"] + "/v1", api_key=given["key"], max_retries=30, timeout=given["timeout_s"])
async def video(prompt):
    return (await client.videos.create(model="quiet/clip-1", prompt=prompt)).id
async def image(prompt):
    made = await client.images.with_raw_response.generate(model=given["model"], prompt=prompt)
    return made.headers["x-task-id"]
async def run(make):
    at_once = asyncio.Semaphore(given["at_once"])
    async def one(n):
        async with at_once:
            return await make(f"wave {n}")
    return await asyncio.gather(*map(one, range(given["first"], given["first"] + given["count"])))
"""
VIDEOS = OPENAI + "show(asyncio.run(run(video)))"
HELD_IMAGES = OPENAI + "show(asyncio.run(run(image)))"
_EACH = """
const numbers = Array.from({ length: given.count }, (_, n) => given.first + n);
const work = async () => { while (numbers.length) await create(`wave ${numbers.pop()}`); };
await Promise.all(Array.from({ length: given.at_once }, work));
show(null);
"""
REPLICATE = (
    STARTS["replicate (JavaScript)"]
    + """
const create = (prompt) => client.predictions.create({ model: given.model, input: { prompt } });
"""
    + _EACH
)


async def run_openai(program: str, given: dict[str, object]) -> list[str]:
    """Run a program of openai's client; return the ids of its tasks."""
    made: list[str] = await run_python(program, {"first": 0, "timeout_s": 600, **given}, within_s=MINUTES_S)
    return made


async def check(service: Service, customer: Customer, count: int) -> None:
    """Each of so many intents is one task."""
    found = await trio.to_thread.run_sync(prompts_of, service)
    assert {prompt: tasks for prompt, tasks in found.items() if tasks != 1} == {}
    assert len(found) == len(await customer.tasks()) == count
    assert await trio.to_thread.run_sync(service.audit) == []


@pytest.mark.slow
async def test_late_first_attempts_of_openais_client_make_no_second_task(
    provider: QuietProvider, new_service: NewService, new_customer: NewCustomer
) -> None:
    service = await started(provider, new_service)
    customer = await new_customer(service, credit="1000.00")
    async with LateProxy(service.url, "with it", "a moment later").running() as proxy:
        given = {"url": proxy.url, "key": customer.key, "count": LATE, "at_once": 10}
        assert len(set(await run_openai(VIDEOS, given))) == LATE
    assert proxy.late_count == LATE
    await check(service, customer, LATE)


@pytest.mark.slow
async def test_late_first_attempts_of_replicates_client_make_no_second_task(
    provider: QuietProvider, new_service: NewService, new_customer: NewCustomer
) -> None:
    service = await started(provider, new_service)
    customer = await new_customer(service, credit="1000.00")
    async with LateProxy(service.url, "with it").running() as proxy:
        given = {"url": proxy.url, "key": customer.key, "model": MODEL, "first": 0, "count": LATE, "at_once": 10}
        await run_node(REPLICATE, given, within_s=MINUTES_S)
    assert proxy.late_count == LATE
    await check(service, customer, LATE)


async def started(provider: QuietProvider, new_service: NewService) -> Service:
    """A service with the quiet provider, whose tasks are those of one test."""
    service = new_service()
    service.environment["HOLDFAST_CATALOG"] = str(provider.write_catalog(service.data_dir.parent))
    await trio.to_thread.run_sync(service.start)
    return service


@pytest.fixture
def two_workers(new_service: NewService) -> list[Service]:
    """A parent with two workers, whose tasks end."""
    service = new_service(PROCESSES="2")
    service.start()
    return [service]


@pytest.fixture
def three_members(provider: QuietProvider, new_service: NewService, shared_url: str) -> list[Service]:
    """Three services on one database, whose tasks do not end."""
    shared = {"DATABASE_URL": shared_url, "SERVER_KEY": SERVER_KEY, "TASKS_IN_FLIGHT_MAX": "100000"}
    services = [new_service(**shared) for _ in range(3)]
    catalog = str(provider.write_catalog(services[0].data_dir.parent))
    for service in services:
        service.environment["HOLDFAST_CATALOG"] = catalog
    start_together(services)
    return services


def processes_of(services: list[Service]) -> list[int]:
    """The processes that serve requests."""
    found = [each.process.pid for each in services if each.process is not None]
    return workers_of(found[0]) if len(found) == 1 else found


async def has_tasks(service: Service, count: int) -> bool:
    """Whether there are so many tasks."""
    return (await trio.to_thread.run_sync(prompts_of, service)).total() >= count


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Freeze a process."""
    os.kill(pid, signal.SIGSTOP)
    try:
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def until_read(services: list[Service], idle: float) -> None:
    """Wait until all that clients have left behind was accepted and read."""
    for service in services:
        for _ in range(20):
            async with loopback_client(base_url=service.url, timeout=60) as client:
                assert (await client.get("/healthz")).status_code == 200

    async def are_closed() -> bool:
        return sum(each.metric("holdfast_http_connections") for each in services) <= idle

    await until(are_closed)


async def test_a_frozen_process_makes_no_task_for_clients_that_have_gone(
    two_services: list[Service], new_customer: NewCustomer
) -> None:
    stopped, other = two_services
    assert stopped.process is not None
    await until_linked(two_services)
    customer = await own_customer(other, new_customer)
    idle = sum(each.metric("holdfast_http_connections") for each in two_services)
    with frozen(stopped.process.pid):
        for n in range(40):
            path = f"/replicate/v1/models/{MODEL}/predictions" if n % 2 else "/v1/videos"
            fields = {"prompt": f"wave {n}"}
            body = {"input": fields} if n % 2 else {"model": "quiet/clip-1", **fields}
            with socket.create_connection(address_of(stopped.url)) as client:
                client.sendall(raw_create(path, customer, body))
                if n % 4 > 1:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            resent = await customer.as_key("POST", path, body, headers={"X-Stainless-Retry-Count": "1"})
            assert resent.is_success
    await until_read(two_services, idle)
    await check(other, customer, 40)


async def own_customer(service: Service, new_customer: NewCustomer) -> Customer:
    """A customer whose account is this member's, so that it is served while the other one is frozen."""
    while True:
        customer = await new_customer(service, credit="1000.00", connections=1)
        if service.owns(customer.account_id):
            return customer


def raw_create(path: str, customer: Customer, body: object) -> bytes:
    """A first attempt as it is on the wire."""
    sent = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {customer.key}\r\n"
        f"X-Stainless-Retry-Count: 0\r\nContent-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n"
    )
    return head.encode() + sent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deployment", "program", "model"),
    [("two_workers", HELD_IMAGES, "studio/image-1"), ("three_members", VIDEOS, MODEL)],
    ids=["workers", "members"],
)
async def test_freezes_make_no_second_task(
    deployment: str, program: str, model: str, request: pytest.FixtureRequest, new_customer: NewCustomer
) -> None:
    services: list[Service] = request.getfixturevalue(deployment)
    customer = await new_customer(services[0], credit="10000.00", connections=1)
    idle = sum(each.metric("holdfast_http_connections") for each in services)
    intents, turns = 12, cycle(range(len(processes_of(services))))
    first = 0
    async with Balancer([each.url for each in services]).running() as balancer:
        given = {"url": balancer.url, "key": customer.key, "model": model, "count": intents, "at_once": 6}

        async def run(first: int, ended: trio.Event) -> None:
            await run_openai(program, {**given, "first": first, "timeout_s": 2})
            ended.set()

        # Which process a connection is given to is the kernel's choice: further rounds until enough were cut.
        while first < 2 * intents * FREEZES or balancer.cut_count < FREEZES:
            ended = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run, first, ended)
                await until(partial(has_tasks, services[0], first + 1))
                with frozen(processes_of(services)[next(turns)]), trio.move_on_after(FROZEN_S):
                    await ended.wait()
            with frozen(processes_of(services)[next(turns)]):
                await run_node(REPLICATE, {**given, "first": first + intents}, within_s=MINUTES_S)
            await until_read(services, idle)
            first += 2 * intents
    await check(services[0], customer, first)
