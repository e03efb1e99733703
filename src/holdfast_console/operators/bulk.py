"""Bulk actions: what a filter matches, an action on all of it, and how far each of them is."""

from __future__ import annotations

from urllib.parse import urlencode

from holdfast.http.endpoints.operators.bulk import (
    ACTS,
    BulkActionBody,
    MatchesBody,
    list_bulk_actions,
    read_bulk_action,
    read_bulk_matches,
)
from holdfast.http.kit.calls import Auth
from holdfast.ledger.refusals import Refusal
from holdfast_console.rendering import Html
from holdfast_console.views import ViewResult, ViewTable, Visit

view = ViewTable(Auth.OPERATOR_READ)


@view("/ops/bulk-actions")
async def bulk_actions(visit: Visit) -> ViewResult:
    """What one would act on, by the list's filters in the address, and all there were; not renewed: it counts."""
    name = visit.parameter("act")
    parameters = ACTS[name].filters if name in ACTS else ()
    filters = {each.name: visit.parameter(each.name) for each in parameters}
    sent = urlencode({key: value for key, value in filters.items() if value})
    is_counted = name in ACTS and all(filters[each.name] for each in parameters if each.required)
    query = {"act": name, "filter": sent}
    values = {
        "acts": [*ACTS],
        "act": name,
        "fields": [(each.name, each.schema.get("enum")) for each in parameters],
        "filters": filters,
        "sent": sent,
        "matches": await visit.read(read_bulk_matches, MatchesBody, query=query) if is_counted else None,
        "actions": await visit.read_list(list_bulk_actions),
    }
    return Html("bulk_actions.html", values)


@view("/ops/bulk-actions/{action_id}")
async def bulk_action(visit: Visit) -> ViewResult:
    """One, as it goes on."""
    found = await visit.read(read_bulk_action, BulkActionBody, path=visit.path)
    return found if isinstance(found, Refusal) else Html("bulk_action.html", {"bulk": found}, is_live=True)
