"""Objects as responses show them: related ones by id, or embedded if ``expand`` asks; lists with cursors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from holdfast.standins.card.errors import ApiError
from holdfast.standins.card.forms import Form, string, strings, whole
from holdfast.standins.card.state import State, Store

EXPAND_MAX_DEPTH: Final = 4
PAGE_DEFAULT_COUNT: Final = 10
PAGE_MAX_COUNT: Final = 100

Json = dict[str, Any]

_RELATED: Final[dict[str, dict[str, Callable[[State], dict[str, Any]]]]] = {
    "payment_intent": {"latest_charge": lambda state: state.charges},
    "charge": {
        "balance_transaction": lambda state: state.transactions,
        "failure_balance_transaction": lambda state: state.transactions,
        "payment_intent": lambda state: state.intents,
    },
    "refund": {
        "balance_transaction": lambda state: state.transactions,
        "failure_balance_transaction": lambda state: state.transactions,
        "charge": lambda state: state.charges,
        "payment_intent": lambda state: state.intents,
    },
    "dispute": {"charge": lambda state: state.charges, "payment_intent": lambda state: state.intents},
    "balance_transaction": {
        "source": lambda state: {**state.charges, **state.refunds, **state.disputes},
    },
}


def render(store: Store, thing: object, form: Form | None = None) -> Json:
    """Render an object, expanded as the form asks. Raises :class:`ApiError`."""
    return _render(store, thing, _tree(form))


def render_list(store: Store, url: str, things: Iterable[Any], form: Form) -> Json:
    """Render one page of a list, newest first, by ``limit``, ``starting_after`` and ``ending_before``."""
    limit = whole(form, "limit")
    limit = PAGE_DEFAULT_COUNT if limit is None else limit
    if not 1 <= limit <= PAGE_MAX_COUNT:
        raise ApiError(400, "Invalid limit", param="limit")
    ordered = list(things)[::-1]
    places = {each.id: place for place, each in enumerate(ordered)}
    after, before = (_place(places, string(form, name), name) for name in ("starting_after", "ending_before"))
    if before is not None:
        start = max(0, before - limit)
        page, more = ordered[start:before], start > 0
    else:
        start = 0 if after is None else after + 1
        page, more = ordered[start : start + limit], start + limit < len(ordered)
    tree = _tree(form).get("data", {})
    return _list(url, [_render(store, each, tree) for each in page], more)


def _place(places: dict[str, int], given: str | None, name: str) -> int | None:
    if given is None:
        return None
    if given not in places:
        raise ApiError(400, f"No such object: '{given[:80]}'", code="resource_missing", param=name)
    return places[given]


def _tree(form: Form | None) -> Json:
    tree: Json = {}
    for path in strings(form or {}, "expand"):
        parts = path.split(".")
        if len(parts) > EXPAND_MAX_DEPTH + (parts[0] == "data"):
            raise ApiError(400, "You cannot expand more than 4 levels of a property.", param="expand")
        here = tree
        for part in parts:
            here = here.setdefault(part, {})
    return tree


def _render(store: Store, thing: Any, tree: Json) -> Json:
    shown: Json = msgspec.to_builtins(thing)
    related = _RELATED.get(thing.object, {})
    for name, inner in tree.items():
        if thing.object == "charge" and name == "refunds":
            shown[name] = _refunds(store, thing.id, inner.get("data", {}))
        elif name in related:
            found = None if shown[name] is None else related[name](store.state).get(shown[name])
            if found is not None:
                shown[name] = _render(store, found, inner)
        else:
            message = f"This property cannot be expanded ({name[:80]})."
            raise ApiError(400, message, param="expand")
    return shown


def _refunds(store: Store, charge_id: str, tree: Json) -> Json:
    found: Sequence[Any] = [each for each in store.state.refunds.values() if each.charge == charge_id][::-1]
    page = [_render(store, each, tree) for each in found[:PAGE_DEFAULT_COUNT]]
    return _list(f"/v1/charges/{charge_id}/refunds", page, len(found) > PAGE_DEFAULT_COUNT)


def _list(url: str, page: list[Json], more: bool) -> Json:
    return {"object": "list", "data": page, "has_more": more, "url": url}
