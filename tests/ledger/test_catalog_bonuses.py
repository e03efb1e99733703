"""The bonuses of a catalog file: which one an order gets, and the report of their faults."""

from __future__ import annotations

import json

import pytest

from holdfast.ledger.catalog.bonuses import BONUSES_MAX, bonus_of
from holdfast.ledger.catalog.catalog import CatalogFault, load_catalog, parse_catalog
from holdfast.ledger.catalog.models import Catalog
from holdfast.ledger.values import MICRO
from holdfast.providers.media.kinds import kind_rules

MODEL = """
[[models]]
id = "studio/still"
modality = "image"
type = "async"
created = "2026-10-05"
pricing = { mode = "per_image", unit_price = "0.020" }
upstream = { provider = "studio" }
input_schema = "still.json"
"""
BONUSES = """
[[bonus]]
orders_from = "50"
credit = "2.500001"
expires_days = 30

[[bonus]]
orders_from = "100.00"
percent = 10
expires_days = 90
"""


def parse(text: str = BONUSES) -> Catalog:
    schema = json.dumps({"type": "object", "properties": {}})
    return parse_catalog(MODEL + text, read_schema=lambda _: schema, kinds=kind_rules())


def bonus(orders_from: str, what: str, expires_days: int = 30) -> str:
    return f"[[bonus]]\norders_from = {orders_from}\n{what}\nexpires_days = {expires_days}\n"


@pytest.mark.parametrize(
    ("amount", "credit_micro", "expires_days"),
    [
        (49_990_000, None, None),
        (50_000_000, 2_500_001, 30),
        (99_990_000, 2_500_001, 30),
        (100_000_000, 10_000_000, 90),
        (123_450_000, 12_345_000, 90),
        (100_010_000, 10_001_000, 90),
    ],
)
def test_an_order_gets_the_bonus_of_the_largest_amount_that_it_reaches(
    amount: int, credit_micro: int | None, expires_days: int | None
) -> None:
    found = bonus_of(parse().bonuses, amount)
    assert (found and found.micro_of(amount), found and found.expires_days) == (credit_micro, expires_days)


def test_the_shipped_catalog_has_no_bonus() -> None:
    assert load_catalog(None, kind_rules()).bonuses == ()
    assert bonus_of((), 10**9 * MICRO) is None


def test_the_version_changes_with_a_bonus() -> None:
    versions = [parse(text).version for text in ("", BONUSES, BONUSES.replace("90", "91"), "# none\n")]
    assert len(set(versions)) == 3
    assert versions[0] == versions[3]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('bonus = "10"', "catalog: bonus must be a list of tables"),
        ("bonus = [1]", "bonus 1: must be a table"),
        ("[bonus]", "catalog: bonus must be a list of tables"),
        ("[[bonus]]", "bonus 1: orders_from is missing"),
        ("[[bonus]]", "bonus 1: expires_days is missing"),
        ("[[bonus]]", "bonus 1: give percent or credit, one of them"),
        (bonus('"5"', 'percent = 5\ncredit = "1"'), "bonus 1: give percent or credit, one of them"),
        (bonus('"5"', "percents = 5"), "bonus 1: percents is not a known key"),
        (bonus("5", "percent = 5"), "bonus 1: orders_from must be a string above zero"),
        (bonus('"0.00"', "percent = 5"), "bonus 1: orders_from must be a string above zero"),
        (bonus('"0.001"', "percent = 5"), "bonus 1: orders_from must be a string above zero"),
        (bonus('"-5"', "percent = 5"), "bonus 1: orders_from must be a string above zero"),
        (
            bonus('"1000000000"', "percent = 5"),
            "bonus 1: orders_from must be a string above zero and below a billion",
        ),
        (bonus('"5"', "percent = 0"), "bonus 1: percent must be an integer from 1 to 100, not 0"),
        (bonus('"5"', "percent = 101"), "bonus 1: percent must be an integer from 1 to 100, not 101"),
        (bonus('"5"', "percent = 2.5"), "bonus 1: percent must be an integer from 1 to 100, not 2.5"),
        (bonus('"5"', 'credit = "0"'), "bonus 1: credit must be a string above zero"),
        (bonus('"5"', "percent = 5", 0), "bonus 1: expires_days must be an integer from 1 to 36500, not 0"),
        (
            bonus('"5"', "percent = 5", 36_501),
            "bonus 1: expires_days must be an integer from 1 to 36500, not 36501",
        ),
        (bonus('"5"', 'credit = "5.01"'), "bonus 1: credit 5.01 must not be above orders_from, 5.00"),
        (
            bonus('"5"', "percent = 5") + bonus('"5.00"', "percent = 6"),
            "bonus 2: orders_from 5.00 is that of another bonus",
        ),
        (
            bonus('"5"', "percent = 5") + bonus('"4"', "percent = 6"),
            "bonus 2: orders_from 4.00 must be above that of the bonus before, 5.00",
        ),
        (
            bonus('"600000000"', "percent = 100"),
            "bonus 1: an order of 600000000.00 with its bonus is more than the ledger can hold",
        ),
        (
            "".join(bonus(f'"{number}"', "percent = 5") for number in range(1, BONUSES_MAX + 2)),
            f"catalog: bonus must list at most {BONUSES_MAX} tables, not {BONUSES_MAX + 1}",
        ),
    ],
)
def test_a_fault_of_a_bonus_names_its_place_and_value(text: str, fault: str) -> None:
    # A key that is no table stands before the first table.
    text = text + MODEL if text.startswith("bonus") else MODEL + text
    with pytest.raises(CatalogFault) as caught:
        parse_catalog(text, read_schema=lambda _: "{}", kinds=kind_rules())
    assert any(line.startswith(fault) for line in caught.value.lines), caught.value.lines
