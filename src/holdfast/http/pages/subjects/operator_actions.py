"""What operators did."""

from __future__ import annotations

from holdfast.http.endpoints.operators.records.actions import list_operator_actions
from holdfast.http.pages.rendering import Html
from holdfast.http.pages.views import ViewResult, ViewTable, Visit

view = ViewTable()


@view("/ops/actions")
async def operator_actions(visit: Visit) -> ViewResult:
    """All actions, newest first."""
    return Html("operator_actions.html", {"actions": await visit.read_list(list_operator_actions)})
