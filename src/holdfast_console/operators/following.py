"""Following one thing: what belongs to an id, and all that happened to it."""

from __future__ import annotations

from holdfast.http.endpoints.operators.following import Followed, follow
from holdfast.http.kit.calls import Auth
from holdfast_console.operators.accounts import PAGES
from holdfast_console.operators.cells import cells_elsewhere
from holdfast_console.rendering import Html
from holdfast_console.views import ViewResult, ViewTable, Visit

view = ViewTable(Auth.OPERATOR_READ)

LIVE_S = 4
"""How often the page is asked for again: each process searches its lines for it."""


@view("/ops/follow")
async def follow_one(visit: Visit) -> ViewResult:
    """All that happened to one thing, newest first; without an id the page has only its form."""
    sought = visit.parameter("id") or visit.parameter("q")
    query = {"id": sought, "from": visit.parameter("from"), "to": visit.parameter("to")}
    values = {
        "sought": sought,
        "since": query["from"],
        "until": query["to"],
        "followed": await visit.read(follow, Followed, query=query) if sought else None,
        "elsewhere": await cells_elsewhere(visit, sought),
        "pages": PAGES,
        "own_only": visit.parameter("only") == "own",
    }
    return Html("follow.html", values, is_live=bool(sought), live_s=LIVE_S if sought else None)
