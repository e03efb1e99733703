"""Requests and responses of the card provider's API.

Forms and queries have brackets: ``metadata[order_id]=…&expand[]=…``. Responses name related objects by id, or embed
those that ``expand`` asks for; lists have cursors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from holdfast_emulators.card.state import ApiError, Store

FIELDS_MAX_COUNT = 1000

_NAME = re.compile(r"(\w+)(?:\[([^\[\]]*)\])?")
_WHOLE = re.compile(r"-?[0-9]{1,18}")

Form = dict[str, str | dict[str, str]]

PAGE_DEFAULT_COUNT: Final = 10
PAGE_MAX_COUNT: Final = 100
Json = dict[str, Any]
_RELATED: Final[Mapping[str, str]] = {
    "latest_charge": "charges",
    "charge": "charges",
    "payment_intent": "intents",
    "balance_transaction": "transactions",
    "failure_balance_transaction": "transactions",
}
"""The fields that name another object, and the collection it is in."""


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


def render(store: Store, thing: object, form: Form) -> Json:
    """Render an object, expanded as the form asks. Raises :class:`ApiError`."""
    return _render(store, thing, fields(form, "expand").values())


def render_list(store: Store, url: str, things: Iterable[Any], form: Form) -> Json:
    """Render one page of a list, newest first, by ``limit`` and ``starting_after``."""
    limit = integer(form, "limit")
    if limit is None:
        limit = PAGE_DEFAULT_COUNT
    if not 1 <= limit <= PAGE_MAX_COUNT:
        raise ApiError(400, "Invalid limit", param="limit")
    ordered = list(things)[::-1]
    after = string(form, "starting_after")
    numbers = {each.id: number for number, each in enumerate(ordered)}
    if after is not None and after not in numbers:
        message = f"No such object: '{after[:80]}'"
        raise ApiError(400, message, code="resource_missing", param="starting_after")
    start = 0 if after is None else numbers[after] + 1
    paths = [path.removeprefix("data.") for path in fields(form, "expand").values()]
    return _render_page(store, url, ordered[start:], paths, limit)


def _render_page(store: Store, url: str, things: Sequence[Any], paths: Sequence[str], limit: int) -> Json:
    page = [_render(store, each, paths) for each in things[:limit]]
    return {"object": "list", "data": page, "has_more": len(things) > limit, "url": url}


def _render(store: Store, thing: Any, paths: Iterable[str]) -> Json:
    shown: Json = msgspec.to_builtins(thing)
    inner: dict[str, list[str]] = {}
    for path in paths:
        name, _, rest = path.partition(".")
        inner.setdefault(name, []).extend([rest] if rest else [])
    for name, below in inner.items():
        if thing.object == "charge" and name == "refunds":
            refunds = [each for each in store.state.refunds.values() if each.charge == thing.id][::-1]
            of_each = [path.removeprefix("data.") for path in below]
            url = f"/v1/charges/{thing.id}/refunds"
            shown[name] = _render_page(store, url, refunds, of_each, PAGE_DEFAULT_COUNT)
        elif name in _RELATED and name in shown:
            if shown[name] is not None:
                related = getattr(store.state, _RELATED[name])[shown[name]]
                shown[name] = _render(store, related, below)
        else:
            raise ApiError(400, f"This property cannot be expanded ({name[:80]}).", param="expand")
    return shown
