"""Receipts over HTTP: the fields, pages, files and sums, for their account alone; and the page of PDF as bytes."""

from __future__ import annotations

import csv
import hashlib
import io
import re
import zlib
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from msgspec.structs import replace
from sqlalchemy import text
from tests.clients import refused

from holdfast.http.endpoints import receipts as endpoint
from holdfast.http.schemas.receipts import COLUMNS, COLUMNS_OF_ALL
from holdfast.http.services.receipt_pdf import render_pdf
from holdfast.ledger.receipts import Receipt, ReceiptSeller, month_of
from holdfast.persistence.records import tables

from .identities import ACCOUNT, NOW, OTHER_ACCOUNT

if TYPE_CHECKING:
    import httpx2
    from tests.http.api import Api

PATH = "/v2/control/receipts"
SELLER = ReceiptSeller("Łódź Obrazy", ("ul. Główna 1", "Łódź"), "PL123")


def receipt(sequence: int, **fields: Any) -> Receipt:
    usual: dict[str, Any] = {
        "sequence": sequence,
        "number": f"R-{sequence:06d}",
        "kind": "receipt",
        "account_id": ACCOUNT,
        "email": "ada@example.com",
        "order_id": f"ord_{sequence}",
        "operation_id": f"op_{sequence}",
        "operation_number": sequence,
        "receipt_number": None,
        "reason": "payment_succeeded",
        "credit_micro": 10_000_000,
        "amount_micro": 10_000_000,
        "currency": "USD",
        "moved_at": NOW - timedelta(minutes=1),
        "issued_at": NOW,
        "seller": SELLER,
    } | fields
    return Receipt(**usual, month=month_of(usual["moved_at"]))


def note(sequence: int, of: int, **fields: Any) -> Receipt:
    given = {"kind": "credit_note", "receipt_number": f"R-{of:06d}", "order_id": f"ord_{of}", "reason": "refund"}
    return receipt(sequence, **given, credit_micro=3_000_000, amount_micro=3_000_000, **fields)


async def add(api: Api, *receipts: Receipt) -> None:
    for each in receipts:
        await api.write(tables.receipts.insert().values(**msgspec.to_builtins(each, builtin_types=(type(NOW),))))


async def operated(api: Api, path: str) -> httpx2.Response:
    return await api.call("GET", path, credential=api.deps.settings.operator_token)


async def read(api: Api, path: str) -> dict[str, Any]:
    response = await api.as_session("GET", path)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


async def test_a_receipt_has_every_field(api: Api) -> None:
    await add(api, receipt(1), note(2, 1))
    body = await read(api, f"{PATH}/R-000002")
    assert body == {
        "number": "R-000002",
        "kind": "credit_note",
        "order_id": "ord_1",
        "operation_id": "op_2",
        "receipt_number": "R-000001",
        "reason": "refund",
        "amount": "3.00",
        "currency": "USD",
        "credit": "3.00",
        "moved_at": "2026-11-20T11:59:00.000Z",
        "issued_at": "2026-11-20T12:00:00.000Z",
        "seller": {"name": "Łódź Obrazy", "address": ["ul. Główna 1", "Łódź"], "tax_id": "PL123"},
        "buyer": {"email": "ada@example.com"},
    }
    assert (await read(api, PATH))["data"][0] == body


async def test_the_list_is_paged_and_filtered(api: Api) -> None:
    earlier = NOW - timedelta(days=40)
    await add(api, *(receipt(each, moved_at=earlier) for each in range(1, 4)), note(4, 1), receipt(5))
    first = await read(api, f"{PATH}?limit=3")
    rest = await read(api, f"{PATH}?limit=3&cursor={first['next_cursor']}")
    numbers = [each["number"] for each in (*first["data"], *rest["data"])]
    assert numbers == [f"R-{each:06d}" for each in (5, 4, 3, 2, 1)]
    assert rest["next_cursor"] is None
    october = await read(api, f"{PATH}?month=2026-10&limit=2")
    assert [each["number"] for each in october["data"]] == ["R-000003", "R-000002"]
    notes = await read(api, f"{PATH}?kind=credit_note")
    assert [each["number"] for each in notes["data"]] == ["R-000004"]
    for month in ("2026-13", "2026", "x"):
        response = await api.as_session("GET", f"{PATH}?month={month}")
        assert refused(response, 400, "invalid_parameter")["param"] == "month"


