"""Two cells that reach each other by HTTP, and rows of accounts that have moved between them."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from ipaddress import ip_network
from typing import Any

import httpx2

from holdfast.actors.account.messages import ReceivePaymentEvent, StopMail
from holdfast.actors.sign_in.actor import new_session_token
from holdfast.actors.sign_in.messages import CodeIssued, OriginAdmitted, RequestCode
from holdfast.http.kit.credentials import KeyCache
from holdfast.http.kit.forwarding import Clients
from holdfast.ledger.alerts.alerts import Alerts
from holdfast.ledger.cells import Cell, Cells
from holdfast.ledger.orders.order import OrderResult
from holdfast.ledger.values import PLACES, new_id, place_of
from holdfast.persistence.claims.files import FilesTotal
from holdfast.persistence.queries.credentials import SessionRecord, find_sessions
from holdfast.persistence.queries.moves import (
    Away,
    FoundEmail,
    FoundMoves,
    find_departed,
    find_email,
    find_moves_of_place,
    find_unlisted,
    has_departed_since,
)
from holdfast.persistence.queries.orders import NamedOrder
from holdfast.persistence.records.move_tables import AccountMove, MoveState, account_moves
from holdfast.persistence.server.lookups import Lookup

from .api import Api
from .fake_actors import FakeDirectory
from .identities import NOW
from .order_stand_ins import make_order
from .stage import Stage

AWAY = "http://127.0.0.1:1"
HALVES = ((range(PLACES // 2),), (range(PLACES // 2, PLACES),))
MOVED = Away(2, is_closed=False)
SESSION_PATH = "/v2/control/session"


def cells(own: int, *urls: str) -> Cells:
    """Return two cells with half of the places each, as one of them sees them."""
    halves = zip(HALVES, urls, strict=True)
    return Cells(own, [Cell(number, half, half, url, url) for number, (half, url) in enumerate(halves, 1)])


def account_in(number: int) -> str:
    """Return the id of an account with a place of a cell."""
    return next(each for each in iter(lambda: new_id("acct"), None) if place_of(each) in HALVES[number - 1][0])


def email_in(number: int) -> str:
    """Return an e-mail address of a cell."""
    emails = (f"{each}@example.com" for each in range(1000))
    return next(each for each in emails if place_of(each) in HALVES[number - 1][0])


def session_in(number: int) -> tuple[SessionRecord, dict[str, str]]:
    """Return a session of an account that was opened in a cell, and the header with its token."""
    account_id = account_in(number)
    found = SessionRecord(account_id, "ses_1", "a@example.com", "User", NOW, NOW + timedelta(days=1), None, None)
    return found, {"Authorization": f"Bearer {new_session_token(account_id)}"}


def unsubscribe_path(stage: Stage, account_id: str) -> str:
    """Return the path of a link that names an account."""
    return stage.deps.urls.unsubscribe_url(account_id).removeprefix(stage.deps.urls.base)


async def answer(_key: str, command: object) -> object:
    """Answer as the actors of a cell where all goes well."""
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
        self.unlisted: list[int] = []

    async def read(self, query: object) -> NamedOrder | FoundEmail | FoundMoves | list[int] | bool | None:
        if isinstance(query, partial) and query.func is has_departed_since:
            return self.has_departed
        if isinstance(query, partial) and query.func is find_email:
            return FoundEmail(is_here=False)
        if isinstance(query, partial) and query.func is find_moves_of_place:
            return FoundMoves()
        if isinstance(query, partial) and query.func is find_unlisted:
            return self.unlisted
        return self.order


def another_cell(stage: Stage) -> Stage:
    """Another cell with the same secrets."""
    app = copy.copy(stage.app)
    accounts, sign_ins, tasks = FakeDirectory(), FakeDirectory(), FakeDirectory()
    app.deps = replace(stage.deps, accounts=accounts, sign_ins=sign_ins, tasks=tasks)
    return replace(stage, app=app, accounts=accounts, sign_ins=sign_ins, tasks=tasks)


@asynccontextmanager
async def two_cells(stage: Stage) -> AsyncIterator[tuple[Stage, Stage]]:
    """Serve two cells, which reach each other by HTTP."""
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
        if query.func is find_unlisted:
            return []
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
    """Let a cell have such rows."""
    moves = Moves(away, *sessions, has_arrived=has_arrived)
    stage.change(database=moves, lookups=moves)
    return moves


async def write_move(api: Api, account_id: str, state: MoveState) -> None:
    """Write that an account leaves for the second cell, or has left."""
    zeros = bytes(32)
    move = AccountMove(account_id, "mov_1", "out", state, 2, place_of(account_id), NOW, 0, 0, 0, 0, zeros, zeros)
    await api.write(account_moves.insert().values(move._asdict()))


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
