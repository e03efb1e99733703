"""Whether what a request names is in this cell, and which cells to ask if it is not.

:mod:`holdfast.http.kit.forwarding` asks them. A cell is asked with a reason, and itself asks others only with a
greater one, so no request goes in circles.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import partial

import structlog

from holdfast.actors.runtime.faults import AccountAway
from holdfast.actors.sign_in.messages import GiveAddress
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.requests import HoldfastRequest
from holdfast.ledger.cells import Cell, Cells
from holdfast.persistence.queries.moves import find_email, find_moves_of_place, find_unlisted

log = structlog.get_logger(__name__)


class Hop(IntEnum):
    """Why a cell is asked."""

    LISTED = 1
    """By the list, what the request names is there, or that cell knows where it is."""
    MISSED = 2
    """It is not in another cell that may have it."""
    MOVED = 3
    """The account was moved there."""


class Elsewhere(Exception):
    """What a request names may be in another cell: the request is sent on, or served again."""


class OfAnotherCell(Elsewhere):
    """The request is to be answered by the first of some cells that has what it names.

    The ``former`` ones are asked after the others, as what is missing.
    """

    def __init__(self, cells: Sequence[Cell], hop: Hop, former: Sequence[Cell] = ()) -> None:
        super().__init__(f"{hop.name.lower()}: {', '.join(str(cell.number) for cell in cells)}")
        self.cells = cells
        self.asked = (*((cell, hop) for cell in cells), *((cell, Hop.MISSED) for cell in former))


class NotHere(Elsewhere):
    """The cell that has sent this request on must look elsewhere: this one does not have what it names."""


class LookAgain(Elsewhere):
    """What was not found may have come from another cell since."""


def require_place(deps: Dependencies, request: HoldfastRequest, place: int) -> None:
    """Raise :class:`OfAnotherCell` if no account of a place can be here. Afterwards one may be missing still."""
    if deps.cells is not None and request.hop < Hop.MISSED:
        cells = deps.cells.of_place(place)
        if deps.cells.own not in cells:
            raise OfAnotherCell(cells[:1], Hop.LISTED)


async def require_here(deps: Dependencies, request: HoldfastRequest, place: int) -> None:
    """Return if what was not found here, of an account of a place, is in no other cell.

    Raises :class:`OfAnotherCell`, :class:`AccountAway` if it may be closed for a move, or in a cell that this
    process does not know, :class:`NotHere`, or :class:`LookAgain`.
    """
    if deps.cells is None:
        return
    if not request.is_settled:
        await _require_unmoved(deps, deps.cells, request, place)
    if await deps.database.read(partial(find_unlisted, cells=deps.cells)):
        raise AccountAway("an address was given to a cell that is not in this process's list")


async def _require_unmoved(deps: Dependencies, cells: Cells, request: HoldfastRequest, place: int) -> None:
    """Raise as :func:`require_here` does if by the list or the moves another cell may have what is not here."""
    away, has_arrived = await deps.database.read(partial(find_moves_of_place, place=place))
    if away is not None and away.is_closed:
        raise AccountAway("an account of the place is closed for a move")
    others = [cell for cell in cells.of_place(place) if cell is not cells.own]
    if away is not None:
        # That is of some accounts of the place; others may be where they were before it was this cell's.
        raise_moved(deps, request, away.cell, others if request.hop < Hop.MISSED else ())
    if has_arrived and not request.has_looked_again:
        raise LookAgain
    if request.hop == Hop.MOVED and not has_arrived:
        raise _missing(request)
    if request.hop >= Hop.MISSED:
        raise NotHere
    if others:
        raise OfAnotherCell(others, Hop.MISSED)


async def require_email(deps: Dependencies, request: HoldfastRequest, email: str, *, gives: bool = False) -> None:
    """Return if the account of a normalised e-mail address is here, or is to be opened here.

    The cell that the list names opens one once each cell that had the address before has given it: with ``gives``
    a cell does that when it is asked. Raises as :func:`require_here` does.
    """
    if deps.cells is None:
        return
    own, (home, *former) = deps.cells.own, deps.cells.of_email(email)
    if request.hop < Hop.MISSED and own not in (home, *former):
        raise OfAnotherCell([home], Hop.LISTED)
    found = await deps.database.read(partial(find_email, email=email))
    if found.is_here:
        return
    away = found.moves.away
    if away is not None:
        if away.is_closed or request.is_settled:
            raise AccountAway("the account of the address is closed for a move")
        raise_moved(deps, request, away.cell)
    if request.hop == Hop.MOVED:
        if not found.moves.has_arrived:
            raise _missing(request)
    else:
        await _require_unknown_email(deps, request, email, found.given_to, gives=gives)


def _missing(request: HoldfastRequest) -> AccountAway:
    """Return what is raised if an account that another cell says it has moved here has never arrived.

    To say that its key is not valid would have its owner throw the key away.
    """
    log.error("an account that was moved here is missing: the database may be older", path=request.path)
    return AccountAway("by this database the account has not arrived")


async def _require_unknown_email(
    deps: Dependencies, request: HoldfastRequest, email: str, given_to: int | None, *, gives: bool
) -> None:
    """Return if an account is to be opened here for an address of which no account is known here."""
    assert deps.cells is not None
    own, (home, *former) = deps.cells.own, deps.cells.of_email(email)
    if request.hop == Hop.MISSED:
        if home is own:
            raise AccountAway("by this process's list the address is this cell's")
        if given_to is None and gives:
            await deps.sign_ins.ref(f"email:{email}").ask(GiveAddress(home.number))
        elif given_to is None:
            # A code that was sent from here, by a process with the list of before, may still be used.
            return
        raise NotHere
    if given_to is not None:
        # A process with the list of before reads here that the address is not this cell's any more.
        home = next((cell for cell in deps.cells.all if cell.number == given_to), own)
    if home is not own:
        raise OfAnotherCell([home], Hop.LISTED)
    if given_to is not None:
        raise AccountAway("the cell that has the address is not in this process's list")
    if former and not request.is_settled:
        raise OfAnotherCell(former, Hop.MISSED)


def raise_moved(deps: Dependencies, request: HoldfastRequest, number: int, former: Sequence[Cell] = ()) -> None:
    """Raise :class:`OfAnotherCell` with the cell an account was moved to, and the ``former`` ones of its place.

    Raises :class:`NotHere` instead if the request has come here for that: the account is on its way back.
    """
    assert deps.cells is not None
    cell = deps.cells.of_number(number)
    if request.hop == Hop.MOVED:
        raise NotHere
    if cell is None:
        raise AccountAway(f"cell {number} is not in this process's list")
    raise OfAnotherCell([cell], Hop.MOVED, [each for each in former if each is not cell])
