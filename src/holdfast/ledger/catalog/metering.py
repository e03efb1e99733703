"""Metering: how many units of work an input asks for, as least, expected and most.

| mode | units | known beforehand |
|---|---|---|
| per_request | 1 | always |
| per_image | n | always |
| per_megapixel | n × ceil(width × height / 1,000,000) | when the size is given |
| per_second | n × ceil(seconds) | when the duration is given |
| per_character | Unicode code points of the text | always |
| per_token | tokens in and out | never |

What an input leaves open is bounded by the model's schema, so every meter has a most.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

import msgspec

from holdfast.ledger.catalog.input_schema import InputSchema
from holdfast.ledger.catalog.terms import PricingMode, Units
from holdfast.ledger.plain_json import TEXT_BYTES_MAX, VALUES_MAX

PIXELS_PER_UNIT = 1_000_000
TOKENS_PER_MESSAGE = 16
"""What the framing of one message is counted as, beside its text."""
BYTES_PER_TOKEN_EXPECTED = 4
"""The expected length of a token; a token never is shorter than a byte, which bounds the most."""

_SIZE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})", re.ASCII)


class UnitFields(msgspec.Struct, frozen=True, kw_only=True):
    """Which top-level input fields measure the work. ``typical`` is the units expected where they are open.

    ``size`` holds WIDTHxHEIGHT and stands instead of ``width`` and ``height``. For ``per_token``, ``text`` is
    what goes in, ``output_tokens`` the most that may come out, and ``typical`` the tokens expected out.
    """

    n: str | None = None
    seconds: str | None = None
    width: str | None = None
    height: str | None = None
    size: str | None = None
    text: str | None = None
    output_tokens: str | None = None
    typical: int | None = None


class Measured(NamedTuple):
    """The units of one input: ``smallest`` ≤ ``estimated`` ≤ ``largest``, all equal where they are known."""

    smallest: Units
    estimated: Units
    largest: Units


class Span(NamedTuple):
    """A whole number that is somewhere between ``low`` and ``high``."""

    low: int
    high: int


_NEEDED: Mapping[PricingMode, tuple[tuple[str, ...], ...]] = {
    "per_request": ((),),
    "per_image": ((),),
    "per_megapixel": (("size",), ("width", "height")),
    "per_second": (("seconds",),),
    "per_character": (("text",),),
    "per_token": (("text", "output_tokens"),),
}
"""The fields each mode measures by; where there is a choice, exactly one of the sets."""

_MULTIPLIED: tuple[PricingMode, ...] = ("per_image", "per_megapixel", "per_second")
_OPEN_ENDED: tuple[PricingMode, ...] = ("per_megapixel", "per_second", "per_token")


class Meter:
    """Measures inputs of one model. ``most`` is the largest measure any valid input can have.

    Raises ``ValueError`` with the fault's text where the fields cannot measure the mode.
    """

    __slots__ = ("_open", "_spans", "fields", "mode", "most")

    def __init__(self, mode: PricingMode, fields: UnitFields, schema: InputSchema) -> None:
        self.mode = mode
        self.fields = fields
        named = {name for name in UnitFields.__struct_fields__ if getattr(fields, name) is not None}
        self._check_names(named, schema)
        self._spans: dict[str, Span] = {}
        for name in ("n", "seconds", "width", "height", "output_tokens"):
            field = getattr(fields, name)
            if field is not None:
                self._spans[name] = _span(name, field, schema)
        self._open: Span | None = None
        if fields.size is not None:
            self._open = _listed_megapixels(fields.size, schema)
        elif "width" in self._spans and "height" in self._spans:
            width, height = self._spans["width"], self._spans["height"]
            self._open = Span(_megapixels(width.low, height.low), _megapixels(width.high, height.high))
        elif "seconds" in self._spans:
            self._open = self._spans["seconds"]
        elif "output_tokens" in self._spans:
            self._open = self._spans["output_tokens"]
        if fields.typical is not None and (
            self._open is None or not self._open.low <= fields.typical <= self._open.high
        ):
            raise ValueError(f"typical: {fields.typical} is not between the least and the most the schema admits")
        self.most = self._most()

    def measure(self, given: Mapping[str, object]) -> Measured:
        """Measure an input that is valid for the model's schema, with its defaults filled in."""
        match self.mode:
            case "per_request":
                return _known(1)
            case "per_image":
                count = self._count(given)
                return _known(count.low) if count.low == count.high else self._between(count, Span(1, 1))
            case "per_megapixel":
                return self._between(self._count(given), self._size(given))
            case "per_second":
                return self._between(self._count(given), self._span_of("seconds", self.fields.seconds, given))
            case "per_character":
                assert self.fields.text is not None
                return _known(_characters(given.get(self.fields.text)))
            case "per_token":
                return self._tokens(given)

    def _check_names(self, named: set[str], schema: InputSchema) -> None:
        choices = _NEEDED[self.mode]
        optional = {"n"} if self.mode in _MULTIPLIED else set()
        optional |= {"typical"} if self.mode in _OPEN_ENDED else set()
        if not any(set(choice) == named - optional for choice in choices):
            wanted = " or ".join(" and ".join(choice) or "no fields" for choice in choices)
            raise ValueError(f"{self.mode} is measured by {wanted}")
        for name in sorted(named - {"typical"}):
            field = getattr(self.fields, name)
            if schema.field(field) is None:
                raise ValueError(f"{name}: the input schema has no field '{field}'")

    def _most(self) -> Units:
        count = self._spans.get("n", Span(1, 1)).high
        if self.mode == "per_character":
            return Units(units=TEXT_BYTES_MAX)
        if self.mode == "per_token":
            assert self._open is not None
            return _token_units(TEXT_BYTES_MAX + TOKENS_PER_MESSAGE * VALUES_MAX, self._open.high)
        return Units(units=count * (1 if self._open is None else self._open.high))

    def _count(self, given: Mapping[str, object]) -> Span:
        field = self.fields.n
        return Span(1, 1) if field is None or field not in given else self._span_of("n", field, given)

    def _span_of(self, name: str, field: str | None, given: Mapping[str, object]) -> Span:
        value = None if field is None else given.get(field)
        if isinstance(value, int | float) and not isinstance(value, bool):
            whole = math.ceil(value)
            return Span(whole, whole)
        return self._spans[name]

    def _size(self, given: Mapping[str, object]) -> Span:
        if self.fields.size is not None:
            pixels = _megapixels_of(given.get(self.fields.size))
            if pixels is not None:
                return Span(pixels, pixels)
            assert self._open is not None
            return self._open
        width = self._span_of("width", self.fields.width, given)
        height = self._span_of("height", self.fields.height, given)
        return Span(_megapixels(width.low, height.low), _megapixels(width.high, height.high))

    def _between(self, count: Span, each: Span) -> Measured:
        low, high = count.low * each.low, count.high * each.high
        if low == high:
            return _known(low)
        typical = each.high if self.fields.typical is None else min(max(self.fields.typical, each.low), each.high)
        return Measured(Units(units=low), Units(units=count.high * typical), Units(units=high))

    def _tokens(self, given: Mapping[str, object]) -> Measured:
        assert self.fields.text is not None
        text = given.get(self.fields.text)
        messages = len(text) if isinstance(text, list) else 1
        size_bytes = _text_bytes(text)
        overhead = TOKENS_PER_MESSAGE * messages
        out_max = self._span_of("output_tokens", self.fields.output_tokens, given).high
        out = out_max if self.fields.typical is None else min(self.fields.typical, out_max)
        expected_in = min(-(-size_bytes // BYTES_PER_TOKEN_EXPECTED) + overhead, size_bytes + overhead)
        return Measured(
            _token_units(min(1, size_bytes), 0),
            _token_units(expected_in, out),
            _token_units(size_bytes + overhead, out_max),
        )


def _known(units: int) -> Measured:
    measured = Units(units=units)
    return Measured(measured, measured, measured)


def _token_units(tokens_in: int, tokens_out: int) -> Units:
    return Units(units=tokens_in + tokens_out, tokens_in=tokens_in, tokens_out=tokens_out)


def _megapixels(width: int, height: int) -> int:
    return -(-width * height // PIXELS_PER_UNIT)


def _megapixels_of(value: object) -> int | None:
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    return None if match is None else _megapixels(int(match[1]), int(match[2]))


def _listed_megapixels(field: str, schema: InputSchema) -> Span:
    listed = schema.listed_values(field)
    sizes = [pixels for item in listed or () if (pixels := _megapixels_of(item)) is not None]
    if not sizes:
        raise ValueError(f"size: the schema lists no WIDTHxHEIGHT for '{field}'")
    return Span(min(sizes), max(sizes))


def _span(name: str, field: str, schema: InputSchema) -> Span:
    low, high = schema.number_range(field)
    if low is None or high is None or not 0 <= low <= high:
        raise ValueError(f"{name}: the schema must give '{field}' a minimum of at least 0 and a maximum")
    return Span(_ceil(low), _ceil(high))


def _ceil(number: Fraction) -> int:
    return math.ceil(number)


def _characters(value: object) -> int:
    return len(value) if isinstance(value, str) else 0


def _text_bytes(value: object) -> int:
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode())
    if isinstance(value, dict):
        return sum(_text_bytes(item) for item in value.values())
    if isinstance(value, list):
        return sum(_text_bytes(item) for item in value)
    return 0
