"""``holdfast move-account``: what it refuses before anything is changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import LiteralString

import msgspec
import psycopg
import pytest
from tests.fresh_databases import FreshDatabases

from holdfast.commands.move_account import EndOfMove, move_account
from holdfast.ledger.cells import Cell
from holdfast.ledger.values import PLACES
from holdfast.persistence.operators.moves import MoveRefused
from holdfast.settings.settings import load_settings

ALL = (range(PLACES),)
ACCOUNT = "acct_bob"


class Pair:
    """Two cells of three: the first one has accounts. The third one has no database here."""

    def __init__(self, folder: Path, *urls: str) -> None:
        settings = load_settings({"HOLDFAST_DATA_DIR": str(folder), "HOLDFAST_ENV": "development"})
        self._ends = [
            EndOfMove(msgspec.structs.replace(settings, cell=number), url) for number, url in enumerate(urls, 1)
        ]

    def move(self, source: int, target: int, *, email_of: int, place_of: int = 1) -> None:
        """Move the account while its e-mail address and its place are of a cell; the place was cell 1's before."""
        cells = tuple(
            Cell(
                number,
                ALL if number == place_of else (),
                ALL if number == email_of else (),
                "",
                "",
                former_places=ALL if number == 1 != place_of else (),
            )
            for number in (1, 2, 3)
        )
        source_end, target_end = (
            each._replace(settings=msgspec.structs.replace(each.settings, cells=cells))
            for each in (self._ends[source - 1], self._ends[target - 1])
        )
        move_account(ACCOUNT, source_end, target_end, say=lambda _: None)

    def execute(self, statement: LiteralString) -> None:
        """Change rows of cell 1."""
        with psycopg.connect(self._ends[0].url) as rows:
            rows.execute(statement)

    def cells_of(self) -> list[int]:
        """The cells that have the account."""
        found = []
        for number, end in enumerate(self._ends, 1):
            with closing(psycopg.connect(end.url)) as rows:
                if rows.execute("select id from accounts where id = %s", [ACCOUNT]).fetchone():
                    found.append(number)
        return found


@pytest.fixture
def pair(books_url: str, fresh_databases: FreshDatabases, tmp_path: Path) -> Iterator[Pair]:
    target_url = fresh_databases.take()
    yield Pair(tmp_path, books_url, target_url)
    fresh_databases.drop(target_url)


def test_an_account_moves_where_its_address_still_finds_it(pair: Pair) -> None:
    # It was opened in cell 1, where an earlier account of its address had been moved to from cell 3.
    with pytest.raises(MoveRefused, match="is of cell 3, which would not find it in the other cell"):
        pair.move(1, 2, email_of=3)
    assert pair.cells_of() == [1]
    pair.move(1, 2, email_of=2)
    pair.move(2, 1, email_of=2)
    pair.move(1, 2, email_of=1)
    assert pair.cells_of() == [2]
    # One that is there already can come back.
    pair.move(2, 1, email_of=3)
    assert pair.cells_of() == [1]


def test_an_account_moves_where_requests_still_find_it(pair: Pair) -> None:
    # It was opened in cell 1, before the place became cell 3's.
    pair.move(1, 2, email_of=1, place_of=3)
    pair.move(2, 1, email_of=1, place_of=3)
    # As if it had come from cell 3, whose row says that it is in cell 1.
    pair.execute("update account_moves set cell = 3 where state = 'arrived'")
    with pytest.raises(MoveRefused, match="came from cell 3, which would not find it"):
        pair.move(1, 2, email_of=1, place_of=3)
    assert pair.cells_of() == [1]
    # The cell that has the place is asked first.
    pair.move(1, 2, email_of=1)
    assert pair.cells_of() == [2]
