"""The page of an account's receipts: what it lists, sums and hands out, and of whom."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest

from .identities import OTHER_ACCOUNT
from .test_account_pages import HOSTILE, AccountReader, owner
from .test_receipt_calls import add, note, receipt

if TYPE_CHECKING:
    from tests.http.api import Api

__all__ = ["owner"]

PATH = "/account/receipts"


async def test_receipts_are_listed_summed_and_handed_out(api: Api, owner: AccountReader) -> None:
    await add(api, receipt(1), note(2, 1))
    page = await owner.read(PATH)
    assert "R-000001" in page.text
    assert "credit note" in page.text
    assert "−3.00 USD" in page.text
    assert "7.00 USD" in page.text
    notes = (await owner.get(f"{PATH}?kind=credit_note")).text
    assert 'id="R-000002"' in notes
    assert 'id="R-000001"' not in notes
    file = await owner.get(f"{PATH}.csv?kind=receipt")
    assert file.headers["Content-Type"].startswith("text/csv")
    assert [line.split(b",")[0] for line in file.content.splitlines()] == [b"number", b"R-000001"]
    pdf = await owner.get(f"{PATH}/R-000001/pdf")
    assert pdf.content.startswith(b"%PDF-")
    assert "attachment" in pdf.headers["Content-Disposition"]


async def test_no_page_is_offered_without_the_library(
    api: Api, owner: AccountReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(api, receipt(1))
    assert "R-000001/pdf" in (await owner.get(PATH)).text
    monkeypatch.setattr("holdfast_console.account.receipts.offers_pdf", lambda: False)
    page = await owner.get(PATH)
    assert 'id="R-000001"' in page.text
    assert "/pdf" not in page.text


async def test_receipts_of_others_are_not_shown_and_hostile_filters_do_nothing(
    api: Api, owner: AccountReader
) -> None:
    await add(api, receipt(1, account_id=OTHER_ACCOUNT))
    page = await owner.read(PATH)
    assert "No receipt yet." in page.text
    assert (await owner.get(f"{PATH}/R-000001/pdf")).status_code == 404
    refused = await owner.read(f"{PATH}?" + urlencode({"month": HOSTILE}))
    assert "must be a month" in refused.text
