"""Cells that cannot be reached, or whose answer is lost."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from tests.certificates import Authority

from holdfast.http.kit.forwarding import AWAY_S
from holdfast.ledger.cells import Cell, Cells
from holdfast.ledger.values import PLACES, new_id_at

from .cell_stages import AWAY, SESSION_PATH, account_in, cells, move_away, session_in, unsubscribe_path
from .stage import Stage


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
