"""All cells: each says of itself what its operators read there, and one that is away breaks nothing."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Final, TypeVar

import httpx2
import msgspec
import trio

from holdfast.http.endpoints.operators.processes import Tree
from holdfast.http.kit.actions import OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.forwarding import LOST, Clients, read_answer
from holdfast.http.kit.routes import Outcome
from holdfast.ledger.cells import Cell
from holdfast.ledger.public_types import Amount
from holdfast.ledger.values import place_digits
from holdfast.persistence.queries.books import LiabilitiesBody

T = TypeVar("T")

ANSWER_S: Final = 2.0
"""How long each cell is waited for."""

route = OperatorRoutes("Cells")


class CellBody(msgspec.Struct, frozen=True, kw_only=True):
    """A cell, with what it says of itself: null while it is away, or does not say it in time."""

    number: int
    """Its number in the list of cells."""
    is_this: bool
    """Whether it is the cell that answers."""
    is_reached: bool
    """Whether a member of it answers the operators of this one."""
    places: Annotated[str, msgspec.Meta(examples=["000-7ff"])]
    """The places that it has."""
    operators_url: str
    """Where its operators call it."""
    members: int | None
    """How many processes it has."""
    accounts: int | None
    """How many accounts it has."""
    held: Amount | None
    """The held credit of all of them."""
    holds_open: int | None
    """How many holds are open: each task that has not ended has one."""


class CellList(msgspec.Struct, frozen=True):
    """All cells; none if the service has one database."""

    data: list[CellBody]
    """The cells, in the order of the list."""


@route.read("/ops/api/cells", "List all cells, each with what it says of itself", CellList)
async def list_cells(call: Call) -> Outcome:
    """Each is asked with the operators' token of this one, which all must have, for two seconds at most."""
    deps = call.deps
    if deps.cells is None:
        return CellList([])
    cells = deps.cells.all
    trees: dict[int, Tree | None] = {}
    books: dict[int, LiabilitiesBody | None] = {}
    headers = {"Authorization": f"Bearer {deps.settings.operator_token}"}
    async with (
        httpx2.AsyncClient(
            trust_env=False, verify=deps.state(Clients).ssl_context, headers=headers, timeout=ANSWER_S
        ) as client,
        trio.open_nursery() as nursery,
    ):

        async def ask(cell: Cell, path: str, kind: type[T], answers: dict[int, T | None]) -> None:
            answers[cell.number] = await _read(client, cell.operators_url + path, kind)

        for cell in cells:
            nursery.start_soon(ask, cell, "/ops/api/tree", Tree, trees)
            nursery.start_soon(ask, cell, "/ops/api/books/liabilities", LiabilitiesBody, books)
    return CellList(
        [
            CellBody(
                number=cell.number,
                is_this=cell is deps.cells.own,
                is_reached=(tree := trees[cell.number]) is not None,
                places=", ".join(map(_shown, cell.places)),
                operators_url=cell.operators_url,
                members=None if tree is None else len(tree.members),
                accounts=None if (found := books[cell.number]) is None else found.accounts,
                held=None if found is None else found.held,
                holds_open=None if found is None else found.holds_open,
            )
            for cell in cells
        ]
    )


async def _read(client: httpx2.AsyncClient, url: str, kind: type[T]) -> T | None:
    """Return what a cell answers, None without a valid answer in time."""
    with trio.move_on_after(ANSWER_S), suppress(*LOST):
        async with client.stream("GET", url) as answer:
            content = await read_answer(answer.aiter_bytes())
        if answer.status_code == 200:
            return msgspec.json.decode(content, type=kind)
    return None


def _shown(places: range) -> str:
    return f"{place_digits(places.start)}-{place_digits(places.stop - 1)}"
