"""Requests that arrive at the wrong cell: who answers, and what it is sent."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from datetime import timedelta

import pytest

from holdfast.actors.account.messages import CreateTask, StopMail
from holdfast.actors.sign_in.messages import AddressGiven
from holdfast.actors.task.messages import ReceiveProviderUpdate, TaskReply
from holdfast.http.kit.credentials import KnownKey, mint_api_key
from holdfast.http.kit.forwarding import MARK, Clients
from holdfast.ledger.api_keys import SCOPES
from holdfast.ledger.cells import Cell, Cells
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import PLACES, new_id_at, place_of
from holdfast.persistence.queries.moves import Away
from holdfast.providers.signatures import sign
from holdfast.sockets.listening import SlotSockets, Sockets
from holdfast.telemetry.reports.reporter import Reporter
from holdfast.wiring.http_server import HttpServer

from .cell_stages import AWAY, HALVES, account_in, cells, email_in, move_away, unsubscribe_path
from .identities import NOW
from .stage import Stage


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


async def test_an_operators_code_is_checked_by_the_cell_of_the_address(
    two: tuple[Stage, Stage],
) -> None:
    first, second = two
    email, headers = email_in(2), {"Sec-Fetch-Site": "same-origin", "X-Forwarded-For": "203.0.113.7"}
    sent = await first.http.post("/ops/api/session/code", json={"email": email}, headers=headers)
    assert (sent.status_code, sent.json()["otp_id"]) == (200, "otp_1")
    assert [key for key, _ in second.sign_ins.asked] == ["origin:203.0.113.7", f"email:{email}"]
    tried = {"email": email, "otp_id": "otp_1", "otp": "123456"}
    answer = await first.http.post("/ops/api/session/verify", json=tried, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_otp")
    second.sign_ins.answer = Refusal(code="otp_rate_limited", message="Too many.", retry_after_s=47)
    refused = await first.http.post("/ops/api/session/code", json={"email": email}, headers=headers)
    assert (refused.json()["error"]["code"], refused.headers["Retry-After"]) == ("otp_rate_limited", "47")
    assert first.sign_ins.asked == []
    await first.deps.state(Clients).close()
    first.change(cells=cells(1, AWAY, AWAY))
    for path, body in (("code", {"email": email}), ("verify", tried)):
        answer = await first.http.post(f"/ops/api/session/{path}", json=body, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "temporarily_unavailable")


async def test_an_operator_signs_in_where_cells_had_the_address(
    two: tuple[Stage, Stage],
) -> None:
    first, second = two
    assert first.deps.cells is not None
    one, other = first.deps.cells.all
    listed = [replace(one, emails=(range(PLACES),)), replace(other, emails=(), former_emails=HALVES[1])]
    for number, each in enumerate(two, 1):
        each.change(cells=Cells(number, listed))
    email, headers = email_in(2), {"Sec-Fetch-Site": "same-origin"}
    second.sign_ins.answer = AddressGiven()
    for here in two:
        sent = await here.http.post("/ops/api/session/code", json={"email": email}, headers=headers)
        assert (sent.status_code, sent.json()["otp_id"]) == (200, "otp_1"), sent.text
    assert [key for key, _ in first.sign_ins.asked] == ["origin:127.0.0.1", f"email:{email}"] * 2


async def test_one_database_needs_no_look_at_the_place(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.http.kit.forwarding.place_of_request", None)
    assert (await stage.http.get("/v2/control/session")).status_code == 401
