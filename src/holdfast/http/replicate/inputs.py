"""The input of a prediction as the model's schema names its fields.

What a client's own words say, and what the model does not take by that name, is sent on by the model's: a number of
images, a size, a duration. Everything else stays as it is, so that the schema refuses it by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from holdfast.ledger.catalog.models import Model

_SIZE: Final = re.compile(r"([0-9]{1,5})x([0-9]{1,5})", re.ASCII)
_DATA: Final = re.compile(r"data:[^,]{0,200};base64,", re.ASCII)


def native_input(model: Model, given: Mapping[str, object]) -> dict[str, object]:
    """Return the input for the native API; ``given`` is not changed.

    - ``num_outputs`` is the field that counts outputs, and 1 for a model that has none;
    - ``duration`` is the field that measures seconds;
    - ``size`` of the form 768x512 is ``width`` and ``height``;
    - a data URI is its base64, where the field takes that.
    """
    found = {name: _plain(model, name, value) for name, value in given.items()}
    units = model.units
    if "num_outputs" in found:
        _rename(model, found, "num_outputs", units.n)
        if units.n is None and not model.schema.field("num_outputs") and found.get("num_outputs") == 1:
            del found["num_outputs"]
    if "duration" in found:
        _rename(model, found, "duration", units.seconds)
    size = found.get("size")
    match = _SIZE.fullmatch(size) if isinstance(size, str) and not model.schema.field("size") else None
    names = (units.width or "width", units.height or "height")
    if match and all(model.schema.field(name) and name not in found for name in names):
        del found["size"]
        found |= zip(names, map(int, match.groups()), strict=True)
    return found


def _rename(model: Model, found: dict[str, object], name: str, own: str | None) -> None:
    if own is not None and own not in found and not model.schema.field(name):
        found[own] = found.pop(name)


def _plain(model: Model, name: str, value: object) -> object:
    """Return a value as the field takes it."""
    match = _DATA.match(value) if isinstance(value, str) else None
    field = None if match is None else model.schema.field(name)
    if match is None or field is None:
        return value
    branches = field.get("anyOf") or ()
    assert isinstance(branches, list | tuple)
    takes_base64 = any(each.get("contentEncoding") == "base64" for each in (field, *branches))
    return match.string[match.end() :] if takes_base64 else value
