"""Agents: two clients of the Model Context Protocol, what no key gets by it, and one that loops.

``LOOPS=10000`` has the agent create as many tasks as in a long day; give it ``-o faulthandler_timeout=1800`` then.
"""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import httpx2
import pytest
import trio
from PIL import Image
from tests.clients import ENDED, Customer, ok
from tests.tools import CLIENTS, CLIENTS_NODE, needs

from .agent_programs import NODE, PYTHON, REFUSED
from .client_programs import run_node, run_python
from .conftest import NewCustomer, NewService
from .service_process import Service

KEYS = "/v2/control/api-keys"
SCOPES = ["tasks:read", "tasks:write", "account:read"]
TOOLS = [
    "cancel_task", "create_task", "get_account", "get_file", "get_model", "get_task", "list_files", "list_models",
    "list_tasks", "quote", "upload_file", "wait_for_task",
]  # fmt: skip
LOOPS = int(os.environ.get("LOOPS", "1000"))
CLIENTS_PYTHON = CLIENTS / "bin" / "python"


async def agents_key(owner: Customer, **terms: object) -> Customer:
    """Create a key as the preset for agents does; the customer with that key."""
    preset = {
        "name": "agent",
        "scopes": SCOPES,
        "models": ["studio/*"],
        "limit": {"credits": "1.00", "window": "day"},
        "max_credits_per_task": "0.50",
    }
    created = ok(await owner.as_session("POST", KEYS, {**preset, **terms}))
    return replace(owner, key=created["api_key"])


def picture() -> str:
    file = io.BytesIO()
    Image.new("RGB", (48, 32), (20, 90, 160)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


@needs(CLIENTS_NODE)
@pytest.mark.parametrize(
    "client",
    [
        "mcp on trio",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in ("mcp on asyncio", "mcp by handshake", "@modelcontextprotocol/sdk")
        ),
    ],
)
@pytest.mark.usefixtures("one_day")
async def test_a_client_quotes_creates_waits_and_cancels(
    shared_service: Service, new_customer: NewCustomer, client: str
) -> None:
    owner = await new_customer(shared_service, credit="5.00")
    agent = await agents_key(owner)
    given = {"url": shared_service.url, "key": agent.key, "picture": picture(), "name": client}
    if client.startswith("mcp"):
        given["backend"] = "asyncio" if client == "mcp on asyncio" else "trio"
        given["mode"] = "legacy" if client == "mcp by handshake" else "auto"
        found = await run_python(PYTHON, given, CLIENTS_PYTHON)
    else:
        found = await run_node(NODE, given)

    assert found["tools"] == TOOLS
    assert found["price"] is True
    assert "studio/image-1" in found["models"]
    assert found["file"] is True
    first, second, replayed = found["task"]
    assert (first == second, replayed, found["status"]) == (True, True, "succeeded")
    assert found["parts"] == ["text", "resource_link", "image"]
    content = (await owner.http.get(found["link"])).content
    assert content == base64.b64decode(found["image"])
    assert content.startswith(b"\x89PNG")
    percents = [each[0] for each in found["steps"]]
    assert percents == sorted(set(percents))
    assert all(total == 100 for _, total in found["steps"])
    assert found["canceled"] == "canceled"
    assert found["dear"][0] is True
    assert found["dear"][1].startswith("max_credits_exceeded: ")
    assert found["left"] == "0.988"
    tasks = await owner.tasks()
    assert sorted(each["status"] for each in tasks.values()) == ["canceled", "succeeded"]
    assert (await owner.totals()).balance == Decimal("4.988")


