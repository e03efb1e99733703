"""The overview: health at a glance, plots, what waits for an operator, and the newest reports."""

from __future__ import annotations

from holdfast.http.pages.rendering import Html
from holdfast.http.pages.views import ViewResult, ViewTable, Visit

view = ViewTable()


@view("/ops")
async def overview(visit: Visit) -> ViewResult:
    """The health of the whole service."""
    return Html("overview.html", {"health": await visit.call.deps.health.readiness()}, is_live=True)
