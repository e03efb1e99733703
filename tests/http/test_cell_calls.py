"""Requests that arrive at the wrong cell: who answers, what it is sent, and what happens if it is away."""

from __future__ import annotations

import copy
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest
import trio
from tests.certificates import Authority

from holdfast.actors.account.messages import CreateTask, ReceivePaymentEvent, StopMail
from holdfast.actors.runtime.faults import AccountAway
from holdfast.actors.sign_in.actor import new_session_token
from holdfast.actors.sign_in.messages import AdmitOrigin, CodeIssued, OriginAdmitted, RequestCode
from holdfast.actors.task.messages import ReceiveProviderUpdate, TaskReply
from holdfast.http.kit.credentials import KeyCache, KnownKey, mint_api_key
from holdfast.http.kit.forwarding import ANSWER_BYTES_MAX, AWAY_S, MARK, Clients
from holdfast.http.kit.other_cells import Hop, OfAnotherCell, require_here
from holdfast.http.kit.requests import HoldfastRequest
from holdfast.ledger.alerts.alerts import Alerts
from holdfast.ledger.api_keys import SCOPES
from holdfast.ledger.cells import Cell, Cells
from holdfast.ledger.orders.order import OrderResult
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import PLACES, new_id, new_id_at, place_of
from holdfast.persistence.claims.files import FilesTotal
from holdfast.persistence.queries.credentials import SessionRecord, find_sessions
from holdfast.persistence.queries.moves import (
    Away,
    FoundEmail,
    FoundMoves,
    find_departed,
    find_email,
    find_moves_of_place,
    has_departed_since,
)
from holdfast.persistence.queries.orders import NamedOrder
from holdfast.persistence.records.rows import SessionRevokedRow
from holdfast.persistence.server.lookups import Lookup
from holdfast.providers.signatures import sign
from holdfast.sockets.listening import SlotSockets, Sockets
from holdfast.telemetry.reports.reporter import Reporter
from holdfast.wiring.http_server import HttpServer

from .fake_actors import FakeDirectory
from .identities import CARD_SECRET, NOW
from .order_stand_ins import make_order
from .stage import Stage
from .test_payments_card import event

