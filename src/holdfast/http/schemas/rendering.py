"""Rendering of values as response bodies: fields of the same name are copied."""

from __future__ import annotations

from datetime import datetime
from typing import TypeVar

import msgspec

from holdfast.ledger.clock import format_time
from holdfast.ledger.money import format_amount

S = TypeVar("S", bound=msgspec.Struct)


def render(shape: type[S], *values: object, **fields: object) -> S:
    """Return a ``shape`` of ``fields`` and, for the other fields, of the attributes of ``values``.

    The first value that has an attribute ``name``, or ``name_micro`` for an amount, gives the field ``name``. Times
    and amounts are formatted.
    """
    found = {}
    for name in shape.__struct_fields__:
        field = fields[name] if name in fields else _attribute(values, name)
        found[name] = format_time(field) if isinstance(field, datetime) else field
    return msgspec.convert(found, shape, from_attributes=True)


def _attribute(values: tuple[object, ...], name: str) -> object:
    for value in values:
        if hasattr(value, name):
            return getattr(value, name)
        if hasattr(value, f"{name}_micro"):
            amount_micro = getattr(value, f"{name}_micro")
            return None if amount_micro is None else format_amount(amount_micro)
    raise AssertionError(f"no value has the attribute {name!r}")
