"""The pages, by subject. Every module here whose ``view`` is a view table is served; no list names them."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from holdfast.http.pages.views import View, ViewTable


@functools.cache
def all_views() -> tuple[View, ...]:
    """Return the views of all modules, in the order of the modules' names."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__, f"{__name__}."))
    tables = (getattr(importlib.import_module(name), "view", None) for name in names)
    return tuple(view for table in tables if isinstance(table, ViewTable) for view in table.views)
