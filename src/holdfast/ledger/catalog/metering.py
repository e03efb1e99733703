"""Metering: the least, the expected and the most units of work of an input.

| mode | units | known beforehand |
|---|---|---|
| per_request | 1 | always |
| per_image | n | always |
| per_megapixel | n × ceil(width × height / 1,000,000) | when the size is given |
| per_second | n × ceil(seconds) | when the duration is given |
| per_character | Unicode code points of the text | always |
| per_token | tokens in and out | never |

What an input leaves open is bounded by the model's schema.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated

import msgspec

from holdfast.ledger.catalog.input_schema import InputSchema
from holdfast.ledger.catalog.tables import Text
from holdfast.ledger.catalog.terms import PricingMode, Units
from holdfast.ledger.plain_json import TEXT_BYTES_MAX, VALUES_MAX

PIXELS_PER_UNIT = 1_000_000
TOKENS_PER_MESSAGE = 16
"""Tokens counted for the framing of one message, in addition to its text."""
BYTES_PER_TOKEN_EXPECTED = 4
"""The expected length of a token. A token is never shorter than a byte, which bounds the most."""

_SIZE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})", re.ASCII)


class UnitFields(msgspec.Struct, frozen=True, kw_only=True):
    """Which top-level input fields measure the work. ``typical`` is the expected number of units if they are open.

    ``size`` contains WIDTHxHEIGHT and replaces ``width`` and ``height``. For ``per_token``, ``text`` is the input,
    ``output_tokens`` the maximum output, and ``typical`` the expected output.
    """

    n: Text | None = None
    seconds: Text | None = None
    width: Text | None = None
    height: Text | None = None
    size: Text | None = None
    text: Text | None = None
    output_tokens: Text | None = None
    typical: Annotated[int, msgspec.Meta(ge=1, le=10**9)] | None = None


class Measured(msgspec.Struct, frozen=True):
    """The units of one input: ``smallest`` ≤ ``estimated`` ≤ ``largest``, all equal if they are known."""

    smallest: Units
    estimated: Units
    largest: Units


class Bounds(msgspec.Struct, frozen=True):
    """The lowest and the highest value of a whole number."""

    low: int
    high: int


ONE = Bounds(1, 1)


_NEEDED: Mapping[PricingMode, tuple[tuple[str, ...], ...]] = {
    "per_request": ((),),
    "per_image": ((),),
    "per_megapixel": (("size",), ("width", "height")),
    "per_second": (("seconds",),),
    "per_character": (("text",),),
    "per_token": (("text", "output_tokens"),),
}
"""The fields that each mode requires; of several sets exactly one."""

_MULTIPLIED: tuple[PricingMode, ...] = ("per_image", "per_megapixel", "per_second")
_OPEN_ENDED: tuple[PricingMode, ...] = ("per_megapixel", "per_second", "per_token")


class Meter:
    """Measures the inputs of one model. ``most`` is the largest measure of any valid input.

    Raises ``ValueError`` with the fault's text if the fields cannot measure the mode.
    """

    __slots__ = ("_bounds", "fields", "mode", "most")

    def __init__(self, mode: PricingMode, fields: UnitFields, schema: InputSchema) -> None:
        self.mode = mode
        self.fields = fields
        self._check_names(schema)
        self._bounds: dict[str, Bounds] = {}
        for name in ("n", "seconds", "width", "height", "output_tokens"):
            field = getattr(fields, name)
            if field is not None:
                self._bounds[name] = _bounds(name, field, schema)
        if fields.size is not None:
            self._bounds["size"] = _listed_megapixels(fields.size, schema)
        each = self._bounds["output_tokens"] if mode == "per_token" else self._each({})
        if fields.typical is not None and not each.low <= fields.typical <= each.high:
            raise ValueError(
                f"typical: {fields.typical} is not between the least and the most that the schema allows"
            )
        if mode == "per_character":
            self.most = Units(units=TEXT_BYTES_MAX)
        elif mode == "per_token":
            self.most = _token_units(TEXT_BYTES_MAX + TOKENS_PER_MESSAGE * VALUES_MAX, each.high)
        else:
            self.most = Units(units=self._bounds.get("n", ONE).high * each.high)

    def measure(self, given: Mapping[str, object]) -> Measured:
        """Measure an input that is valid for the model's schema, with its defaults filled in."""
        if self.mode == "per_token":
            return self._tokens(given)
        if self.mode == "per_character":
            text = given.get(self.fields.text or "")
            return _known(len(text) if isinstance(text, str) else 0)
        count = self._bounds_of("n", given) if self.fields.n in given else ONE
        each = self._each(given)
        low, high = count.low * each.low, count.high * each.high
        if low == high:
            return _known(low)
        typical = each.high if self.fields.typical is None else min(max(self.fields.typical, each.low), each.high)
        return Measured(Units(units=low), Units(units=count.high * typical), Units(units=high))

    def _check_names(self, schema: InputSchema) -> None:
        named = {name for name in UnitFields.__struct_fields__ if getattr(self.fields, name) is not None}
        optional = {"n"} if self.mode in _MULTIPLIED else set()
        optional |= {"typical"} if self.mode in _OPEN_ENDED else set()
        choices = _NEEDED[self.mode]
        if not any(set(choice) == named - optional for choice in choices):
            wanted = " or ".join(" and ".join(choice) or "no fields" for choice in choices)
            raise ValueError(f"{self.mode} is measured by {wanted}")
        for name in sorted(named - {"typical"}):
            field = getattr(self.fields, name)
            if schema.field(field) is None:
                raise ValueError(f"{name}: the input schema has no field '{field}'")

    def _each(self, given: Mapping[str, object]) -> Bounds:
        """Return the units of one output."""
        if self.mode == "per_second":
            return self._bounds_of("seconds", given)
        if self.mode != "per_megapixel":
            return ONE
        if self.fields.size is not None:
            megapixels = _megapixels_of(given.get(self.fields.size))
            return self._bounds["size"] if megapixels is None else Bounds(megapixels, megapixels)
        width, height = self._bounds_of("width", given), self._bounds_of("height", given)
        return Bounds(_megapixels(width.low, height.low), _megapixels(width.high, height.high))

    def _bounds_of(self, name: str, given: Mapping[str, object]) -> Bounds:
        """Return the given value of a field, or the bounds of the schema if it is not a number."""
        value = given.get(getattr(self.fields, name))
        if isinstance(value, int | float) and not isinstance(value, bool):
            whole = math.ceil(value)
            return Bounds(whole, whole)
        return self._bounds[name]

    def _tokens(self, given: Mapping[str, object]) -> Measured:
        text = given.get(self.fields.text or "")
        messages = len(text) if isinstance(text, list) else 1
        size_bytes = _text_bytes(text)
        overhead = TOKENS_PER_MESSAGE * messages
        out_max = self._bounds_of("output_tokens", given).high
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


def _listed_megapixels(field: str, schema: InputSchema) -> Bounds:
    listed = schema.listed_values(field)
    sizes = [pixels for item in listed or () if (pixels := _megapixels_of(item)) is not None]
    if not sizes:
        raise ValueError(f"size: the schema lists no WIDTHxHEIGHT for '{field}'")
    return Bounds(min(sizes), max(sizes))


def _bounds(name: str, field: str, schema: InputSchema) -> Bounds:
    low, high = schema.number_range(field)
    if low is None or high is None or not 0 <= low <= high:
        raise ValueError(f"{name}: the schema must give '{field}' a minimum of at least 0 and a maximum")
    return Bounds(math.ceil(low), math.ceil(high))


def _text_bytes(value: object) -> int:
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode())
    if isinstance(value, dict):
        return sum(_text_bytes(item) for item in value.values())
    if isinstance(value, list):
        return sum(_text_bytes(item) for item in value)
    return 0
