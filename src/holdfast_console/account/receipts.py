"""The account's receipts and credit notes: the list with a page of PDF each, and sums by month."""

from __future__ import annotations

from typing import Final

from holdfast.http.endpoints.receipts import list_receipts, offers_pdf, read_receipt_pdf, sum_account_receipts
from holdfast.http.kit.calls import Auth
from holdfast.http.schemas.receipts import ReceiptTotals
from holdfast_console.rendering import Html
from holdfast_console.views import ViewResult, ViewTable, Visit

RECEIPTS: Final = "/account/receipts"

view = ViewTable(Auth.SESSION)


@view(RECEIPTS)
async def receipts(visit: Visit) -> ViewResult:
    """A page of the receipts, by the filters of the address, and the sums of all."""
    values = {
        "receipts": await visit.read_list(list_receipts),
        "has_pdf": offers_pdf(),
        "totals": await visit.read(sum_account_receipts, ReceiptTotals),
    }
    return Html("receipts.html", values)


@view(f"{RECEIPTS}.csv")
async def receipts_file(visit: Visit) -> ViewResult:
    """The receipts as a file, by the same filters."""
    filters = {name: visit.parameter(name) for name in ("kind", "month") if visit.parameter(name)}
    return await visit.stream(list_receipts, query={"format": "csv", **filters})


@view(f"{RECEIPTS}/{{number}}/pdf")
async def receipt_page(visit: Visit) -> ViewResult:
    """One receipt as PDF."""
    return await visit.stream(read_receipt_pdf)
