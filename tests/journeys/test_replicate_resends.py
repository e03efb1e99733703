"""Requests that Replicate's clients send again when their connection breaks: as many tasks as were meant."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest
import trio
from tests.clients import Customer, ok, until
from tests.tools import CLIENTS_NODE, needs

from .client_programs import run_node
from .conftest import NewCustomer
from .quiet_provider import MODEL, QuietProvider, signed
from .replicate_programs import STARTS
from .service_process import Service

pytestmark = needs(CLIENTS_NODE)

JAVASCRIPT, AI = "replicate (JavaScript)", "@ai-sdk/replicate"
CALLS = {
    JAVASCRIPT: 'show((await client.run(given.model, { input: { prompt: "a gull" } })).length);',
    # It fetches results from nowhere but its base address and public hosts.
    AI: """
const through = (url, init) => fetch(String(url).replace(given.service, given.url), init);
const client = createReplicate({ apiToken: given.key, baseURL: given.service + "/replicate/v1", fetch: through });
const { images } = await generateImage({ model: client.image(given.model), prompt: "a gull" });
show(images.length);
""",
}
EQUAL = """
const made = await Promise.all(
  Array.from({ length: 20 }, () => client.predictions.create({ model: given.model, input: { prompt: "a gull" } })));
const one = await client.predictions.create({ model: given.model, input: { prompt: "a gull" } });
show(new Set([...made, one].map((each) => each.id)).size);
"""


@dataclass
class CuttingProxy:
    """Forwards connections to a service; ``cut`` ends those that are open, on both sides."""

    url: str = ""
    requests: int = 0
    open: set[trio.CancelScope] = field(default_factory=set)

    async def has_forwarded(self, count: int) -> bool:
        """Whether the beginnings of so many requests were forwarded, each on a connection of its own."""
        return self.requests >= count

    def cut(self) -> None:
        """End the open connections."""
        for each in self.open:
            each.cancel()


@asynccontextmanager
async def cutting_proxy(service: Service) -> AsyncIterator[CuttingProxy]:
    """Run the proxy on loopback."""
    proxy = CuttingProxy()
    port = int(service.url.rpartition(":")[2])

    async def forward(source: trio.SocketStream, target: trio.SocketStream, scope: trio.CancelScope) -> None:
        is_new = True
        async for data in source:
            await target.send_all(data)
            proxy.requests += is_new and data.startswith(b"POST")
            is_new = False
        scope.cancel()

    async def serve(client: trio.SocketStream) -> None:
        server = await trio.open_tcp_stream("127.0.0.1", port)
        async with client, server:
            with trio.CancelScope() as scope:
                proxy.open.add(scope)
                try:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(forward, client, server, scope)
                        nursery.start_soon(forward, server, client, scope)
                finally:
                    proxy.open.remove(scope)

    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        proxy.url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        yield proxy
        nursery.cancel_scope.cancel()


async def begun(customer: Customer) -> str:
    """Wait until the customer's one task has been submitted, and return its id."""

    async def first() -> str | None:
        return next(iter(await customer.tasks()), None)

    request_id = await until(first)
    await customer.submitted(request_id)
    return request_id


@pytest.mark.parametrize("client", CALLS)
@pytest.mark.slow
async def test_a_resend_gets_the_first_requests_prediction(
    quiet_service: Service, provider: QuietProvider, new_customer: NewCustomer, client: str
) -> None:
    customer = await new_customer(quiet_service, credit="5.00")
    shown: list[int] = []

    async def call(url: str) -> None:
        given = {"url": url, "service": quiet_service.url, "key": customer.key, "model": MODEL}
        shown.append(await run_node(STARTS[client] + CALLS[client], given))

    async with cutting_proxy(quiet_service) as proxy, trio.open_nursery() as nursery:
        nursery.start_soon(call, proxy.url)
        request_id = await begun(customer)
        for attempts in (1, 2):
            await until(partial(proxy.has_forwarded, attempts))
            proxy.cut()
        await until(partial(proxy.has_forwarded, 3))
        body = provider.success(request_id, event_id=f"done_{request_id}", sequence=9)
        ok(await customer.http.post("/v2/callback", content=body, headers=signed(body)))

    assert shown == [1]
    assert list(await customer.tasks()) == [request_id]
    assert (await customer.totals()).balance == 4


async def test_equal_requests_on_purpose_are_as_many_tasks(
    quiet_service: Service, new_customer: NewCustomer
) -> None:
    customer = await new_customer(quiet_service, credit="50.00")
    given = {"url": quiet_service.url, "key": customer.key, "model": MODEL}

    assert await run_node(STARTS[JAVASCRIPT] + EQUAL, given) == 21
    assert len(await customer.tasks()) == 21
