"""JSON values from callers: copied within limits, numbers normalized, and encoded in one canonical form."""

from __future__ import annotations

import math

import msgspec

DEPTH_LEVELS_MAX = 16
"""How many objects and lists may be nested."""

VALUES_MAX = 2_000
"""How many values of any kind one document may hold."""

TEXT_BYTES_MAX = 2 * 1024 * 1024
"""UTF-8 bytes of all strings and keys of one document together."""

NUMBER_MAX = 2**53 - 1
"""The largest absolute value of a number: up to here every JSON parser represents integers exactly."""


class NotPlain(Exception):
    """A value is not JSON, or exceeds a limit. ``path`` leads to it; ``reason`` names the rule."""

    def __init__(self, path: tuple[str, ...], reason: str) -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason


def plain_copy(value: object) -> object:
    """Copy a decoded JSON value; the copy shares nothing mutable with the original.

    Whole floats become integers (``4.0`` is ``4``), so that equal numbers are encoded alike. Raises
    :class:`NotPlain` for anything that is not JSON, for NaN and infinities, for text that PostgreSQL cannot store
    (NUL, lone surrogates), and beyond any limit of this module.
    """
    return _Copier().copy(value, DEPTH_LEVELS_MAX)


def canonical_json(value: object) -> bytes:
    """Encode a plain value with sorted keys and no blanks: equal values give equal bytes."""
    return msgspec.json.encode(value, order="sorted")


class _Copier:
    """One pass over one document, with what remains of its limits."""

    __slots__ = ("bytes_left", "values_left")

    def __init__(self) -> None:
        self.values_left = VALUES_MAX
        self.bytes_left = TEXT_BYTES_MAX

    def copy(self, value: object, levels_left: int) -> object:
        self.values_left -= 1
        if self.values_left < 0:
            raise NotPlain((), f"has more than {VALUES_MAX} values")
        # isinstance would let subclasses through, whose methods need not behave like JSON's own types.
        if type(value) is str:
            return self.text(value)
        if value is None or type(value) is bool:
            return value
        if type(value) is int:
            if not -NUMBER_MAX <= value <= NUMBER_MAX:
                raise NotPlain((), "is a number too large to be represented exactly")
            return value
        if type(value) is float:
            if not math.isfinite(value) or abs(value) > NUMBER_MAX:
                raise NotPlain((), "is not a number that JSON can carry")
            return int(value) if value.is_integer() else value
        if type(value) is not dict and type(value) is not list:
            raise NotPlain((), "is not a JSON value")
        if levels_left == 0:
            raise NotPlain((), f"is nested deeper than {DEPTH_LEVELS_MAX} levels")
        if type(value) is dict:
            return self.table(value, levels_left - 1)
        return [self.child(str(index), item, levels_left - 1) for index, item in enumerate(value)]

    def table(self, value: dict[object, object], levels_left: int) -> dict[str, object]:
        copied: dict[str, object] = {}
        for key, item in value.items():
            if type(key) is not str:
                raise NotPlain((), "has a key that is not a string")
            copied[self.text(key)] = self.child(key, item, levels_left)
        return copied

    def child(self, key: str, value: object, levels_left: int) -> object:
        try:
            return self.copy(value, levels_left)
        except NotPlain as fault:
            raise NotPlain((key, *fault.path), fault.reason) from None

    def text(self, value: str) -> str:
        if value.isascii():
            self.bytes_left -= len(value)
        else:
            try:
                self.bytes_left -= len(value.encode())
            except UnicodeEncodeError:
                raise NotPlain((), "has text that is not valid Unicode") from None
        if self.bytes_left < 0:
            raise NotPlain((), f"has more than {TEXT_BYTES_MAX} bytes of text")
        if "\0" in value:
            raise NotPlain((), "has a NUL character in its text")
        return value