async def test_months_are_summed_by_currency(api: Api) -> None:
    earlier = NOW - timedelta(days=40)
    yen = {"currency": "JPY", "amount_micro": 1_500_000_000}
    await add(api, receipt(1, moved_at=earlier), note(2, 1), receipt(3), receipt(4, **yen))
    assert (await read(api, "/v2/control/receipt-totals"))["data"] == [
        {"month": "2026-11", "currency": "JPY", "receipts": 1, "received": "1500", "credit_notes": 0,
         "returned": "0", "net": "1500", "credit": "10.00"},
        {"month": "2026-11", "currency": "USD", "receipts": 1, "received": "10.00", "credit_notes": 1,
         "returned": "3.00", "net": "7.00", "credit": "7.00"},
        {"month": "2026-10", "currency": "USD", "receipts": 1, "received": "10.00", "credit_notes": 0,
         "returned": "0.00", "net": "10.00", "credit": "10.00"},
    ]  # fmt: skip


async def test_other_accounts_see_nothing(api: Api) -> None:
    await add(api, receipt(1, account_id=OTHER_ACCOUNT))
    assert (await read(api, PATH))["data"] == []
    assert (await read(api, "/v2/control/receipt-totals"))["data"] == []
    for path in (f"{PATH}/R-000001", f"{PATH}/R-000001/pdf", f"{PATH}/R-9"):
        refused(await api.as_session("GET", path), 404, "receipt_not_found")


async def test_an_account_has_its_receipts_as_a_file(api: Api) -> None:
    await add(api, receipt(1), note(2, 1))
    response = await api.as_session("GET", f"{PATH}?format=csv")
    assert response.headers["Content-Disposition"] == 'attachment; filename="receipts.csv"'
    found = list(csv.DictReader(io.StringIO(response.text, newline=""), strict=True))
    assert [*found[0]] == [*COLUMNS]
    assert [(each["number"], each["amount"], each["currency"]) for each in found] == [
        ("R-000002", "3.00", "USD"),
        ("R-000001", "10.00", "USD"),
    ]


async def test_operators_have_the_receipts_of_all(api: Api) -> None:
    await add(api, receipt(1), receipt(2, account_id=OTHER_ACCOUNT), note(3, 2, account_id=OTHER_ACCOUNT))
    path = "/ops/api/receipts"
    body = (await operated(api, f"{path}?limit=2")).json()
    assert [(each["number"], each["account_id"]) for each in body["data"]] == [
        ("R-000003", OTHER_ACCOUNT),
        ("R-000002", OTHER_ACCOUNT),
    ]
    rest = (await operated(api, f"{path}?limit=2&cursor={body['next_cursor']}")).json()
    assert [each["number"] for each in rest["data"]] == ["R-000001"]
    mine = (await operated(api, f"{path}?account_id={ACCOUNT}&month=2026-11&kind=receipt")).json()
    assert [each["number"] for each in mine["data"]] == ["R-000001"]
    response = await operated(api, f"{path}?format=csv")
    found = list(csv.DictReader(io.StringIO(response.text, newline=""), strict=True))
    assert [*found[0]] == [*COLUMNS_OF_ALL]
    assert [each["number"] for each in found] == ["R-000003", "R-000002", "R-000001"]
    [month] = (await operated(api, "/ops/api/receipt-totals")).json()["data"]
    assert (month["receipts"], month["credit_notes"], month["net"]) == (2, 1, "17.00")


# ------------------------------------------------------------------------------------------ PDF


TOKEN = re.compile(rb"/F(\d+) [\d.]+ Tf|\(((?:[^()\\]|\\.)*)\) Tj|(ET)", re.DOTALL)
ESCAPED = {b"r": b"\r", b"n": b"\n", b"t": b"\t", b"b": b"\b", b"f": b"\f"}


