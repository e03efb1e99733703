"""The tree as it lives, over all processes."""

from __future__ import annotations

from holdfast.http.endpoints.operators.supervision.processes import Tree, read_tree
from holdfast.http.pages.rendering import Html
from holdfast.http.pages.views import ViewResult, ViewTable, Visit

view = ViewTable()


@view("/ops/tree")
async def tree(visit: Visit) -> ViewResult:
    """Every process with its children and its groups of actors."""
    return Html("tree.html", {"tree": await visit.read(read_tree, Tree)}, is_live=True)
