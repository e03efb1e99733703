"""What the settings decide of receipts."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.ledger.receipts import ReceiptSeller
from holdfast.settings.settings import SettingsFault, load_settings
from holdfast.wiring.workers import receipt_terms


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        ("1 Main Street; Suite 4 ;London", ("1 Main Street", "Suite 4", "London")),
        ("1 Main Street\n\nLondon;", ("1 Main Street", "London")),
        ("", ()),
    ],
)
def test_an_address_has_lines(tmp_path: Path, given: str, lines: tuple[str, ...]) -> None:
    settings = load_settings(
        {"HOLDFAST_DATA_DIR": str(tmp_path), "HOLDFAST_SELLER_NAME": "Ada", "HOLDFAST_SELLER_ADDRESS": given}
    )
    terms = receipt_terms(settings)
    assert terms.prefix == "R-"
    assert terms.seller == ReceiptSeller("Ada", lines)


@pytest.mark.parametrize("prefix", ["R-1", "R/", "x" * 17, "Nº-"])
def test_a_prefix_never_makes_two_numbers_the_same(tmp_path: Path, prefix: str) -> None:
    with pytest.raises(SettingsFault, match="without a digit at the end"):
        load_settings({"HOLDFAST_DATA_DIR": str(tmp_path), "HOLDFAST_RECEIPT_PREFIX": prefix})


def test_a_font_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingsFault, match="RECEIPT_FONT must be the name of a file that exists"):
        load_settings({"HOLDFAST_DATA_DIR": str(tmp_path), "HOLDFAST_RECEIPT_FONT": str(tmp_path / "none.ttf")})
