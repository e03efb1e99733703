"""Following one thing: what belongs to an id, and all that happened to it."""

from __future__ import annotations

from holdfast.http.endpoints.operators.following import Followed, FollowedEntry, follow
from holdfast.http.kit.calls import Auth
from holdfast_console.operators.accounts import PAGES
from holdfast_console.operators.cells import cells_elsewhere
from holdfast_console.rendering import Html
from holdfast_console.views import ViewResult, ViewTable, Visit

view = ViewTable(Auth.OPERATOR_READ)

LIVE_S = 4
"""How often the page is asked for again: each process searches its lines for it."""
MOVES_MAX = 6
"""How many moves of money are shown above the rest: who was charged twice sees both at once."""


@view("/ops/follow")
async def follow_one(visit: Visit) -> ViewResult:
    """All that happened to one thing, newest first; without an id the page has only its form."""
    sought = visit.parameter("id") or visit.parameter("q")
    query = {"id": sought, "from": visit.parameter("from"), "to": visit.parameter("to")}
    followed = await visit.read(follow, Followed, query=query) if sought else None
    values = {
        "sought": sought,
        "since": query["from"],
        "until": query["to"],
        "followed": followed,
        "moves": moves_of(followed.data) if isinstance(followed, Followed) else [],
        "elsewhere": await cells_elsewhere(visit, sought),
        "pages": PAGES,
        "own_only": visit.parameter("only") == "own",
    }
    return Html("follow.html", values, is_live=bool(sought), live_s=LIVE_S if sought else None)


def moves_of(entries: list[FollowedEntry]) -> list[FollowedEntry]:
    """Return the operations that moved credit in or out, those next to the newest own one; a hold moves none."""
    moves = [each for each in entries if each.amount is not None and each.what not in ("hold", "release")]
    own = next((number for number, each in enumerate(moves) if each.is_own), 0)
    begin = max(0, min(own - MOVES_MAX // 2, len(moves) - MOVES_MAX))
    return moves[begin : begin + MOVES_MAX]
