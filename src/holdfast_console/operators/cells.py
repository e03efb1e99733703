"""The cells, and which of them has what is sought."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection

from holdfast.http.endpoints.operators.cells import CellList, list_cells
from holdfast.http.endpoints.sign_in import read_email
from holdfast.http.kit.calls import Auth
from holdfast.ledger.cells import Cell, Cells
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import place_carried_by, place_of
from holdfast.persistence.queries.belonging import what_belongs_to
from holdfast.persistence.queries.moves import find_moves_of_email, find_moves_of_place
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast_console.rendering import Html
from holdfast_console.views import ViewResult, ViewTable, Visit

view = ViewTable(Auth.OPERATOR_READ)

CARRYING: Final = ("task_", "ord_", "file_", "asset_")
"""The ids that carry the place of their account."""


@view("/ops/cells")
async def cells(visit: Visit) -> ViewResult:
    """All cells, each with a link to its own pages."""
    return Html("cells.html", {"cells": await visit.read(list_cells, CellList)})


async def cells_elsewhere(visit: Visit, sought: str) -> Sequence[Cell]:
    """Return the other cells that may have what an id or an e-mail address names; none if it is here, or unknown.

    While the database is away it is not known.
    """
    cells = visit.call.deps.cells
    if cells is None:
        return ()
    try:
        return await visit.call.read(lambda rows: _elsewhere(rows, cells, sought))
    except DatabaseAway:
        return ()


def _elsewhere(rows: Connection, cells: Cells, sought: str) -> Sequence[Cell]:
    if "@" in sought:
        email = read_email(sought)
        if isinstance(email, Refusal):
            return ()
        found, moves = cells.of_email(email), find_moves_of_email(rows, email)
    elif sought.startswith(("acct_", *CARRYING)):
        place = place_carried_by(sought) if sought.startswith(CARRYING) else place_of(sought)
        found, moves = cells.of_place(place), find_moves_of_place(rows, place)
    else:
        return ()
    moved_to = None if moves.away is None else cells.of_number(moves.away.cell)
    others = dict.fromkeys(found if moved_to is None else (moved_to, *found))
    others.pop(cells.own, None)
    if not others or what_belongs_to(rows, sought, digits=None, key_prefix=None).email is not None:
        return ()
    return [*others]
