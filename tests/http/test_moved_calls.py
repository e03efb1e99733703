"""Requests of accounts that are being moved to another cell, or were."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from holdfast.actors.account.messages import CreateTask
from holdfast.actors.runtime.faults import AccountAway
from holdfast.actors.sign_in.actor import new_session_token
from holdfast.actors.sign_in.messages import AdmitOrigin, OriginAdmitted
from holdfast.actors.task.messages import TaskReply
from holdfast.http.kit.credentials import KnownKey, mint_api_key
from holdfast.http.kit.other_cells import Hop, OfAnotherCell, require_here
from holdfast.http.kit.requests import HoldfastRequest
from holdfast.ledger.api_keys import SCOPES
from holdfast.ledger.cells import Cell, Cells
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import PLACES, new_id_at, place_of
from holdfast.persistence.queries.moves import Away
from holdfast.persistence.records.move_tables import MoveState
from holdfast.persistence.records.rows import SessionRevokedRow
from holdfast.providers.signatures import sign

from .api import Api
from .cell_stages import (
    AWAY,
    MOVED,
    SESSION_PATH,
    account_in,
    cells,
    email_in,
    four_cells,
    move_away,
    session_in,
    write_move,
)
from .identities import NOW
from .page_reader import SAME_ORIGIN, PageReader
from .stage import Stage

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


MOVING = ("account_moving", "The account is being moved to another database. Try again in a few seconds.")
ELSEWHERE = (
    "temporarily_unavailable",
    "The part of the service that has this account is away; try again later.",
)


@pytest.mark.parametrize(("state", "said"), [("closed", MOVING), ("moved", ELSEWHERE)])
async def test_pages_and_agents_say_that_the_account_departs(
    api: Api, state: MoveState, said: tuple[str, str]
) -> None:
    account_id = account_in(1)
    await api.add_account(account_id)
    await api.add_session(account_id, "ses_9", token := new_session_token(account_id))
    key = await api.add_key(account_id, "key_9")
    api.change(cells=cells(1, AWAY, AWAY))
    browser = PageReader(api, {**SAME_ORIGIN, "Cookie": f"holdfast_account={token}"})
    form = {
        "csrf_token": await browser.hidden("/account/keys"),
        "return_to": "/account/keys",
        "scope.tasks:read": "on",
    }
    # It departs after its credentials are read; what it has moved is sent on to the other cell, which is away.
    await write_move(api, account_id, state)
    api.accounts.answer = AccountAway("it has departed by now")
    page = await browser.send("/account/keys/create", **form)
    assert (page.status_code, page.headers["Retry-After"]) == (503, "1")
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "Not available now" in page.text
    assert said[1] in page.text
    call = {"name": "create_task", "arguments": {**CREATE, "max_credits": "0.05"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    answer = await api.call("POST", "/mcp", message, credential=key.secret)
    error = answer.json()["error"]
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert (error["code"], error["message"]) == said
