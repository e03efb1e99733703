"""The endpoints, by subject. Every module here whose ``route`` is a route table is served; no list names them."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from holdfast.http.kit.routes import Route, RouteTable


@functools.cache
def all_routes() -> tuple[Route, ...]:
    """Return the routes of all endpoint modules, in the order of the modules' names."""
    names = sorted(module.name for module in pkgutil.walk_packages(__path__, f"{__name__}."))
    tables = (getattr(importlib.import_module(name), "route", None) for name in names)
    return tuple(route for table in tables if isinstance(table, RouteTable) for route in table.routes)
