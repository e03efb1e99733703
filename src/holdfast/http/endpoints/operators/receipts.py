"""Receipts of all accounts: a list or a CSV file for the bookkeeping, and their sums by month."""

from __future__ import annotations

from functools import partial
from typing import Final

from holdfast.http.kit.actions import OperatorRoutes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.listing import FORMAT, PAGE, CsvFile, csv_media, filter_by, list_for_operators
from holdfast.http.kit.routes import Outcome
from holdfast.http.schemas.receipts import (
    COLUMNS_OF_ALL,
    KIND,
    MONTH,
    AccountReceipt,
    AccountReceiptList,
    ReceiptTotals,
    position_of_receipt,
    read_page,
    render_receipt,
    totals_body,
)
from holdfast.persistence.queries.receipts import receipts_of_all, sum_receipts

route = OperatorRoutes("Books")

_ACCOUNT: Final = filter_by("account_id", "Only receipts of this account.")


@route.read(
    "/ops/api/receipts",
    "List the receipts and credit notes of all accounts; newest first, or as a CSV file",
    AccountReceiptList,
    parameters=(_ACCOUNT, KIND, MONTH, *PAGE, FORMAT),
    media=(csv_media(COLUMNS_OF_ALL),),
)
async def list_all_receipts(call: Call) -> Outcome:
    """`from` and `to` are of when they were issued, `month` of when money moved."""
    file = CsvFile("receipts.csv", COLUMNS_OF_ALL)
    body = partial(render_receipt, AccountReceipt)
    return await list_for_operators(call, partial(read_page, receipts_of_all), body, position_of_receipt, file=file)


@route.read("/ops/api/receipt-totals", "Sum the receipts and credit notes of all accounts by month", ReceiptTotals)
async def sum_all_receipts(call: Call) -> Outcome:
    """Sums all receipts by one statement; the net of all months is what the books have received by card."""
    return totals_body(await call.deps.database.scan(sum_receipts))
