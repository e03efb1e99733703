"""Form bodies and queries with brackets: ``metadata[order_id]=…&expand[]=…`` parsed as nested values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import parse_qsl

from holdfast.emulators.card.objects import ApiError

FIELDS_MAX_COUNT = 1000

_NAME = re.compile(r"(\w+)(?:\[([^\[\]]*)\])?")
_WHOLE = re.compile(r"-?[0-9]{1,18}")

Form = dict[str, str | dict[str, str]]


def parse_form(raw: bytes | str) -> Form:
    """Parse a form, in which a value may have fields of its own. Raises :class:`ApiError`."""
    try:
        text = raw if isinstance(raw, str) else raw.decode("utf-8")
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX_COUNT, errors="strict")
    except ValueError:
        raise ApiError(400, "The request body is not a form.") from None
    form: Form = {}
    for name, value in pairs:
        match = _NAME.fullmatch(name)
        if match is None:
            raise ApiError(400, f"Invalid parameter name: {name[:80]}")
        outer, inner = match.groups()
        nested = None if inner is None else form.setdefault(outer, {})
        if isinstance(nested, str):
            raise ApiError(400, f"Parameter given twice in different forms: {outer[:80]}")
        if nested is None:
            form[outer] = value
        else:
            nested[inner or str(len(nested))] = value
    return form


def only(form: Form, allowed: Iterable[str]) -> None:
    """Reject unknown parameters, so that a misspelt one is found here and not at the real provider."""
    for name in form:
        if name not in allowed:
            raise ApiError(400, f"Received unknown parameter: {name}", code="parameter_unknown", param=name)


def string(form: Form, name: str) -> str | None:
    """Return a string parameter, or None if it is absent or blank."""
    value = form.get(name)
    if isinstance(value, dict):
        raise ApiError(400, f"Invalid string: {name}", param=name)
    return value or None


def integer(form: Form, name: str) -> int | None:
    """Return an integer parameter, or None if it is absent."""
    value = string(form, name)
    if value is None:
        return None
    if not _WHOLE.fullmatch(value):
        raise ApiError(400, f"Invalid integer: {value[:40]}", code="parameter_invalid_integer", param=name)
    return int(value)


def required(form: Form, name: str) -> str:
    """Return a required string parameter."""
    value = string(form, name)
    if value is None:
        raise ApiError(400, f"Missing required param: {name}.", code="parameter_missing", param=name)
    return value


def fields(form: Form, name: str) -> dict[str, str]:
    """Return the fields of a parameter, empty if it is absent."""
    value = form.get(name, {})
    if isinstance(value, str):
        raise ApiError(400, f"Invalid hash or array: {name}", param=name)
    return value