AWAY = "http://127.0.0.1:1"
HALVES = ((range(PLACES // 2),), (range(PLACES // 2, PLACES),))


def cells(own: int, *urls: str) -> Cells:
    halves = zip(HALVES, urls, strict=True)
    return Cells(own, [Cell(number, half, half, url, url) for number, (half, url) in enumerate(halves, 1)])


def account_in(number: int) -> str:
    return next(each for each in iter(lambda: new_id("acct"), None) if place_of(each) in HALVES[number - 1][0])


def email_in(number: int) -> str:
    emails = (f"{each}@example.com" for each in range(1000))
    return next(each for each in emails if place_of(each) in HALVES[number - 1][0])


async def answer(_key: str, command: object) -> object:
    match command:
        case RequestCode():
            return CodeIssued("otp_1", "123456", 600)
        case StopMail():
            return Alerts()
        case ReceivePaymentEvent(order_id):
            return OrderResult(make_order(order_id, "acct_2", NOW), "applied")
        case _:
            return OriginAdmitted()


class OneOrder:
    """Rows in which every event finds this order, or none, and from which an account may have departed."""

    def __init__(self, order: NamedOrder | None) -> None:
        self.order = order
        self.has_departed = False

    async def read(self, query: object) -> NamedOrder | FoundEmail | FoundMoves | bool | None:
        if isinstance(query, partial) and query.func is has_departed_since:
            return self.has_departed
        if isinstance(query, partial) and query.func is find_email:
            return FoundEmail(is_here=False)
        if isinstance(query, partial) and query.func is find_moves_of_place:
            return FoundMoves()
        return self.order


async def send_event(stage: Stage, **metadata: str) -> httpx2.Response:
    """Send an event of a paid intent, whose ``metadata`` may name its order."""
    found = {"id": "pi_1", "object": "payment_intent", "status": "succeeded", "amount": 1000, "metadata": metadata}
    found |= {"amount_received": 1000, "currency": "usd", "livemode": False, "latest_charge": "ch_1"}
    body = json.dumps(event("payment_intent.succeeded", found, "evt_1")).encode()
    headers = {"Cardprovider-Signature": sign(CARD_SECRET, body, at=int(NOW.timestamp()))}
    return await stage.http.post("/v2/control/payments/cardprovider/webhook", content=body, headers=headers)


def another_cell(stage: Stage) -> Stage:
    """Another cell with the same secrets."""
    app = copy.copy(stage.app)
    accounts, sign_ins, tasks = FakeDirectory(), FakeDirectory(), FakeDirectory()
    app.deps = replace(stage.deps, accounts=accounts, sign_ins=sign_ins, tasks=tasks)
    return replace(stage, app=app, accounts=accounts, sign_ins=sign_ins, tasks=tasks)


@pytest.fixture
async def two(stage: Stage) -> AsyncIterator[tuple[Stage, Stage]]:
    """Two cells, which reach each other by HTTP."""
    stage.configure(trusted_proxies=(ip_network("127.0.0.0/8"),))
    second = another_cell(stage)
    async with stage.serving() as first_url, second.serving() as second_url:
        for number, each in enumerate((stage, second), 1):
            each.change(cells=cells(number, first_url, second_url), database=OneOrder(None), key_cache=KeyCache())
            each.sign_ins.answer = each.accounts.answer = answer
        async with (
            httpx2.AsyncClient(base_url=first_url, trust_env=False) as first_http,
            httpx2.AsyncClient(base_url=second_url, trust_env=False) as second_http,
        ):
            yield replace(stage, http=first_http), replace(second, http=second_http)
        for each in (stage, second):
            await each.deps.state(Clients).close()


def unsubscribe_path(stage: Stage, account_id: str) -> str:
    return stage.deps.urls.unsubscribe_url(account_id).removeprefix(stage.deps.urls.base)


async def test_the_cell_of_an_address_answers_wherever_sign_in_arrives(two: tuple[Stage, Stage]) -> None:
    first, second = two
    for here, there, number in ((first, second, 2), (second, first, 1)):
        email = email_in(number)
        headers = {"X-Forwarded-For": "203.0.113.7"}
        response = await here.http.post("/v2/control/auth/otp", json={"email": email}, headers=headers)
        assert (response.status_code, response.json()["otp_id"]) == (200, "otp_1")
        assert here.sign_ins.asked == []
        # The client counts by its own address there, not by that of the cell that sent its request on.
        assert [key for key, _ in there.sign_ins.asked] == ["origin:203.0.113.7", f"email:{email}"]
        there.sign_ins.asked.clear()


async def test_a_key_of_another_cell_creates_its_task_there(two: tuple[Stage, Stage]) -> None:
    first, second = two
    account_id = account_in(2)
    key = mint_api_key(account_id, live=False)
    second.deps.access.key_cache.put(key.sha256, KnownKey(account_id, "key_2", frozenset(SCOPES)))
    second.accounts.answer = Refusal(code="insufficient_credit", message="no")
    headers = {"Authorization": f"Bearer {key.secret}", "Idempotency-Key": "order-7"}
    body = {"model": "studio/image-1", "input": {"prompt": "a lighthouse"}}
    response = await first.http.post("/v2/task/create", json=body, headers=headers)
    # The response is the other one's as it is, and the client gets one id of its request.
    assert (response.status_code, response.json()["error"]["code"]) == (402, "insufficient_credit")
    assert response.headers.get_list("X-Request-Id") == [response.json()["error"]["request_id"]]
    [(asked, command)] = second.accounts.asked
    assert isinstance(command, CreateTask)
    assert command.idempotency is not None
    assert (asked, command.idempotency.key) == (account_id, "order-7")
    assert first.accounts.asked == []


async def test_no_request_reads_the_authorities_certificates(
    two: tuple[Stage, Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as listening:
        sockets = Sockets({0: SlotSockets(listening)}, is_shared=False)
        for each in two:
            HttpServer(sockets, 0, each.deps, Reporter(), lambda: True)
    monkeypatch.setattr("ssl.create_default_context", lambda: pytest.fail("this takes 20 ms of the loop"))
    first, second = two
    link = unsubscribe_path(first, account_in(2))
    assert (await first.http.post(link, data={"List-Unsubscribe": "One-Click"})).status_code == 200
    token = {"Authorization": f"Bearer {first.deps.settings.operator_token}"}
    assert len((await second.http.get("/ops/api/cells", headers=token)).json()["data"]) == 2


async def test_a_link_that_names_an_account_of_another_cell_works(two: tuple[Stage, Stage]) -> None:
    first, second = two
    account_id = account_in(2)
    path = unsubscribe_path(first, account_id)
    response = await first.http.post(path, data={"List-Unsubscribe": "One-Click"})
    assert (response.status_code, response.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert second.accounts.asked == [(account_id, StopMail("unsubscribed"))]
    assert first.accounts.asked == []
    forged = await first.http.post(path[:-1] + "!")
    assert forged.json()["error"]["code"] == "invalid_link"


async def test_a_callback_about_a_task_of_another_cell_reaches_it(two: tuple[Stage, Stage]) -> None:
    first, second = two
    task = first.task(new_id_at("task", place_of(account_in(2))))
    second.tasks.answer = TaskReply(task)
    update = {"event_id": "evt_1", "request_id": task.request_id, "attempt": 1, "status": "processing"}
    body = json.dumps(update).encode()
    signature = sign("studio-callback-secret", body, at=int(NOW.timestamp()), key_name="studio")
    response = await first.http.post("/v2/callback", content=body, headers={"X-Callback-Signature": signature})
    assert (response.status_code, response.json()["request_id"]) == (200, task.request_id)
    [(key, command)] = second.tasks.asked
    assert isinstance(command, ReceiveProviderUpdate)
    assert (key, command.body) == (task.request_id, body)
    assert first.tasks.asked == []


async def test_a_cell_that_is_away_is_503_and_the_others_serve(two: tuple[Stage, Stage]) -> None:
    first, _ = two
    first.change(cells=cells(1, AWAY, AWAY))
    for path in (unsubscribe_path(first, account_in(2)), f"/v2/task/{new_id_at('task', PLACES - 1)}"):
        response = await first.http.get(path)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (503, "temporarily_unavailable")
        assert error["message"] == "The part of the service that has this account is away; try again later."
        assert response.headers["Retry-After"] == "1"
    assert (await first.http.get(unsubscribe_path(first, account_in(1)))).status_code == 200


@pytest.mark.parametrize("authorities", ["authority.pem", "missing.pem"])
async def test_a_cell_with_a_certificate_of_an_unknown_authority_is_away(
    two: tuple[Stage, Stage],
    nursery: trio.Nursery,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    authorities: str,
) -> None:
    async def respond(stream: trio.SSLStream[trio.SocketStream]) -> None:
        with suppress(trio.BrokenResourceError):
            await stream.receive_some()
            await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(Authority(tmp_path).issue("127.0.0.1"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / authorities))
    [listener] = await nursery.start(partial(trio.serve_ssl_over_tcp, respond, 0, tls, host="127.0.0.1"))
    port = listener.transport_listener.socket.getsockname()[1]
    first, _ = two
    first.change(cells=cells(1, AWAY, f"https://127.0.0.1:{port}"))
    response = await first.http.get(unsubscribe_path(first, account_in(2)))
    if authorities == "authority.pem":
        assert (response.status_code, response.content) == (200, b"{}")
    else:
        assert response.status_code == 503
        assert "is away" in response.json()["error"]["message"]


async def test_a_cell_that_is_away_is_tried_by_one_request_a_second(
    two: tuple[Stage, Stage], nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = two
    calls = 0

    async def answer_once(stream: trio.SocketStream) -> None:
        nonlocal calls
        calls += 1
        async with stream:
            await stream.receive_some()
            await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")

    now_s = 0.0
    monkeypatch.setattr("trio.current_time", lambda: now_s)
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))
        first.change(cells=cells(1, AWAY, f"http://127.0.0.1:{there.getsockname()[1]}"))
        path = unsubscribe_path(first, account_in(2))

        async def status() -> int:
            return (await first.http.get(path)).status_code

        assert await status() == 503
        there.listen()
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(there))
        nursery.start_soon(trio.serve_listeners, answer_once, [listener])
        now_s = AWAY_S - 0.01
        assert (await status(), calls) == (503, 0)
        now_s = AWAY_S
        assert [await status() for _ in range(3)] == [200] * 3
        assert calls == 3
        nursery.cancel_scope.cancel()


async def test_a_cell_is_reached_again_before_its_first_answer(
    two: tuple[Stage, Stage], nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = two
    asked = 0
    is_asked = trio.Event()

    async def answer_the_second(stream: trio.SocketStream) -> None:
        nonlocal asked
        async with stream:
            await stream.receive_some()
            asked += 1
            is_asked.set()
            if asked == 1:
                await trio.sleep_forever()
            await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")

    now_s = 0.0
    monkeypatch.setattr("trio.current_time", lambda: now_s)
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))
        first.change(cells=cells(1, AWAY, f"http://127.0.0.1:{there.getsockname()[1]}"))
        path = unsubscribe_path(first, account_in(2))
        assert (await first.http.get(path)).status_code == 503
        there.listen()
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(there))
        nursery.start_soon(trio.serve_listeners, answer_the_second, [listener])
        now_s = AWAY_S
        nursery.start_soon(first.http.get, path)
        await is_asked.wait()
        assert (await first.http.get(path)).status_code == 200
        nursery.cancel_scope.cancel()


async def test_cells_that_disagree_answer_503_and_send_on_once(two: tuple[Stage, Stage]) -> None:
    first, second = two
    assert first.deps.cells is not None
    urls = [cell.url for cell in first.deps.cells.all]
    # By its own list the second one has the places of the first one.
    second.change(
        cells=Cells(2, [Cell(1, HALVES[1], HALVES[1], urls[0], ""), Cell(2, HALVES[0], HALVES[0], "", "")])
    )
    response = await first.http.get(unsubscribe_path(first, account_in(2)))
    assert (response.status_code, response.json()["error"]["code"]) == (503, "temporarily_unavailable")
    assert response.json()["error"]["message"].startswith("The parts of the service do not agree")


async def test_a_mark_that_no_cell_has_signed_is_refused(two: tuple[Stage, Stage]) -> None:
    first, second = two
    signed = b"1 POST /v2/control/auth/otp"
    for mark in (
        sign("guessed", b"1 LISTED " + signed[2:], at=int(NOW.timestamp())),
        sign(
            first.deps.settings.derived_key("cells").hex(), b"1 LISTED " + signed[2:], at=int(NOW.timestamp()) - 600
        ),
        "t=1,v1=",
    ):
        for here in (first, second):
            body = {"email": email_in(1)}
            response = await here.http.post("/v2/control/auth/otp", json=body, headers={MARK: mark})
            assert (response.status_code, response.json()["error"]["code"]) == (503, "temporarily_unavailable")
            assert here.sign_ins.asked == []


async def test_cells_with_different_clocks_send_a_request_on_once(two: tuple[Stage, Stage]) -> None:
    first, second = two
    second.change(wall=lambda: NOW + timedelta(minutes=10))
    move_away(first, Away(2, is_closed=False))
    move_away(second, Away(1, is_closed=False))
    response = await first.http.post("/v2/control/auth/otp", json={"email": email_in(1)})
    assert (response.status_code, response.json()["error"]["code"]) == (503, "temporarily_unavailable")
    assert first.sign_ins.asked == second.sign_ins.asked == []


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


async def test_an_operator_signs_in_at_the_cell_of_the_address(two: tuple[Stage, Stage]) -> None:
    first, _ = two
    tried = {"email": email_in(2), "otp_id": "otp_1", "otp": "123456"}
    response = await first.http.post(
        "/ops/api/session/verify", json=tried, headers={"Sec-Fetch-Site": "same-origin"}
    )
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_email")
    assert response.json()["error"]["message"].startswith("This is of cell 2; its operators' address is http://127")
    assert first.sign_ins.asked == []


class Moves:
    """Rows and lookups of a cell whose accounts are away, by the moves that it knows of; ``sessions`` are here."""

    def __init__(self, away: Away | None, *sessions: SessionRecord | None, has_arrived: bool = True) -> None:
        self.away = away
        self.has_arrived = has_arrived
        self.departed: dict[str, Away] = {}
        self._sessions = [*sessions]

    async def read(self, query: object) -> object:
        if not isinstance(query, partial):
            return FilesTotal(files=10**6, bytes=0)
        moves = FoundMoves(self.away, self.has_arrived)
        return FoundEmail(is_here=False, moves=moves) if query.func is find_email else moves

    async def run(self, *lookups: Lookup[Any, Any]) -> None:
        for lookup in lookups:
            if lookup.find is find_departed:
                lookup.found = self.departed.get(lookup.key)
            elif lookup.find is find_sessions and self._sessions:
                # The last one is found from then on.
                lookup.found = self._sessions.pop(0) if self._sessions[1:] else self._sessions[0]


def move_away(stage: Stage, away: Away | None, *sessions: SessionRecord | None, has_arrived: bool = True) -> Moves:
    moves = Moves(away, *sessions, has_arrived=has_arrived)
    stage.change(database=moves, lookups=moves)
    return moves


CREATE = {"model": "studio/image-1", "input": {"prompt": "a lighthouse"}}


async def test_a_create_follows_its_account_to_another_cell(two: tuple[Stage, Stage]) -> None:
    first, second = two
    moves = move_away(first, Away(2, is_closed=False))
    account_id = account_in(1)
    key = mint_api_key(account_id, live=False)
    known = KnownKey(account_id, "key_1", frozenset(SCOPES))
    second.deps.access.key_cache.put(key.sha256, known)
    second.accounts.answer = Refusal(code="insufficient_credit", message="no")

    async def away(_key: str, _command: object) -> object:
        raise AccountAway("moved")

    first.accounts.answer = away
    headers = {"Authorization": f"Bearer {key.secret}", "Idempotency-Key": "order-7"}
    # Its key is looked up before the body is read; or the key is known, and the account finds that it is away.
    for is_known in (False, True):
        if is_known:
            first.deps.access.key_cache.put(key.sha256, known)
        response = await first.http.post("/v2/task/create", json=CREATE, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (402, "insufficient_credit")
        [(asked, command)] = second.accounts.asked
        assert isinstance(command, CreateTask)
        assert (asked, command.request.input["prompt"]) == (account_id, "a lighthouse")
        second.accounts.asked.clear()
    assert first.deps.access.key_cache.get(key.sha256) is None
    # That cell has never got the account, as by a backup that is older than the move: its key may be valid.
    second.deps.access.key_cache.forget(key.sha256)
    move_away(second, None, has_arrived=False)
    response = await first.http.post("/v2/task/create", json=CREATE, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "account_moving")
    # The cell that it was sent on to does not look further, whatever its rows say.
    move_away(second, Away(1, is_closed=False))
    second.deps.access.key_cache.forget(key.sha256)
    response = await first.http.post("/v2/task/create", json=CREATE, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
    moves.away = Away(2, is_closed=True)
    response = await first.http.post("/v2/task/create", json=CREATE, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "account_moving")
    assert response.headers["Retry-After"] == "1"


async def test_sign_in_follows_an_account_that_was_moved(two: tuple[Stage, Stage]) -> None:
    first, second = two
    moves = move_away(first, Away(2, is_closed=False))
    rows = move_away(second, None)
    email = email_in(1)
    for here in (first, second):
        response = await here.http.post("/v2/control/auth/otp", json={"email": email})
        assert response.status_code == 200
        assert second.sign_ins.asked[-1][0] == f"email:{email}"
    assert first.sign_ins.asked == []
    rows.has_arrived = False
    second.sign_ins.asked.clear()
    lost = await first.http.post("/v2/control/auth/otp", json={"email": email})
    assert (lost.status_code, lost.json()["error"]["code"]) == (503, "account_moving")
    assert second.sign_ins.asked == []
    moves.away = Away(2, is_closed=True)
    closed = await second.http.post("/v2/control/auth/otp", json={"email": email})
    assert (closed.status_code, closed.json()["error"]["code"]) == (503, "account_moving")


async def test_a_link_to_a_task_that_was_moved_reaches_it(two: tuple[Stage, Stage]) -> None:
    first, second = two
    move_away(first, Away(2, is_closed=False))
    first.tasks.answer = Refusal(code="task_not_found", message="no")
    task = first.task(new_id_at("task", place_of(account_in(1))))
    second.tasks.answer = TaskReply(task)
    update = {"event_id": "evt_1", "request_id": task.request_id, "attempt": 1, "status": "processing"}
    body = json.dumps(update).encode()
    signature = sign("studio-callback-secret", body, at=int(NOW.timestamp()), key_name="studio")
    for here in (first, second):
        response = await here.http.post("/v2/callback", content=body, headers={"X-Callback-Signature": signature})
        assert (response.status_code, response.json()["request_id"]) == (200, task.request_id)
        [(key, command)] = second.tasks.asked
        assert (key, getattr(command, "body", b"")) == (task.request_id, body)
        second.tasks.asked.clear()


def session_in(number: int) -> tuple[SessionRecord, dict[str, str]]:
    """Return a session of an account that was opened in a cell, and the header with its token."""
    account_id = account_in(number)
    found = SessionRecord(account_id, "ses_1", "a@example.com", "User", NOW, NOW + timedelta(days=1), None, None)
    return found, {"Authorization": f"Bearer {new_session_token(account_id)}"}


SESSION_PATH = "/v2/control/session"
MOVED = Away(2, is_closed=False)


async def test_a_read_while_its_account_departs_is_answered_where_it_is(two: tuple[Stage, Stage]) -> None:
    first, second = two
    session, headers = session_in(1)
    # The rows of the session were read before the account departed.
    rows = move_away(first, MOVED, session)
    rows.departed[session.account_id] = MOVED
    move_away(second, None, session._replace(email="there@example.com"))
    response = await first.http.get(SESSION_PATH, headers=headers)
    assert (response.status_code, response.json()["email"]) == (200, "there@example.com")
    rows.departed[session.account_id] = Away(2, is_closed=True)
    response = await first.http.get(SESSION_PATH, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "account_moving")
    # It is on its way back from there, and what is read here meanwhile is not the newest.
    rows.departed[session.account_id] = MOVED
    move_away(second, Away(1, is_closed=False))
    response = await first.http.get(SESSION_PATH, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "account_moving")


async def test_a_session_that_came_back_while_it_was_looked_up_is_valid(two: tuple[Stage, Stage]) -> None:
    first, second = two
    session, headers = session_in(1)
    # The account arrives after the first look for its session, and before the look for where it is.
    move_away(first, None, None, session)
    assert (await first.http.get(SESSION_PATH, headers=headers)).status_code == 200
    # Or a second cell looked after it had departed from there, and this one's rows have it by then.
    move_away(first, MOVED, None, session)
    move_away(second, Away(1, is_closed=False))
    assert (await first.http.get(SESSION_PATH, headers=headers)).status_code == 200
    move_away(first, None, None)
    response = await first.http.get(SESSION_PATH, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_session")


async def test_what_an_account_has_accepted_is_not_sent_to_its_new_cell(two: tuple[Stage, Stage]) -> None:
    first, second = two
    session, headers = session_in(1)
    rows = move_away(first, MOVED, session)
    rows.departed[session.account_id] = MOVED
    first.accounts.answer = SessionRevokedRow(session.account_id, "ses_1", NOW)
    response = await first.http.delete(SESSION_PATH, headers=headers)
    assert (response.status_code, response.json()["session_id"]) == (200, "ses_1")
    assert [key for key, _ in first.accounts.asked] == [session.account_id]
    assert second.accounts.asked == []


@pytest.mark.parametrize("number", [1, 2])
async def test_a_request_is_not_repeated_after_its_first_command(two: tuple[Stage, Stage], number: int) -> None:
    """The change of an address asks several actors, and the account departs between two of them."""
    here, there = two[number - 1], two[2 - number]
    session, headers = session_in(1)
    assert here.deps.cells is not None
    urls = [cell.url for cell in here.deps.cells.all]
    all_here = [Cell(each, (), (), urls[each - 1], "") for each in (1, 2)]
    all_here[number - 1] = replace(all_here[number - 1], places=(range(PLACES),), emails=(range(PLACES),))
    here.change(cells=Cells(number, all_here))

    async def depart(_key: str, command: object) -> object:
        if isinstance(command, AdmitOrigin):
            return OriginAdmitted()
        raise AccountAway("it has departed by now")

    here.sign_ins.answer = depart
    # Either has the account if it is asked once more.
    move_away(here, Away(3 - number, is_closed=False), session)
    move_away(there, MOVED, None, session)
    body = {"email": "new@example.com"}
    response = await two[0].http.post("/v2/control/email", json=body, headers=headers)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (503, "temporarily_unavailable")
    assert error["message"].startswith("The outcome is unknown")
    assert len(here.sign_ins.asked) == 2
    assert there.sign_ins.asked == []


@pytest.mark.parametrize(
    ("method", "more", "sent"),
    [("GET", {}, 2), ("DELETE", {}, 1), ("DELETE", {"Idempotency-Key": "1"}, 2)],
)
async def test_a_request_whose_response_was_lost_is_sent_again_if_that_is_safe(
    two: tuple[Stage, Stage], nursery: trio.Nursery, method: str, more: dict[str, str], sent: int
) -> None:
    first, _ = two
    heads: list[bytes] = []

    async def lose(stream: trio.SocketStream) -> None:
        async with stream:
            heads.append(await stream.receive_some())

    [listener] = await nursery.start(partial(trio.serve_tcp, lose, 0, host="127.0.0.1"))
    first.change(cells=cells(1, AWAY, f"http://127.0.0.1:{listener.socket.getsockname()[1]}"))
    _, headers = session_in(2)
    response = await first.http.request(method, SESSION_PATH, headers={**headers, **more})
    assert (response.status_code, response.json()["error"]["code"]) == (503, "temporarily_unavailable")
    assert response.json()["error"]["message"].startswith("The outcome is unknown")
    assert [head.split(b" ")[:2] for head in heads] == [[method.encode(), SESSION_PATH.encode()]] * sent


@asynccontextmanager
async def four_cells(two: tuple[Stage, Stage], *, had_its_place: int) -> AsyncIterator[tuple[Stage, ...]]:
    """Serve two more cells without places; so many of them have had that of the second."""
    first, second = two
    third, fourth = another_cell(first), another_cell(first)
    assert first.deps.cells is not None
    async with third.serving() as third_url, fourth.serving() as fourth_url:
        urls = [*(cell.url for cell in first.deps.cells.all), third_url, fourth_url]
        formers = [(), (), *[HALVES[1]] * had_its_place, *[()] * (2 - had_its_place)]
        listed = [
            Cell(number, now, now, url, url, former_places=former, former_emails=former)
            for number, (url, now, former) in enumerate(zip(urls, (*HALVES, (), ()), formers, strict=True), 1)
        ]
        every = (first, second, third, fourth)
        for number, each in enumerate(every, 1):
            each.change(cells=Cells(number, listed))
        yield every
        for each in (third, fourth):
            await each.deps.state(Clients).close()


async def test_a_request_reaches_a_moved_account_over_three_cells(two: tuple[Stage, Stage]) -> None:
    session, headers = session_in(2)
    async with four_cells(two, had_its_place=1) as (first, second, third, fourth):
        # The cell of the place has never had the account; the former one has moved it.
        move_away(second, None, has_arrived=False)
        moved = move_away(third, Away(4, is_closed=False))
        move_away(fourth, None, session)
        assert (await first.http.get(SESSION_PATH, headers=headers)).status_code == 200
        move_away(fourth, None)
        response = await first.http.get(SESSION_PATH, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_session")
        moved.away = Away(4, is_closed=True)
        response = await first.http.get(SESSION_PATH, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "account_moving")


async def test_an_upload_reaches_the_second_cell_that_had_its_place(two: tuple[Stage, Stage]) -> None:
    session, headers = session_in(2)
    async with four_cells(two, had_its_place=2) as every:
        for each in every:
            move_away(each, None, session if each is every[3] else None, has_arrived=False)
        answer = await every[1].http.post("/v2/control/files", content=b"b" * 300_000, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "file_limit_reached")


async def test_an_upload_waits_for_a_cell_that_is_away_once(
    two: tuple[Stage, Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two
    assert first.deps.cells is not None
    _, headers = session_in(2)
    one, other = first.deps.cells.all
    former = [Cell(number, (), (), AWAY, AWAY, former_places=other.places) for number in (3, 4)]
    second.change(cells=Cells(2, [one, other, *former]))
    move_away(second, None, has_arrived=False)
    looks = 0
    get = httpx2.AsyncClient.get

    async def counted(*args: Any, **kwargs: Any) -> httpx2.Response:
        nonlocal looks
        looks += 1
        return await get(*args, **kwargs)

    monkeypatch.setattr("trio.current_time", lambda: 0.0)
    monkeypatch.setattr(httpx2.AsyncClient, "get", counted)
    for _ in range(3):
        answer = await second.http.post("/v2/control/files", content=b"b" * 300_000, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "temporarily_unavailable")
    assert looks == 1


async def test_a_moved_account_hides_no_other_of_its_place(two: tuple[Stage, Stage]) -> None:
    first, _ = two
    assert first.deps.cells is not None
    one, other = first.deps.cells.all
    places = range(PLACES)
    third = Cell(3, (), (), AWAY, AWAY)
    listed = [replace(one, places=(places,)), replace(other, places=(), former_places=(places,)), third]
    request = cast("HoldfastRequest", SimpleNamespace(is_settled=False, has_looked_again=False, hop=0))
    first.change(cells=Cells(1, listed))
    move_away(first, Away(3, is_closed=False))
    with pytest.raises(OfAnotherCell) as found:
        await require_here(first.deps, request, 0)
    assert [(cell.number, hop) for cell, hop in found.value.asked] == [(3, Hop.MOVED), (2, Hop.MISSED)]


async def test_one_database_needs_no_look_at_the_place(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.http.kit.forwarding.place_of_request", None)
    assert (await stage.http.get("/v2/control/session")).status_code == 401
