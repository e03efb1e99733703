"""Reports: the newest, and those that arrive while the page is open."""

from __future__ import annotations

from typing import Final

from holdfast.http.endpoints.operators.records.reports import list_reports
from holdfast.http.pages.formats import tone_of
from holdfast.http.pages.rendering import Html
from holdfast.http.pages.views import ROWS_SHOWN, ViewResult, ViewTable, Visit
from holdfast.http.schemas.reports import ReportList
from holdfast.telemetry.reports.report import KINDS, LEVELS, ReportFilter

view = ViewTable()

LEVEL_DEFAULT: Final = "info"
"""Unless another is chosen: each start of a child is a report for debugging."""


@view("/ops/reports")
async def reports(visit: Visit) -> ViewResult:
    """The reports that the filters select; the script adds new ones, unless the page is an older one."""
    filters = {name: visit.parameter(name).removeprefix("req_") for name in ReportFilter._fields}
    if "level" not in visit.call.request.args:
        filters["level"] = LEVEL_DEFAULT
    query = {**filters, "cursor": visit.parameter("cursor"), "limit": ROWS_SHOWN}
    values = {
        "reports": await visit.read(list_reports, ReportList, query=query),
        "filters": filters,
        "is_filtered": any(value for name, value in filters.items() if (name, value) != ("level", LEVEL_DEFAULT)),
        "kinds": KINDS,
        "levels": LEVELS,
        "tones": {kind: tone_of(kind) for kind in KINDS},
        "streams": not visit.parameter("cursor"),
    }
    return Html("reports.html", values)
