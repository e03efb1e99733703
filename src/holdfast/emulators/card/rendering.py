"""Objects as responses show them: related ones by id, or embedded if ``expand`` asks; lists with cursors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.emulators.card.forms import Form, fields, integer, string
from holdfast.emulators.card.objects import ApiError
from holdfast.emulators.card.state import Store

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
    places = {each.id: place for place, each in enumerate(ordered)}
    if after is not None and after not in places:
        message = f"No such object: '{after[:80]}'"
        raise ApiError(400, message, code="resource_missing", param="starting_after")
    start = 0 if after is None else places[after] + 1
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
