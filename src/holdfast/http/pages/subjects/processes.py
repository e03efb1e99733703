"""The tree as it lives, over all processes."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.http.endpoints.operators.supervision.processes import Tree, read_tree
from holdfast.http.pages.rendering import Html
from holdfast.http.pages.views import ViewResult, ViewTable, Visit
from holdfast.ledger.refusals import Refusal
from holdfast.supervision.status import ChildStatus

view = ViewTable()


@view("/ops/tree")
async def tree(visit: Visit) -> ViewResult:
    """Every process with its children and its groups of actors; first of all, which children do not run."""
    found = await visit.read(read_tree, Tree)
    members = [] if isinstance(found, Refusal) else found.members
    down = {
        member.member_id: [*_down(member.process.tree, member.process.tree.child_id)]
        for member in members
        if member.process is not None
    }
    return Html("tree.html", {"tree": found, "down": down}, is_live=True)


def _down(child: ChildStatus, path: str) -> Iterator[tuple[str, str]]:
    """Yield path and state of each child without children of its own that does not run."""
    if not child.children and child.state not in ("running", "finished"):
        yield path, child.state
    for each in child.children:
        yield from _down(each, f"{path}/{each.child_id}")
