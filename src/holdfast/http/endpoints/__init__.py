"""The endpoints, by subject. Every module here whose ``route`` is a route table is served; no list names them.

So is every such module of the layers, the packages beside this one that translate another service's API.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from types import ModuleType
from typing import Final

from holdfast.http.kit.routes import Route, RouteTable

LAYERS: Final = ("holdfast.http.openai", "holdfast.http.replicate")


@functools.cache
def all_routes() -> tuple[Route, ...]:
    """Return the routes of all endpoint modules, in the order of the modules' names, then those of the layers."""
    tables = [getattr(module, "route", None) for root in (__name__, *LAYERS) for module in _modules(root)]
    return tuple(route for table in tables if isinstance(table, RouteTable) for route in table.routes)


def _modules(root: str) -> list[ModuleType]:
    """Return the modules of a package, in the order of their names."""
    names = sorted(each.name for each in pkgutil.walk_packages(importlib.import_module(root).__path__, f"{root}."))
    return [importlib.import_module(name) for name in names]
