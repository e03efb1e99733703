"""The account's receipts: a list or a CSV file, one of them as JSON or PDF, and their sums by month."""

from __future__ import annotations

from functools import partial
from typing import Final

from quart import Response

from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.listing import FORMAT, PAGE, CsvFile, csv_media, list_of_account
from holdfast.http.kit.routes import Media, Outcome, RouteTable
from holdfast.http.kit.values import shown
from holdfast.http.schemas.receipts import (
    COLUMNS,
    KIND,
    MONTH,
    ReceiptBody,
    ReceiptList,
    ReceiptTotals,
    position_of_receipt,
    read_page,
    receipt_body,
    totals_body,
)
from holdfast.http.services.receipt_pdf import ReceiptPages, can_render, render_pdf
from holdfast.ledger.api_keys import ACCOUNT_READ
from holdfast.ledger.receipts import Receipt
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.receipts import receipt_of_account, receipts_of_account, sum_receipts

route = RouteTable("Payments", auth=Auth.SESSION_OR_KEY, scope=ACCOUNT_READ)

_PDF: Final = Media(status=200, content_types=("application/pdf",), description="The receipt on a page.")
_NO_PDF: Final = Refusal(
    code="pdf_not_available",
    message="This service makes no PDF files. The receipt itself has all that is on its page.",
)


@route(
    "GET",
    "/v2/control/receipts",
    summary="List the account's receipts and credit notes; newest first, or as a CSV file",
    reply=ReceiptList,
    media=(csv_media(COLUMNS),),
    parameters=(KIND, MONTH, *PAGE, FORMAT),
)
async def list_receipts(call: Call) -> Outcome:
    """Issued within seconds of a payment, a refund or a lost dispute. Sandbox credit and grants have none."""
    file = CsvFile("receipts.csv", COLUMNS)
    return await list_of_account(
        call, partial(read_page, receipts_of_account), receipt_body, position_of_receipt, file=file
    )


@route(
    "GET",
    "/v2/control/receipt-totals",
    summary="Sum the account's receipts and credit notes by month",
    reply=ReceiptTotals,
)
async def sum_account_receipts(call: Call) -> Outcome:
    """By the months of UTC in which money moved."""
    account_id = await call.verify_caller()
    if isinstance(account_id, Refusal):
        return account_id
    return totals_body(await call.read(partial(sum_receipts, account_id=account_id)))


@route(
    "GET",
    "/v2/control/receipts/{number}",
    summary="Retrieve a receipt or credit note",
    reply=ReceiptBody,
    errors=("receipt_not_found",),
)
async def read_receipt(call: Call) -> Outcome:
    """As it was issued."""
    found = await _find_receipt(call)
    return found if isinstance(found, Refusal) else receipt_body(found)


def offers_pdf() -> bool:
    """Whether this service makes PDF files of receipts."""
    return can_render()


@route(
    "GET",
    "/v2/control/receipts/{number}/pdf",
    summary="Retrieve a receipt or credit note as a PDF file",
    media=(_PDF,),
    errors=("receipt_not_found", "pdf_not_available", "overloaded"),
)
async def read_receipt_pdf(call: Call) -> Outcome:
    """The same bytes each time, until the service's font or its library for PDF is replaced."""
    found = await _find_receipt(call)
    if isinstance(found, Refusal):
        return found
    if not offers_pdf():
        return _NO_PDF
    threads = call.deps.state(ReceiptPages).threads
    font = call.deps.settings.receipt_font
    content = await threads.run(found.account_id, lambda: render_pdf(found, font))
    return Response(
        content,
        content_type="application/pdf",
        headers={"Content-Disposition": f'attachment; filename="{found.number}.pdf"'},
    )


async def _find_receipt(call: Call) -> Receipt | Refusal:
    """Return the receipt of the path, after the caller was verified. Refuses with ``receipt_not_found``."""
    number = call.path["number"]
    account_id = await call.verify_caller()
    if isinstance(account_id, Refusal):
        return account_id
    found = None
    if "\0" not in number:
        found = await call.read(partial(receipt_of_account, account_id=account_id, number=number))
    if found is None:
        return Refusal(code="receipt_not_found", message=f"The receipt {shown(number)} does not exist.")
    return found
