"""The cells, and which of them has what is sought."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from holdfast.http.endpoints.operators.cells import CellList, list_cells
from holdfast.http.endpoints.sign_in import read_email
from holdfast.http.kit.calls import Auth
from holdfast.ledger.cells import Cell
from holdfast.ledger.ids import place_carried_by, place_of
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.belonging import what_belongs_to
from holdfast.persistence.queries.moves import find_away
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


async def cell_elsewhere(visit: Visit, sought: str) -> Cell | None:
    """Return the other cell to which an id or an e-mail address leads, None if there is none.

    What was moved here belongs to this one. While the database is away it is not known.
    """
    with suppress(DatabaseAway):
        return await _find(visit, sought)
    return None


async def _find(visit: Visit, sought: str) -> Cell | None:
    cells = visit.call.deps.cells
    if cells is None:
        return None
    if "@" in sought:
        email = read_email(sought)
        found = cells.own if isinstance(email, Refusal) else cells.of_email(email)
    elif sought.startswith(("acct_", *CARRYING)):
        place = place_carried_by(sought) if sought.startswith(CARRYING) else place_of(sought)
        found = cells.of_place(place)
        if found is cells.own:
            away = await visit.call.read(lambda rows: find_away(rows, place))
            found = found if away is None else cells.of_number(away.cell) or found
    else:
        return None
    if found is cells.own:
        return None
    belonging = await visit.call.read(lambda rows: what_belongs_to(rows, sought, digits=None, key_prefix=None))
    return found if belonging.email is None else None
