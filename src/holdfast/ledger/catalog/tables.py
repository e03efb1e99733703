"""Read a table of the catalog file as a msgspec struct, and report every fault in it instead of the first.

A field's type says what is allowed; the description of its ``msgspec.Meta`` completes "must be …" in the fault.
"""

from __future__ import annotations

from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from holdfast.ledger.public_types import expected_value

Text = Annotated[str, msgspec.Meta(min_length=1, description="a string that is not empty")]

SHOWN_CHARS_MAX = 80
"""How much of a wrong value a fault repeats."""


def read_fields(
    kind: type[msgspec.Struct],
    table: object,
    where: str,
    faults: list[str],
    *,
    secret: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """Return the valid values of ``table`` by field of ``kind``, with the defaults of missing keys filled in.

    Appends a line to ``faults`` for every wrong, missing or unknown key; values of ``secret`` keys are not shown.
    """
    if not isinstance(table, dict):
        faults.append(f"{where}: must be a table")
        return {}
    types = get_type_hints(kind, include_extras=True)
    found: dict[str, Any] = {}
    known = set()
    for field in msgspec.structs.fields(kind):
        key, path = field.encode_name, f"{where}: {field.encode_name}"
        known.add(key)
        if key in table:
            value = _read(types[field.name], table[key], path, faults, is_secret=key in secret)
            if value is not _FAULTY:
                found[field.name] = value
        elif field.required:
            faults.append(f"{path} is missing")
        else:
            found[field.name] = field.default
    faults += [f"{where}: {key} is not a known key" for key in table if key not in known]
    return found


_FAULTY: Any = object()


def _read(kind: Any, value: object, path: str, faults: list[str], *, is_secret: bool) -> Any:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        before = len(faults)
        fields = read_fields(kind, value, path, faults)
        return kind(**fields) if len(faults) == before else _FAULTY
    item = get_args(kind)[0] if get_origin(kind) is tuple else None
    if isinstance(item, type) and issubclass(item, msgspec.Struct) and isinstance(value, list):
        items = [
            _read(item, each, f"{path} {number}", faults, is_secret=False) for number, each in enumerate(value, 1)
        ]
        return _FAULTY if _FAULTY in items else tuple(items)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        faults.append(f"{path} must be {expected_value(kind)}{'' if is_secret else _shown(value)}")
        return _FAULTY


def _shown(value: object) -> str:
    if not isinstance(value, str | int | float):
        return ""
    if isinstance(value, str) and len(value) > SHOWN_CHARS_MAX:
        value = value[: SHOWN_CHARS_MAX - 1] + "…"
    return f", not {value!r}"
