"""What operators did."""

from __future__ import annotations

from typing import Final

from holdfast.http.endpoints.operators.records.actions import ActionList, list_operator_actions
from holdfast.http.pages.rendering import Html
from holdfast.http.pages.views import ViewResult, ViewTable, Visit

view = ViewTable()

FILTERS: Final = ("operator", "action", "target", "account_id", "task_id", "result")
RESULTS: Final = ("done", "refused", "failed", "unknown")


@view("/ops/actions")
async def operator_actions(visit: Visit) -> ViewResult:
    """All actions, newest first."""
    values = {
        "actions": await visit.read_list(list_operator_actions, ActionList, FILTERS),
        "filters": {name: visit.parameter(name) for name in FILTERS},
        "results": RESULTS,
    }
    return Html("operator_actions.html", values)
