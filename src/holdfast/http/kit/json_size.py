"""How much a JSON body holds, counted on its raw bytes before anything is decoded.

Decoding costs by the value, not by the byte: a mebibyte of ``[{},{},…`` takes a hundred times as long as a string
of the same length. What is counted here takes a few passes of C code over the bytes and makes no value at all.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.ledger.plain_json import VALUES_MAX as INPUT_VALUES_MAX

SMALL_BODY_BYTES_MAX: Final = 16 * 1024
"""The body of a route that takes a few short fields."""

SMALL_VALUES_MAX: Final = 256
"""The values in such a body; extra keys are allowed and ignored."""

INPUT_BODY_VALUES_MAX: Final = INPUT_VALUES_MAX + 500
"""The values in a body with a model's input. The input alone has its own, lower limit, which names the place."""


class JsonSize(NamedTuple):
    """Upper bounds: ``values_count`` of the values without keys, ``containers_count`` of the lists and objects."""

    values_count: int
    containers_count: int


def json_size(raw: bytes, values_max: int) -> JsonSize | None:
    """Count a body's values, or None where there are surely more than ``values_max`` or the body is no JSON.

    Commas and brackets inside strings do not count. What stands here for a body that is no JSON means nothing.
    """
    quick = _counted(raw)
    if quick.values_count <= values_max:
        return quick
    # Strings may hold what looks like structure. Escapes go first, so that every quote left opens or closes one.
    plain = raw.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in raw else raw
    # Each value and each key is one string at the most, so this bounds the pieces made below.
    if len(plain.translate(None, _ALL_BUT_QUOTES)) > 4 * values_max + 2:
        return None
    found = _counted(b"".join(plain.split(b'"')[::2]))
    return found if found.values_count <= values_max else None


def _counted(raw: bytes) -> JsonSize:
    # By deleting the rest: one pass at the same speed whatever the bytes are, which counting each would not be.
    marks = raw.translate(None, _ALL_BUT_MARKS)
    containers_count = len(marks.translate(None, b","))
    # Each value but the first of a container has a comma before it, and each container may have a first one.
    return JsonSize(1 + len(marks), containers_count)


_ALL_BUT_MARKS: Final = bytes(set(range(256)) - set(b",[{"))
_ALL_BUT_QUOTES: Final = bytes(set(range(256)) - set(b'"'))
