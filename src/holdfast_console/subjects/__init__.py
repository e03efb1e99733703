"""The pages, by subject. Every module here whose ``view`` is a view table is served; no list names them."""

from __future__ import annotations

import functools

from holdfast.http.kit.extensions import modules_below
from holdfast_console.views import View, ViewTable


@functools.cache
def all_views() -> tuple[View, ...]:
    """Return the views of all modules, in the order of the modules' names."""
    tables = (getattr(module, "view", None) for module in modules_below(__name__))
    return tuple(view for table in tables if isinstance(table, ViewTable) for view in table.views)
