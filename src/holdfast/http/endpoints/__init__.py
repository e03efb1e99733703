"""The endpoints, by subject. Every module here whose ``route`` is a route table is served; no list names them."""

from __future__ import annotations

import functools

from holdfast.http.kit.extensions import routes_below
from holdfast.http.kit.routes import Route


@functools.cache
def all_routes() -> tuple[Route, ...]:
    """Return the routes of all endpoint modules, in the order of the modules' names."""
    return routes_below(__name__)
