"""Form bodies and queries with brackets: ``metadata[order_id]=…&expand[]=…`` parsed as nested values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl

from holdfast.standins.card.errors import ApiError

FIELDS_MAX_COUNT = 1000
DEPTH_MAX_COUNT = 5
METADATA_MAX_COUNT = 50
METADATA_VALUE_MAX_CHARS = 500

_NAME = re.compile(r"([A-Za-z0-9_]+)((?:\[[A-Za-z0-9_.-]*\])*)\Z")
_PART = re.compile(r"\[([^\]]*)\]")
_WHOLE = re.compile(r"-?[0-9]{1,18}\Z")

Form = dict[str, Any]


def parse_form(raw: bytes | str) -> Form:
    """Parse a form into nested values; ``[]`` and numeric keys become lists. Raises :class:`ApiError`."""
    try:
        text = raw if isinstance(raw, str) else raw.decode("utf-8")
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX_COUNT, errors="strict")
    except ValueError:
        raise ApiError(400, "The request body is not a form.") from None
    root: Form = {}
    for name, value in pairs:
        _put(root, name, value)
    return {name: _listed(value) for name, value in root.items()}


def only(form: Form, allowed: Iterable[str]) -> None:
    """Reject unknown parameters, so that a misspelt one is found here and not at the real provider."""
    for name in form:
        if name not in allowed:
            raise ApiError(400, f"Received unknown parameter: {name}", code="parameter_unknown", param=name)


def string(form: Form, name: str) -> str | None:
    """Return a string parameter, or None if it is absent or blank."""
    value = form.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise ApiError(400, f"Invalid string: {name}", param=name)
    return value


def whole(form: Form, name: str) -> int | None:
    """Return an integer parameter, or None if it is absent."""
    value = string(form, name)
    if value is None:
        return None
    if not _WHOLE.match(value):
        raise ApiError(400, f"Invalid integer: {value[:40]}", code="parameter_invalid_integer", param=name)
    return int(value)


def required(form: Form, name: str) -> str:
    """Return a required string parameter."""
    value = string(form, name)
    if value is None:
        raise ApiError(400, f"Missing required param: {name}.", code="parameter_missing", param=name)
    return value


def strings(form: Form, name: str) -> list[str]:
    """Return a list of strings, empty if absent."""
    value = form.get(name, [])
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ApiError(400, "Invalid array", param=name)
    return value


def metadata(form: Form) -> dict[str, str]:
    """Return the metadata parameter: pairs of short strings."""
    value = form.get("metadata", {})
    if not isinstance(value, dict) or len(value) > METADATA_MAX_COUNT:
        raise ApiError(400, "Invalid hash", param="metadata")
    for key, each in value.items():
        if not isinstance(each, str) or len(key) > 40 or len(each) > METADATA_VALUE_MAX_CHARS:
            raise ApiError(400, "Metadata keys have at most 40, values at most 500 characters", param="metadata")
    return {key: each for key, each in value.items() if each}


def _put(root: Form, name: str, value: str) -> None:
    match = _NAME.match(name)
    if match is None:
        raise ApiError(400, f"Invalid parameter name: {name[:80]}")
    path = [match.group(1), *_PART.findall(match.group(2))]
    if len(path) > DEPTH_MAX_COUNT:
        raise ApiError(400, f"Parameter nested too deep: {name[:80]}")
    here = root
    for place, part in enumerate(path):
        key = part or str(len(here))
        if place == len(path) - 1:
            here[key] = value
            return
        here = here.setdefault(key, {})
        if not isinstance(here, dict):
            raise ApiError(400, f"Parameter given twice in different forms: {name[:80]}")


def _listed(value: Any) -> Any:
    """Turn dictionaries keyed 0, 1, 2 … into lists."""
    if not isinstance(value, dict):
        return value
    inner = {key: _listed(each) for key, each in value.items()}
    return list(inner.values()) if inner and all(map(str.isdecimal, inner)) else inner
