"""A quick yes for plainly valid inputs, since most are, and the full validator takes far longer to agree.

Only schemas made of the everyday keywords get one. A yes is always right; anything else than a yes says nothing,
and the full validator has the word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Accept = Callable[[object], bool]

_ANNOTATIONS = frozenset({"$schema", "$comment", "title", "description", "default", "examples"})
_OBJECT = _ANNOTATIONS | {"type", "properties", "required", "additionalProperties"}
_TEXT = _ANNOTATIONS | {"type", "minLength", "maxLength", "pattern"}
_NUMBER = _ANNOTATIONS | {"type", "minimum", "maximum"}


def quick_accept(schema: object) -> Accept | None:
    """Make the quick check of a schema, or None where it uses a keyword that only the full validator knows."""
    if not isinstance(schema, Mapping):
        return None
    used = schema.keys() - _ANNOTATIONS
    kind = schema.get("type")
    if used in ({"enum"}, {"const"}):
        return _accept_listed(schema["enum"] if "enum" in schema else [schema["const"]])
    if used == {"anyOf"}:
        return _accept_any(schema["anyOf"])
    if kind == "object" and schema.keys() <= _OBJECT:
        return _accept_object(schema)
    if kind == "string" and schema.keys() <= _TEXT:
        return _accept_text(schema)
    if kind in {"integer", "number"} and schema.keys() <= _NUMBER:
        return _accept_number(schema, whole=kind == "integer")
    return None


def _accept_object(schema: Mapping[str, object]) -> Accept | None:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if schema.get("additionalProperties") is not False or not isinstance(properties, Mapping):
        return None
    fields: dict[str, Accept] = {}
    for name, below in properties.items():
        accept = quick_accept(below)
        if accept is None:
            return None
        fields[name] = accept
    needed = tuple(required) if isinstance(required, list) else ()

    def accept_object(value: object) -> bool:
        if type(value) is not dict:
            return False
        for name, item in value.items():
            accept = fields.get(name)
            if accept is None or not accept(item):
                return False
        return all(name in value for name in needed)

    return accept_object


def _accept_text(schema: Mapping[str, object]) -> Accept | None:
    least, most = schema.get("minLength", 0), schema.get("maxLength", float("inf"))
    pattern = schema.get("pattern", "")
    if not isinstance(least, int) or not isinstance(most, int | float) or not isinstance(pattern, str):
        return None
    search = re.compile(pattern).search

    def accept_text(value: object) -> bool:
        return type(value) is str and least <= len(value) <= most and search(value) is not None

    return accept_text


def _accept_number(schema: Mapping[str, object], *, whole: bool) -> Accept | None:
    least, most = schema.get("minimum", float("-inf")), schema.get("maximum", float("inf"))
    if not isinstance(least, int | float) or not isinstance(most, int | float):
        return None
    if whole:

        def accept_whole(value: object) -> bool:
            return type(value) is int and least <= value <= most

        return accept_whole

    def accept_number(value: object) -> bool:
        return (type(value) is int or type(value) is float) and least <= value <= most

    return accept_number


def _accept_listed(listed: object) -> Accept | None:
    # Of other kinds Python and JSON disagree about what is equal.
    if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
        return None
    known = frozenset(listed)

    def accept_listed(value: object) -> bool:
        return type(value) is str and value in known

    return accept_listed


def _accept_any(branches: object) -> Accept | None:
    accepts = [quick_accept(branch) for branch in branches] if isinstance(branches, list) else []
    sure = tuple(accept for accept in accepts if accept is not None)
    if not sure:
        return None

    def accept_any(value: object) -> bool:
        return any(accept(value) for accept in sure)

    return accept_any
