"""Actors: those of a group, and one in detail; and the quarantined ones of all groups."""

from __future__ import annotations

from holdfast.http.endpoints.operators.supervision.actors import ActorList, list_actors, read_actor
from holdfast.http.pages.rendering import Html
from holdfast.http.pages.views import ROWS_SHOWN, ViewResult, ViewTable, Visit
from holdfast.http.schemas.operators import GROUPS
from holdfast.ledger.refusals import Refusal
from holdfast.supervision.control.messages import KeyDescription

view = ViewTable()


@view("/ops/actors")
async def actors(visit: Visit) -> ViewResult:
    """The actors of one group."""
    return Html("actors.html", {"actors": await visit.read_list(list_actors, group=GROUPS[0])}, is_live=True)


@view("/ops/actors/{group}/{key}")
async def actor(visit: Visit) -> ViewResult:
    """One actor."""
    found = await visit.read(read_actor, KeyDescription, path=visit.path)
    if isinstance(found, Refusal):
        return found
    return Html("actor.html", {"actor": found}, is_live=True)


@view("/ops/quarantine")
async def quarantine(visit: Visit) -> ViewResult:
    """The quarantined actors of every group."""
    query = {"state": "quarantined", "limit": ROWS_SHOWN}
    found = [(group, await visit.read(list_actors, ActorList, query={"group": group, **query})) for group in GROUPS]
    return Html("quarantine.html", {"groups": found}, is_live=True)
