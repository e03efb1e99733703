"""Poison messages: those whose handling crashed their actor."""

from __future__ import annotations

from holdfast.http.endpoints.operators.supervision.poison import list_poison_messages
from holdfast.http.pages.rendering import Html
from holdfast.http.pages.views import ViewResult, ViewTable, Visit

view = ViewTable()


@view("/ops/poison")
async def poison(visit: Visit) -> ViewResult:
    """The messages that the filters select, newest first."""
    return Html("poison.html", {"messages": await visit.read_list(list_poison_messages)}, is_live=True)
