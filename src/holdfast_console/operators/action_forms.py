"""The forms of operators' actions: that of ``/ops/api/poison/x/replay`` is sent to ``/ops/poison/x/replay``."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

from holdfast.http.endpoints import all_routes
from holdfast.http.kit.routes import Route

API: Final = "/ops/api/"


class ActionForm(NamedTuple):
    """Where the form of an action is sent, and whether it has an Idempotency-Key."""

    path: str
    needs_key: bool


@functools.cache
def _actions() -> dict[str, Route]:
    return {route.action: route for route in all_routes() if route.action is not None}


def form_path(route: Route) -> str:
    """Return the path of an endpoint's form: ``/ops/reviews/{id}/approve`` of that below ``/ops/api``."""
    return route.path.replace(API, "/ops/", 1)


def form_of(action: str, target: Sequence[str]) -> ActionForm:
    """Return the form of an action, as its endpoint is declared, on the ``target`` that the path names."""
    route, parts = _actions()[action], iter(target)
    path = re.sub(r"\{\w+\}", lambda _: quote(next(parts), safe=""), form_path(route))
    return ActionForm(path, route.idempotent)
