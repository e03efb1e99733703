"""Events of the card provider that arrive at the wrong cell."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial

import httpx2
import pytest
import trio

from holdfast.http.kit.forwarding import ANSWER_BYTES_MAX, Clients
from holdfast.ledger.values import PLACES, new_id_at
from holdfast.persistence.queries.orders import NamedOrder
from holdfast.providers.signatures import sign

from .cell_stages import AWAY, OneOrder, cells
from .identities import CARD_SECRET, NOW
from .stage import Stage
from .test_payments_card import event


async def send_event(stage: Stage, **metadata: str) -> httpx2.Response:
    """Send an event of a paid intent, whose ``metadata`` may name its order."""
    found = {"id": "pi_1", "object": "payment_intent", "status": "succeeded", "amount": 1000, "metadata": metadata}
    found |= {"amount_received": 1000, "currency": "usd", "livemode": False, "latest_charge": "ch_1"}
    body = json.dumps(event("payment_intent.succeeded", found, "evt_1")).encode()
    headers = {"Cardprovider-Signature": sign(CARD_SECRET, body, at=int(NOW.timestamp()))}
    return await stage.http.post("/v2/control/payments/cardprovider/webhook", content=body, headers=headers)


async def test_a_card_event_reaches_the_cell_of_its_order(two: tuple[Stage, Stage]) -> None:
    first, second = two
    order_id = new_id_at("ord", PLACES - 1)
    _, of_first = first.configure_card()
    second.configure_card()
    second.change(database=OneOrder(NamedOrder("acct_2", order_id)))
    # By the order that it names, and without one by the cell that knows the payment.
    of_first_rows, of_second_rows = OneOrder(None), OneOrder(None)
    first.change(database=of_first_rows)
    for metadata in ({"order_id": order_id}, {}):
        response = await send_event(first, **metadata)
        assert response.status_code == 200, response.text
        assert response.json().get("order_id") == order_id, (metadata, response.text)
        assert [key for key, _ in second.accounts.asked] == ["acct_2"]
        second.accounts.asked.clear()
    assert of_first.stored == []
    second.change(database=of_second_rows)
    ignored = await send_event(first)
    assert (ignored.status_code, ignored.json()["ignored"]) == (200, True)
    assert len(of_first.stored) == 1
    # Its account may be closed for a move, or was moved from a cell that was not asked yet to one that was.
    for rows in (of_first_rows, of_second_rows):
        rows.has_departed = True
        refused = await send_event(first)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "account_moving")
        rows.has_departed = False
    assert len(of_first.stored) == 1
    await first.deps.state(Clients).close()
    first.change(cells=cells(1, AWAY, AWAY))
    # The provider sends it again.
    assert (await send_event(first)).status_code == 503


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b'{"a":"\xff"}', b"[" * 100_000, b" " * ANSWER_BYTES_MAX + b"{}", b"cut"]
)
async def test_a_card_event_is_sent_again_if_a_cells_answer_says_nothing(
    two: tuple[Stage, Stage], nursery: trio.Nursery, body: bytes
) -> None:
    first, _ = two
    first.configure_card()
    length = len(body) + (body == b"cut")

    async def answer_badly(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            with suppress(trio.BrokenResourceError):
                await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (length, body))

    [listener] = await nursery.start(partial(trio.serve_tcp, answer_badly, 0, host="127.0.0.1"))
    first.change(cells=cells(1, AWAY, f"http://127.0.0.1:{listener.socket.getsockname()[1]}"))
    response = await send_event(first)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "temporarily_unavailable")
