"""A receipt on one page of PDF, from its stored values alone.

The page has the receipt's own time and nothing of now, so it is the same bytes each time. DejaVu Sans, which is
installed with this module, has the letters of Latin, Greek, Cyrillic, Armenian, Georgian, Hebrew, Arabic and more;
a second font may have others. A character that neither has is printed as its code, such as ``[U+4E2D]``.

The library is an extra, and takes a second to load: it is loaded by the thread that first needs it.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.http.kit.fair_shares import FairThreads
from holdfast.http.schemas.payments import in_units
from holdfast.ledger.receipts import Receipt
from holdfast.ledger.values import format_amount

if TYPE_CHECKING:
    from fpdf import FPDF

EXTRA: Final = "pdf"
FONT: Final = Path(__file__).parents[1] / "receipt_font" / "DejaVuSans.ttf"
JOBS_PER_CALLER_MAX: Final = 8
_TITLES: Final = {"receipt": "Receipt", "credit_note": "Credit note"}
_MOVED: Final = {"receipt": "Paid", "credit_note": "Returned"}
_GREY: Final = 110
_LINE_MM: Final = 5.5
_LABEL_MM: Final = 45
_HALF_MM: Final = 85


class ReceiptPages:
    """The one thread in which this process renders pages, one of each account at a time."""

    def __init__(self) -> None:
        self.threads = FairThreads(threads_max=1, jobs_per_caller_max=JOBS_PER_CALLER_MAX)


def can_render() -> bool:
    """Whether the extra is installed."""
    return find_spec("fpdf") is not None and find_spec("uharfbuzz") is not None


def render_pdf(receipt: Receipt, font: Path | None = None) -> bytes:
    """Return the page of a receipt; ``font`` is the second font. Blocks for about a tenth of a second."""
    from fpdf import FPDF

    page = FPDF(format="A4")
    page.set_creation_date(receipt.issued_at)
    page.set_title(f"{_TITLES[receipt.kind]} {receipt.number}")
    page.set_lang("en")
    page.set_margin(20)
    page.add_font("first", fname=FONT)
    if font is not None:
        page.add_font("second", fname=font)
        page.set_fallback_fonts(["second"])
    page.set_font("first", size=10)
    # Joins the letters of scripts that need it, and puts those from right to left in order.
    page.set_text_shaping(True)
    page.add_page()
    _heading(page, receipt)
    _parties(page, receipt)
    _facts(page, receipt)
    _amounts(page, receipt)
    return bytes(page.output())


def _heading(page: FPDF, receipt: Receipt) -> None:
    page.set_font_size(20)
    _line(page, _TITLES[receipt.kind], 12)
    page.set_font_size(10)
    _line(page, receipt.number)
    page.ln(8)


def _parties(page: FPDF, receipt: Receipt) -> None:
    """Print the seller on the left and the buyer on the right."""
    seller, top = receipt.seller, page.get_y()
    tax_id = [f"Tax ID {seller.tax_id}"] if seller.tax_id else []
    ends = []
    for column, (label, lines) in enumerate(
        [("Seller", [seller.name, *seller.address, *tax_id]), ("Buyer", [receipt.email])]
    ):
        page.set_y(top)
        page.set_left_margin(20 + column * _HALF_MM)
        page.set_x(page.l_margin)
        _label(page, label)
        for line in lines:
            page.multi_cell(
                _HALF_MM - 5, _LINE_MM, _printable(page, line), align="L", new_x="LMARGIN", new_y="NEXT"
            )
        ends.append(page.get_y())
    page.set_left_margin(20)
    page.set_xy(page.l_margin, max(ends) + 8)


def _facts(page: FPDF, receipt: Receipt) -> None:
    facts = [
        ("Issued", f"{receipt.issued_at:%Y-%m-%d}"),
        (_MOVED[receipt.kind], f"{receipt.moved_at:%Y-%m-%d}"),
        ("Order", receipt.order_id),
        ("Operation", receipt.operation_id),
    ]
    if receipt.receipt_number is not None:
        facts.append(("Corrects" if receipt.kind == "credit_note" else "Belongs to", receipt.receipt_number))
    for label, value in facts:
        page.set_text_color(_GREY)
        page.cell(_LABEL_MM, _LINE_MM, label)
        page.set_text_color(0)
        page.multi_cell(0, _LINE_MM, _printable(page, value), align="L", new_x="LMARGIN", new_y="NEXT")
    page.ln(8)


def _amounts(page: FPDF, receipt: Receipt) -> None:
    amount = f"{in_units(receipt.amount_micro, receipt.currency)} {receipt.currency}"
    credit = f"{format_amount(receipt.credit_micro)} credits"
    if receipt.kind == "credit_note":
        amount, credit = f"-{amount}", f"-{credit}"
    _row(page, ("Description", "Credit", "Amount"), grey=True)
    page.line(page.l_margin, page.get_y() + 1, page.w - page.r_margin, page.get_y() + 1)
    page.ln(3)
    _row(page, ("Prepaid credit", credit, amount))
    page.line(page.l_margin, page.get_y() + 1, page.w - page.r_margin, page.get_y() + 1)
    page.ln(3)
    page.set_font_size(12)
    _row(page, ("Total", "", amount))


def _row(page: FPDF, cells: Iterable[str], *, grey: bool = False) -> None:
    page.set_text_color(_GREY if grey else 0)
    for width, align, cell in zip((80, 45, 45), ("L", "R", "R"), cells, strict=True):
        page.cell(width, _LINE_MM, cell, align=align)
    page.set_text_color(0)
    page.ln()


def _label(page: FPDF, text: str) -> None:
    page.set_text_color(_GREY)
    _line(page, text)
    page.set_text_color(0)


def _line(page: FPDF, text: str, height_mm: float = _LINE_MM) -> None:
    page.cell(0, height_mm, _printable(page, text), new_x="LMARGIN", new_y="NEXT")


def _printable(page: FPDF, text: str) -> str:
    """Return a text with the codes of characters that no font has, and of those that are no text."""
    return "".join(each if _is_printable(page, each) else f"[U+{ord(each):04X}]" for each in text)


def _is_printable(page: FPDF, character: str) -> bool:
    from fpdf.fonts import TTFFont

    fonts = [font for font in page.fonts.values() if isinstance(font, TTFFont)]
    return character.isprintable() and any(ord(character) in font.cmap for font in fonts)
