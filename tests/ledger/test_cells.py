"""The list of cells: which cell has a place, which knows an e-mail address, and what a list may not say."""

from __future__ import annotations

import pytest

from holdfast.ledger.cells import Cells, parse_cells
from holdfast.ledger.values import place_carried_by, place_of

TWO = """
[[cell]]
number = 1
places = "000-7ff, fff"
emails = "000-7ff"
url = "http://10.0.0.5:8000"
operators_url = "http://10.0.0.5:9000"
[[cell]]
number = 2
places = "800-ffe"
emails = "800-fff"
url = "https://two.internal"
operators_url = "https://two.internal:9000"
"""


def test_every_place_and_every_address_has_one_cell() -> None:
    cells = Cells(2, parse_cells(TWO))
    assert cells.own.number == 2
    assert cells.own.url == "https://two.internal"
    assert [cells.of_place(place)[0].number for place in (0, 0x7FF, 0x800, 0xFFE, 0xFFF)] == [1, 1, 2, 2, 1]
    emails = [f"{number}@example.com" for number in range(50)]
    assert [cells.of_email(each)[0].number for each in emails] == [1 + (place_of(each) >= 0x800) for each in emails]
    assert cells.of_number(1) is cells.all[0]
    assert cells.of_number(3) is None


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("800-ffe", "800-fff", "gives one of its places to two cells"),
        ("800-ffe", "801-ffe", "gives only 4095 of the 4096 places to a cell"),
        ('emails = "800-fff"', "", "gives only 2048 of the 4096 emails to a cell"),
        ('places = "800-ffe"', 'places = ""', "has a cell without places"),
        ('emails = "800-fff"', 'emails = "800-fff"\nformer_emails = "fff"', "names one of its emails twice"),
        ("800-ffe", "ffe-800", "a range is three hex digits"),
        ("800-ffe", "8-ffe", "a range is three hex digits"),
        ("number = 2", "number = 1", "two cells with one number"),
        ("number = 2", "number = 65", "`int` <= 64"),
        ("https://two.internal", "two.internal", "matching regex"),
        ("number = 2", "number = 2\nurls = 1", "unknown field `urls`"),
        ("[[cell]]", "[[cell", "is not TOML"),
    ],
)
def test_a_list_that_is_not_whole_is_refused(before: str, after: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_cells(TWO.replace(before, after))


def test_places_of_two_cells_are_those_of_one_now_and_of_one_before() -> None:
    changed = TWO.replace('"000-7ff, fff"', '"000-7fe, fff"\nformer_places = "7ff"')
    changed = changed.replace('"800-ffe"', '"7ff-ffe"\nformer_emails = "000-0ff"')
    cells = Cells(1, parse_cells(changed))
    of_places = [[cell.number for cell in cells.of_place(place)] for place in (0x7FE, 0x7FF, 0x800)]
    assert of_places == [[1], [2, 1], [2]]
    for email in (f"{number}@example.com" for number in range(50)):
        numbers = [cell.number for cell in cells.of_email(email)]
        assert numbers == ([1, 2] if place_of(email) < 0x100 else [1] if place_of(email) < 0x800 else [2])


def test_an_emptied_cell_keeps_one_place_and_is_asked_for_what_it_had() -> None:
    emptied = TWO.replace('"000-7ff, fff"', '"000-ffe"').replace('"000-7ff"', '"000-fff"')
    emptied = emptied.replace('"800-ffe"', '"fff"\nformer_places = "800-ffe"').replace(
        'emails = "800-fff"', 'former_emails = "800-fff"'
    )
    cells = Cells(1, parse_cells(emptied))
    of_places = [[cell.number for cell in cells.of_place(place)] for place in (0x7FF, 0x800, 0xFFE, 0xFFF)]
    assert of_places == [[1], [1, 2], [1, 2], [2]]
    assert {cells.of_email(f"{number}@example.com")[0].number for number in range(50)} == {1}


def test_new_accounts_and_provider_checks_have_places_of_their_cell() -> None:
    cells = Cells(1, parse_cells(TWO))
    assert {cells.of_place(place_of(cells.new_account_id()))[0].number for _ in range(100)} == {1}
    assert cells.of_place(place_carried_by(cells.new_check_id()))[0].number == 1
