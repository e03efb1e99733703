"""Media providers: what they do, and the newest reports on them."""

from __future__ import annotations

from holdfast.http.endpoints.operators.providers.overview import ProviderList, list_providers
from holdfast.http.endpoints.operators.records.reports import list_reports
from holdfast.http.pages.rendering import Html
from holdfast.http.pages.views import ViewResult, ViewTable, Visit
from holdfast.http.schemas.reports import ReportList
from holdfast.ledger.refusals import Refusal

view = ViewTable()


@view("/ops/providers")
async def providers(visit: Visit) -> ViewResult:
    """Every provider, each with its reports."""
    found = await visit.read(list_providers, ProviderList)
    names = [] if isinstance(found, Refusal) else [each.name for each in found.data]
    values = {
        "providers": found,
        "reports": {
            name: await visit.read(list_reports, ReportList, query={"provider": name, "limit": "5"})
            for name in names
        },
    }
    return Html("providers.html", values, is_live=True)
