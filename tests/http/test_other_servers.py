"""The application under a server that gives it ASGI alone, and does not cancel for a client that disconnects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio
from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable
from trio.testing import MockClock, wait_all_tasks_blocked

from holdfast.http.kit.requests import REST_OF_BODY_S, cancel_on_disconnect

if TYPE_CHECKING:
    from tests.http.stage import Stage

DISCONNECT = {"type": "http.disconnect"}


def part(body: bytes = b"", *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


@dataclass
class Client:
    """The server's end of one request: what the client sends, how much was received of that, and what it got."""

    sent: list[dict[str, Any]]
    received: int = 0
    responses: list[Mapping[str, Any]] = field(default_factory=list)
    has_more: trio.Event = field(default_factory=trio.Event)

    async def receive(self) -> dict[str, Any]:
        while self.received == len(self.sent):
            await self.has_more.wait()
            self.has_more = trio.Event()
        self.received += 1
        return self.sent[self.received - 1]

    async def send(self, event: Mapping[str, Any]) -> None:
        self.responses.append(event)
        await trio.lowlevel.checkpoint()

    def disconnect(self) -> None:
        self.sent.append(DISCONNECT)
        self.has_more.set()

    async def answered_by(self, answer: Any) -> None:
        await cancel_on_disconnect(answer, cast(Any, self.receive), cast(Any, self.send))


async def respond(send: ASGISendCallable) -> None:
    await send(cast(Any, {"type": "http.response.start", "status": 200, "headers": []}))
    await send(cast(Any, {"type": "http.response.body", "body": b"", "more_body": False}))


@pytest.mark.parametrize("sent", [[part()], [part(b"a", more=True), part(b"b")]])
async def test_a_disconnect_cancels_the_request(sent: list[dict[str, Any]]) -> None:
    client = Client(sent)

    async def answer(receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        for _ in sent[1:]:
            await receive()
        await receive()
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.answered_by, answer)
        await wait_all_tasks_blocked()
        client.disconnect()
    assert client.responses == []


async def test_a_disconnect_is_noticed_although_the_empty_body_is_not_read() -> None:
    client = Client([part()])

    async def answer(receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.answered_by, answer)
        await wait_all_tasks_blocked()
        client.disconnect()


async def test_a_disconnect_within_the_body_cancels_the_request() -> None:
    async def answer(receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        assert (await receive()).get("body") == b"a"
        await receive()

    await Client([part(b"a", more=True), DISCONNECT]).answered_by(answer)


async def test_parts_of_a_body_after_the_first_are_received_when_they_are_read() -> None:
    client = Client([part(b"%d" % number, more=number < 9) for number in range(10)])
    ahead = []

    async def answer(receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        for number in range(10):
            await wait_all_tasks_blocked()
            ahead.append(client.received - number)
            assert (await receive()).get("body") == b"%d" % number
        await respond(send)

    await client.answered_by(answer)
    assert ahead == [1] + [0] * 9


async def test_the_rest_of_a_body_is_discarded_before_the_response() -> None:
    client = Client([part(b"x", more=True)] * 20 + [part()])

    async def answer(receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        await receive()
        await respond(send)

    await client.answered_by(answer)
    assert client.received == 21
    assert len(client.responses) == 2


async def test_a_response_does_not_wait_long_for_the_rest_of_a_body(autojump_clock: MockClock) -> None:
    client = Client([part(b"x", more=True)])
    began_s = trio.current_time()
    await client.answered_by(lambda _receive, send: respond(send))
    assert trio.current_time() - began_s == pytest.approx(REST_OF_BODY_S)
    assert len(client.responses) == 2


async def test_a_disconnect_after_the_last_part_of_the_response_cancels_nothing() -> None:
    client, is_left = Client([part()]), False

    async def answer(receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        nonlocal is_left
        await respond(send)
        client.disconnect()
        await wait_all_tasks_blocked()
        is_left = True

    await client.answered_by(answer)
    assert is_left


@pytest.mark.parametrize(("path", "status"), [("/healthz", 200), ("/v2//models", 404), ("/v2/../healthz", 404)])
async def test_a_scope_may_have_nothing_that_asgi_makes_optional(stage: Stage, path: str, status: int) -> None:
    client = Client([part()])
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "query_string": b"",
        "headers": [],
    }
    await stage.app(cast(Any, scope), cast(Any, client.receive), cast(Any, client.send))
    assert client.responses[0]["status"] == status