def text_of(pdf: bytes) -> str:
    """The text that a viewer would copy: the glyphs of the page by the maps of their fonts."""
    streams = []
    for found in re.finditer(rb"stream\n(.*?)\nendstream", pdf, re.DOTALL):
        try:
            streams.append(zlib.decompress(found[1]))
        except zlib.error:
            streams.append(found[1])
    maps = [
        {int(glyph, 16): bytes.fromhex(code.decode()).decode("utf-16-be") for glyph, code in
         re.findall(rb"<([0-9A-Fa-f]{4})> <([0-9A-Fa-f]+)>", stream.partition(b"beginbfchar")[2])}
        for stream in streams if b"beginbfchar" in stream
    ]  # fmt: skip
    shown, font = "", 1
    for chosen, drawn, is_end in TOKEN.findall(next(each for each in streams if b" Tf" in each)):
        font = int(chosen) if chosen else font
        codes = re.sub(rb"\\(.)", lambda found: ESCAPED.get(found[1], found[1]), drawn, flags=re.DOTALL)
        shown += "".join(maps[font - 1][int.from_bytes(codes[at : at + 2])] for at in range(0, len(codes), 2))
        shown += "\n" if is_end else ""
    return shown


async def test_a_page_is_the_same_bytes_each_time(api: Api) -> None:
    await add(api, receipt(1))
    answers = [await api.as_session("GET", f"{PATH}/R-000001/pdf") for _ in range(2)]
    for each in answers:
        assert each.headers["Content-Type"] == "application/pdf"
        assert each.headers["Content-Disposition"] == 'attachment; filename="R-000001.pdf"'
        assert each.content.startswith(b"%PDF-")
    assert answers[0].content == answers[1].content == render_pdf(receipt(1))
    hashes = {hashlib.sha256(render_pdf(each)).digest() for each in (receipt(1), receipt(2), note(1, 1))}
    assert len(hashes) == 3


def test_a_page_states_what_the_receipt_does() -> None:
    text = text_of(render_pdf(note(2, 1)))
    for each in ("Credit note", "R-000002", "R-000001", "Łódź Obrazy", "ul. Główna 1", "PL123", "ada@example.com",
                 "2026-11-20", "ord_1", "op_2", "-3.00 USD", "-3.00 credits"):  # fmt: skip
        assert each in text, text


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Ελλάς Москва", "Ελλάς Москва"),
        ("中文 shop", "[U+4E2D][U+6587] shop"),
        ("a\tb\n", "a[U+0009]b[U+000A]"),
        ("\U0001f680 rockets", "[U+1F680] rockets"),
    ],
)
def test_a_character_that_no_font_has_is_shown_by_its_code(name: str, shown: str) -> None:
    assert shown in text_of(render_pdf(receipt(1, seller=replace(SELLER, name=name))))


def test_a_name_of_any_length_stays_on_the_page() -> None:
    long = replace(SELLER, name="Wide " * 60, address=("x" * 300,))
    pdf = render_pdf(receipt(1, seller=long, email="e" * 200 + "@example.com"))
    assert pdf.count(b"/Type /Page\n") == 1


def test_a_second_font_has_the_characters_that_the_first_lacks(tmp_path: Path) -> None:
    builder = FontBuilder(1000)
    builder.setupGlyphOrder([".notdef", "middle"])
    builder.setupCharacterMap({0x4E2D: "middle"})
    builder.setupGlyf(dict.fromkeys((".notdef", "middle"), TTGlyphPen(None).glyph()))
    builder.setupHorizontalMetrics(dict.fromkeys((".notdef", "middle"), (1000, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Test", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(tmp_path / "second.ttf")
    chinese = receipt(1, seller=replace(SELLER, name="\u4e2d\u6587 shop"))
    assert "\u4e2d[U+6587] shop" in text_of(render_pdf(chinese, tmp_path / "second.ttf"))


async def test_a_service_without_the_library_refuses(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await add(api, receipt(1))
    monkeypatch.setattr(endpoint, "can_render", lambda: False)
    response = await api.as_session("GET", f"{PATH}/R-000001/pdf")
    refused(response, 501, "pdf_not_available")
    assert response.headers["X-Should-Retry"] == "false"
    assert (await read(api, f"{PATH}/R-000001"))["amount"] == "10.00"


@pytest.mark.parametrize("value", ["infinity", "-infinity"])
async def test_a_time_of_a_receipt_that_cannot_be_read_closes_no_list(api: Api, value: str) -> None:
    await add(api, *(receipt(sequence) for sequence in (1, 2, 3)))
    await api.write(text("alter table receipts disable trigger user"))
    await api.write(text(f"update receipts set issued_at = '{value}' where sequence = 2"))
    await api.write(text("alter table receipts enable trigger user"))
    found = await read(api, PATH)
    assert ([each["number"] for each in found["data"]], found["unreadable"]) == (["R-000003", "R-000001"], ["2"])