@needs(CLIENTS_NODE)
@pytest.mark.slow
async def test_no_key_gets_more_by_a_client_than_it_has(shared_service: Service, new_customer: NewCustomer) -> None:
    owner, other = [await new_customer(shared_service, credit="5.00") for _ in range(2)]
    task = ok(await owner.create())["request_id"]
    await owner.all_ended()
    keys = {"another's": other.key}
    tried: dict[str, dict[str, object]] = {
        "paused": {},
        "revoked": {},
        "without models": {"models": ["studio/tone-1"]},
        "only reads": {"scopes": ["tasks:read"]},
        "capped": {"max_credits_per_task": "0.001"},
        "spent": {"limit": {"credits": "0.001", "window": "day"}},
    }
    for name, terms in tried.items():
        created = ok(await owner.as_session("POST", KEYS, {"scopes": SCOPES, **terms}))
        keys[name], path = created["api_key"], f"{KEYS}/{created['api_key_id']}"
        if name == "paused":
            ok(await owner.as_session("PATCH", path, {"paused": True}))
        if name == "revoked":
            ok(await owner.as_session("DELETE", path))
    before = [await each.totals() for each in (owner, other)]
    found = await run_python(REFUSED, {"url": shared_service.url, "keys": keys, "task": task}, CLIENTS_PYTHON)
    ended = "task_already_terminal"
    assert found == {
        "another's": ["task_not_found", "task_not_found"],
        "paused": ["not let in"],
        "revoked": ["not let in"],
        "without models": ["model_not_allowed", ended],
        "only reads": ["insufficient_scope", "insufficient_scope"],
        "capped": ["max_credits_exceeded", ended],
        "spent": ["key_limit_exceeded", ended],
    }
    await other.all_ended()
    assert len(await owner.tasks()) == 1
    assert await owner.totals() == before[0]


class Agent:
    """An agent that calls tools, one after the other, and reads the results."""

    def __init__(self, customer: Customer) -> None:
        self._customer = customer
        self._count = 0

    async def call(self, name: str, arguments: Mapping[str, object]) -> dict[str, Any]:
        self._count += 1
        params = {"name": name, "arguments": arguments}
        body = {"jsonrpc": "2.0", "id": self._count, "method": "tools/call", "params": params}
        headers = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}
        response: httpx2.Response = await self._customer.as_key("POST", "/mcp", body, headers=headers)
        answer = ok(response)
        assert answer["id"] == self._count
        return dict(answer["result"])


@pytest.mark.slow
@pytest.mark.usefixtures("one_day")
async def test_an_agent_that_loops_spends_its_limit_and_no_more(
    new_service: NewService, new_customer: NewCustomer
) -> None:
    """It ignores that the texts say to stop, and asks for as many tasks as it can."""
    service = new_service()
    service.start()
    owner = await new_customer(service, credit="100.00")
    customer = await agents_key(owner, limit={"credits": "1.00", "window": "day"}, max_credits_per_task="0.03")
    price, limit = Decimal("0.012"), Decimal("1.00")
    new = {
        "model": "studio/image-1",
        "input": {"prompt": "again", "width": 256, "height": 256},
        "max_credits": "0.03",
    }
    texts: list[str] = []

    async def loop(count: int) -> None:
        agent = Agent(customer)
        for _ in range(count):
            result = await agent.call("create_task", new)
            if result.get("isError"):
                texts.append(result["content"][0]["text"])

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(loop, LOOPS // 8)
    created = await owner.all_ended(within_s=600)
    spent = sum(Decimal(each["usage"]["cost_credits"]) for each in created.values())
    assert all(each["status"] in ENDED for each in created.values())
    assert len(texts) == LOOPS // 8 * 8 - len(created)
    # To the micro: what is left is less than one task costs, and all of it was refused.
    assert limit - price < spent <= limit
    assert spent == len(created) * price == limit // price * price
    assert (await owner.totals()).balance == Decimal(100) - spent
    assert {each.split(":")[0] for each in texts} == {"key_limit_exceeded"}
    assert all("Stop creating tasks" in each and "it resets at " in each for each in texts)
    # The cap holds whatever is asked for, also by the other APIs.
    dear = {**new, "input": {"prompt": "many", "n": 4}, "max_credits": "5"}
    result = await Agent(customer).call("create_task", dear)
    assert result["content"][0]["text"].startswith("max_credits_exceeded: ")
    native = await customer.as_key("POST", "/v2/task/create", {"model": dear["model"], "input": dear["input"]})
    assert (native.status_code, native.json()["error"]["code"]) == (402, "max_credits_exceeded")
    openai = {"model": "studio/image-1", "prompt": "many", "n": 4}
    assert (await customer.as_key("POST", "/v1/images/generations", openai)).status_code == 402
    predicted = {"input": {"prompt": "many", "n": 4}}
    path = "/replicate/v1/models/studio/image-1/predictions"
    assert (await customer.as_key("POST", path, predicted)).status_code == 402
    assert (await owner.totals()).held == 0
    assert service.audit() == []
