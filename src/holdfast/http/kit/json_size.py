"""The number of values in a JSON body, counted on its bytes before it is decoded.

The cost of decoding depends on the values, not on the bytes: a mebibyte of ``[{},{},…`` takes a hundred times as
long as a string of the same length. Counting takes a few passes of C code over the bytes and creates no values.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from holdfast.ledger.plain_json import VALUES_MAX as INPUT_VALUES_MAX

SMALL_BODY_BYTES_MAX: Final = 16 * 1024
"""The body limit of a route whose body has a few short fields."""

SMALL_VALUES_MAX: Final = 256
"""The limit of values in such a body; extra keys are allowed and ignored."""

INPUT_BODY_VALUES_MAX: Final = INPUT_VALUES_MAX + 500
"""The limit of values in a body with a model's input. The input has a lower limit of its own."""


class JsonSize(NamedTuple):
    """Upper bounds: ``values_count`` of the values without keys, ``containers_count`` of the lists and objects."""

    values_count: int
    containers_count: int


def json_size(raw: bytes, values_max: int) -> JsonSize | None:
    """Count a body's values; None if there are more than ``values_max``.

    Commas and brackets inside strings do not count. For a body that is not JSON the result has no meaning.
    """
    quick = _counted(raw)
    if quick.values_count <= values_max:
        return quick
    # Strings may contain brackets and commas. Without the escapes, every remaining quote starts or ends a string.
    plain = raw.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in raw else raw
    # Each value and each key is at most one string, so this bounds the number of parts split below.
    if len(plain.translate(None, _ALL_BUT_QUOTES)) > 4 * values_max + 2:
        return None
    found = _counted(b"".join(plain.split(b'"')[::2]))
    return found if found.values_count <= values_max else None


def _counted(raw: bytes) -> JsonSize:
    # One pass that deletes all other bytes is equally fast for any input; counting each mark is not.
    marks = raw.translate(None, _ALL_BUT_MARKS)
    containers_count = len(marks.translate(None, b","))
    # Each value but the first of a container has a comma before it, and each container may have a first one.
    return JsonSize(1 + len(marks), containers_count)


_ALL_BUT_MARKS: Final = bytes(set(range(256)) - set(b",[{"))
_ALL_BUT_QUOTES: Final = bytes(set(range(256)) - set(b'"'))
