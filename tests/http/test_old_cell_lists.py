"""Processes with the list of before while a cell is added: what they do not find may be in that one."""

from __future__ import annotations

import json

import httpx2
import pytest

from holdfast.actors.sign_in.actor import new_session_token
from holdfast.actors.sign_in.messages import GiveAddress
from holdfast.ledger.cells import Cell, Cells
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import PLACES, new_id_at, place_of
from holdfast.persistence.records.tables import given_emails
from holdfast.providers.signatures import sign

from .api import Api
from .cell_stages import AWAY, HALVES, account_in, cells, email_in
from .identities import NOW
from .stage import Stage
from .test_cell_card_events import send_event

UNLISTED = 3


async def give_address(api: Api) -> None:
    """Let a process with the newer list have given an address to the cell that is added."""
    await api.write(given_emails.insert().values(email_sha256=bytes(32), cell=UNLISTED, at=api.now))


def moving(response: httpx2.Response) -> bool:
    code = response.json()["error"]["code"]
    return (response.status_code, code, response.headers["Retry-After"]) == (503, "account_moving", "1")


@pytest.mark.parametrize("has_given", [False, True])
async def test_what_an_old_process_does_not_find_may_be_in_the_added_cell(api: Api, has_given: bool) -> None:
    api.change(cells=cells(1, AWAY, AWAY))
    if has_given:
        await give_address(api)
    api.tasks.answer = Refusal(code="task_not_found", message="no")
    place = place_of(account_in(1))
    token, task_id = new_session_token(account_in(1)), new_id_at("task", place)
    update = {"event_id": "evt_1", "request_id": task_id, "attempt": 1, "status": "processing"}
    body = json.dumps(update).encode()
    signature = sign("studio-callback-secret", body, at=int(NOW.timestamp()), key_name="studio")
    responses = [
        await api.call("GET", "/v2/control/session", credential=token),
        await api.call("POST", "/v2/callback", content=body, headers={"X-Callback-Signature": signature}),
    ]
    if has_given:
        assert [moving(each) for each in responses] == [True, True]
    else:
        assert [each.status_code for each in responses] == [401, 404]


@pytest.mark.parametrize("named", [True, False])
async def test_a_card_event_of_the_added_cell_is_sent_again(api: Api, named: bool) -> None:
    # No other cell is asked.
    api.change(cells=Cells(1, [Cell(1, (range(PLACES),), (range(PLACES),), AWAY, AWAY)]))
    _, unmatched = api.configure_card()
    metadata = {"order_id": new_id_at("ord", 0)} if named else {}
    status = 404 if named else 200
    assert (await send_event(api, **metadata)).status_code == status
    assert len(unmatched.stored) == 1
    await give_address(api)
    assert moving(await send_event(api, **metadata))
    assert len(unmatched.stored) == 1


async def test_a_card_event_that_names_no_order_waits_for_lists_that_agree(two: tuple[Stage, Stage]) -> None:
    first, second = two
    _, unmatched = first.configure_card()
    second.configure_card()
    assert (await send_event(first)).json()["ignored"] is True
    assert len(unmatched.stored) == 1
    assert second.deps.cells is not None
    second.change(cells=Cells(2, [*second.deps.cells.all, Cell(UNLISTED, (), (), AWAY, AWAY)]))
    response = await send_event(first)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "temporarily_unavailable")
    assert len(unmatched.stored) == 1
    # What the cells say of their lists is not for clients.
    assert "Holdfast-Cells" not in response.headers


async def test_an_old_process_gives_no_address_of_its_own(two: tuple[Stage, Stage]) -> None:
    first, second = two
    assert first.deps.cells is not None
    one, other = first.deps.cells.all
    # The second cell has got all addresses of the first by its list.
    everything = (range(PLACES),)
    second.change(
        cells=Cells(
            2,
            [
                Cell(1, one.places, (), one.url, "", former_emails=HALVES[0]),
                Cell(2, other.places, everything, other.url, ""),
            ],
        )
    )
    response = await second.http.post("/v2/control/auth/otp", json={"email": email_in(1)})
    assert moving(response)
    assert not [each for _, each in first.sign_ins.asked if isinstance(each, GiveAddress)]
    assert second.sign_ins.asked == []
