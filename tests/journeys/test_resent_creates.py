"""OpenAI's client sends requests again when connections are cut and services killed: no task is made twice.

``CREATES=10000`` has it make so many, of which the suite has time for a few hundred, and kill a service more often.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
import trio
from tests.clients import Customer
from tests.tools import CLIENTS_NODE, needs

from holdfast.persistence.server.connections import connected

from .client_programs import PROGRAM_S, run_node, run_python
from .conftest import NewCustomer, NewService
from .cutting_proxy import STAGES, cutting_proxy
from .quiet_provider import QuietProvider
from .service_process import Service
from .test_openai_clients import picture

pytestmark = needs(CLIENTS_NODE)

INTENTS = 240
CREATES = int(os.environ.get("CREATES", INTENTS))
IMAGES = 40
EQUAL = 500
KILLS = max(2, CREATES // 1250)

_START = """
import asyncio, warnings, openai
warnings.simplefilter("ignore", DeprecationWarning)
# However long it takes: a connection that is given up would be a request sent again.
client = openai.AsyncOpenAI(base_url=given["url"] + "/v1", api_key=given["key"], max_retries=30, timeout=600)
async def video(prompt):
    return (await client.videos.create(model="quiet/clip-1", prompt=prompt)).id
async def image(prompt):
    made = await client.images.with_raw_response.generate(model="studio/image-1", prompt=prompt, size="256x256")
    return made.headers["x-task-id"]
async def run(make, prompts):
    at_once = asyncio.Semaphore(given["at_once"])
    async def one(prompt):
        async with at_once:
            return await make(prompt)
    return await asyncio.gather(*map(one, prompts))
"""
VIDEOS = (
    _START
    + """
show(asyncio.run(run(video, [f"wave {n}" for n in range(given["count"])])))
"""
)
HELD_IMAGES = (
    _START
    + """
show(asyncio.run(run(image, [f"wave {n}" for n in range(given["count"])])))
"""
)
EDITS = (
    _START
    + """
import base64, io
async def edit(prompt):
    made = await client.images.with_raw_response.edit(
        model="studio/edit-1", image=io.BytesIO(base64.b64decode(given["picture"])), prompt=prompt, size="32x32"
    )
    return made.headers["x-task-id"]
show(asyncio.run(run(edit, [f"wave {n}" for n in range(given["count"])])))
"""
)
JAVASCRIPT = """
import OpenAI from "openai";
const client = new OpenAI({ baseURL: given.url + "/v1", apiKey: given.key, maxRetries: 30 });
const made = [];
const left = Array.from({ length: given.count }, (_, n) => n);
const work = async () => {
  while (left.length) {
    try {
      made.push((await client.videos.create({ model: "quiet/clip-1", prompt: `wave ${left.pop()}` })).id);
    } catch (error) {
      // An answer that breaks off in its middle, which this client raises at once.
      if (!(error instanceof TypeError && error.message === "terminated")) throw error;
    }
  }
};
await Promise.all(Array.from({ length: given.at_once }, work));
show(made);
"""
EQUAL_VIDEOS = (
    _START
    + """
show(asyncio.run(run(video, ["the same wave"] * given["count"])))
"""
)


def prompts_of(service: Service) -> Counter[str]:
    """How many tasks each prompt has."""
    with connected(service.database_url) as connection:
        return Counter(connection.exec_driver_sql("select input ->> 'prompt' from tasks").scalars())


async def check(service: Service, customer: Customer, made: list[str], count: int) -> None:
    """Each create made one task, and its client has got that one."""
    found = await trio.to_thread.run_sync(prompts_of, service)
    assert found == {f"wave {n}": 1 for n in range(count)}
    assert len(set(made)) == count
    assert set(made) == set(await customer.tasks())
    assert await trio.to_thread.run_sync(service.audit) == []


@pytest.mark.slow
async def test_cuts_and_kills_make_no_task_twice(
    provider: QuietProvider, new_service: NewService, new_customer: NewCustomer
) -> None:
    service = new_service(TASKS_IN_FLIGHT_MAX="20000")
    service.environment["HOLDFAST_CATALOG"] = str(provider.write_catalog(service.data_dir.parent))
    await trio.to_thread.run_sync(service.start)
    customer = await new_customer(service, credit="10000.00")
    await customer.recharge("10000.00")
    made: list[str] = []
    given = {"key": customer.key, "count": CREATES, "at_once": 40 if CREATES == INTENTS else 100}
    async with cutting_proxy(service.url, cut=0.5) as proxy:

        async def run() -> None:
            program_s = PROGRAM_S * CREATES / INTENTS
            made.extend(await run_python(VIDEOS, {**given, "url": proxy.url}, within_s=program_s))
            kills.cancel()

        with trio.CancelScope() as kills:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                for nth in range(1, KILLS + 1):
                    await proxy.reached(nth * CREATES // KILLS)
                    with trio.CancelScope(shield=True):
                        await trio.to_thread.run_sync(service.kill)
                        await trio.to_thread.run_sync(service.start)
        assert all(proxy.cuts[stage] for stage in STAGES)
    await check(service, customer, made, CREATES)


@pytest.mark.parametrize("program", [HELD_IMAGES, EDITS], ids=["images", "edits"])
@pytest.mark.slow
async def test_a_resend_waits_for_the_result(
    shared_service: Service, new_customer: NewCustomer, program: str
) -> None:
    customer = await new_customer(shared_service, credit="50.00")
    async with cutting_proxy(shared_service.url, cut=0.4) as proxy:
        given = {"url": proxy.url, "key": customer.key, "count": IMAGES, "at_once": 10}
        made = await run_python(program, {**given, "picture": picture("edit")})
    tasks = await customer.tasks()
    assert len(set(made)) == IMAGES
    assert set(made) == set(tasks)
    assert {task["status"] for task in tasks.values()} == {"succeeded"}


@pytest.mark.slow
async def test_the_client_for_javascript_makes_no_task_twice(
    quiet_service: Service, provider: QuietProvider, new_customer: NewCustomer
) -> None:
    customer = await new_customer(quiet_service, credit="1000.00")
    async with cutting_proxy(quiet_service.url, cut=0.4) as proxy:
        given = {"url": proxy.url, "key": customer.key, "count": INTENTS, "at_once": 20}
        made = await run_node(JAVASCRIPT, given)
    tasks = await customer.tasks()
    assert len(tasks) == INTENTS
    assert INTENTS // 2 < len(set(made)) == len(made)
    assert set(made) <= set(tasks)


@pytest.mark.slow
async def test_requests_that_are_equal_on_purpose_stay_as_many(
    quiet_service: Service, provider: QuietProvider, new_customer: NewCustomer
) -> None:
    customer = await new_customer(quiet_service, credit="1000.00")
    given = {"url": quiet_service.url, "key": customer.key, "count": EQUAL, "at_once": EQUAL}
    made = await run_python(EQUAL_VIDEOS, given)
    assert len(set(made)) == EQUAL
    assert len(await customer.tasks()) == EQUAL
