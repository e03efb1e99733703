"""Cells: ordinary installations, each with a database of its own, that serve one public address together.

Each place (:mod:`holdfast.ledger.values`) belongs to one cell, whose new accounts have only its places. The hash of
an e-mail address leads to a cell in the same way; that cell's database knows where the address has its account.
All cells read the same list, a TOML file with a table ``[[cell]]`` for each. A service without one is not divided.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from holdfast.ledger.values import PLACES, new_id, new_id_at, place_of

CELLS_MAX: Final = 64

_RANGE = re.compile(r"([0-9a-f]{3})(?:-([0-9a-f]{3}))?", re.ASCII)
_URL = r"^https?://[^\s/?#@]+$"

Url = Annotated[str, msgspec.Meta(pattern=_URL, description="http:// or https:// with a host and perhaps a port")]


@dataclass(frozen=True, slots=True)
class Cell:
    """One installation. ``url`` is where other cells reach its customers' routes, ``operators_url`` its others."""

    number: int
    places: tuple[range, ...]
    emails: tuple[range, ...]
    """The places of the e-mail addresses whose account it knows."""
    url: str
    operators_url: str
    former_places: tuple[range, ...] = ()
    """Places that another cell has now, of which it has accounts still."""
    former_emails: tuple[range, ...] = ()


class Cells:
    """All cells, as one of them sees them."""

    def __init__(self, own: int, cells: Sequence[Cell]) -> None:
        self.all: Final = tuple(cells)
        [self.own] = (cell for cell in cells if cell.number == own)
        self.others: Final = tuple(cell for cell in cells if cell is not self.own)
        self._of_places: Final = _by_place([(cell, cell.places, cell.former_places) for cell in cells])
        self._of_emails: Final = _by_place([(cell, cell.emails, cell.former_emails) for cell in cells])

    def of_number(self, number: int) -> Cell | None:
        """Return a cell by its number, None if there is none."""
        return next((cell for cell in self.all if cell.number == number), None)

    def of_place(self, place: int) -> tuple[Cell, ...]:
        """Return the cell that has a place, then those that had it. An account that was moved is in another."""
        return self._of_places[place]

    def of_email(self, email: str) -> tuple[Cell, ...]:
        """Return the cell that knows where a normalised e-mail address has its account, then those that knew."""
        return self._of_emails[place_of(email)]

    def new_account_id(self) -> str:
        """Return a new account's id, whose place is one of this cell's."""
        while self.of_place(place_of(account_id := new_id("acct")))[0] is not self.own:
            pass
        return account_id

    def new_check_id(self) -> str:
        """Return a new id of a provider check, which carries a place of this cell."""
        return new_id_at("check", self.own.places[0].start)


def _by_place(
    ranges: Sequence[tuple[Cell, tuple[range, ...], tuple[range, ...]]],
) -> dict[int, tuple[Cell, ...]]:
    cells: dict[int, tuple[Cell, ...]] = {}
    for cell, now, _ in ranges:
        cells |= {place: (cell,) for places in now for place in places}
    for cell, _, before in ranges:
        cells |= {place: (*cells[place], cell) for places in before for place in places}
    return cells


class _Table(msgspec.Struct, forbid_unknown_fields=True):
    number: Annotated[int, msgspec.Meta(ge=1, le=CELLS_MAX)]
    places: str
    url: Url
    operators_url: Url
    emails: str = ""
    former_places: str = ""
    former_emails: str = ""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    cell: Annotated[tuple[_Table, ...], msgspec.Meta(min_length=1)]


def parse_cells(text: str) -> tuple[Cell, ...]:
    """Return the cells of a file, among which all places and all e-mail addresses are divided.

    Raises ValueError with the rest of the sentence that begins with the file's name.
    """
    try:
        tables = msgspec.convert(tomllib.loads(text), _File).cell
    except tomllib.TOMLDecodeError as fault:
        raise ValueError(f"is not TOML: {fault}") from None
    cells = tuple(
        Cell(
            each.number,
            _ranges(each.places),
            _ranges(each.emails),
            each.url,
            each.operators_url,
            _ranges(each.former_places),
            _ranges(each.former_emails),
        )
        for each in tables
    )
    if len({cell.number for cell in cells}) < len(cells):
        raise ValueError("has two cells with one number")
    if not all(cell.places for cell in cells):
        raise ValueError("has a cell without places, in which no account can be opened")
    for name, now, former in (("places", "places", "former_places"), ("emails", "emails", "former_emails")):
        _check_division(name, [getattr(cell, now) for cell in cells])
        for cell in cells:
            _check_once(name, (*getattr(cell, now), *getattr(cell, former)))
    return cells


def _ranges(text: str) -> tuple[range, ...]:
    """Read places such as ``000-7ff,a00``; both ends belong to a range."""
    ranges = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        found = _RANGE.fullmatch(part)
        if found is None or not (each := range(int(found[1], 16), int(found[2] or found[1], 16) + 1)):
            raise ValueError(f"has the range {part!r}; a range is three hex digits, or two such as 000-7ff")
        ranges.append(each)
    return tuple(ranges)


def _check_once(name: str, ranges: Sequence[range]) -> None:
    """Check that a cell has no place twice, now and before."""
    if len({place for places in ranges for place in places}) < sum(map(len, ranges)):
        raise ValueError(f"names one of its {name} twice in a cell")


def _check_division(name: str, of_cells: Sequence[tuple[range, ...]]) -> None:
    """Check that every place is in exactly one range."""
    found = [place for ranges in of_cells for places in ranges for place in places]
    if len(set(found)) < len(found):
        raise ValueError(f"gives one of its {name} to two cells")
    if len(found) < PLACES:
        raise ValueError(f"gives only {len(found)} of the {PLACES} {name} to a cell")
