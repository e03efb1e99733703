"""What is recorded: operators' actions, reports, and refused requests."""

from __future__ import annotations

from typing import Final

from holdfast.http.endpoints.operators.actions import list_operator_actions
from holdfast.http.endpoints.operators.processes import list_refused_requests
from holdfast.http.endpoints.operators.reports import list_reports
from holdfast.http.kit.calls import Auth
from holdfast.telemetry.reports.report import REPORT_KINDS
from holdfast_console.formats import tone_of
from holdfast_console.rendering import Html
from holdfast_console.views import ViewResult, ViewTable, Visit

view = ViewTable(Auth.OPERATOR_READ)


@view("/ops/actions")
async def operator_actions(visit: Visit) -> ViewResult:
    """All actions, newest first."""
    return Html("operator_actions.html", {"actions": await visit.read_list(list_operator_actions)})


@view("/ops/refused-requests")
async def refused_requests(visit: Visit) -> ViewResult:
    """The newest of all processes, and who sent most."""
    return Html("refused_requests.html", {"requests": await visit.read_list(list_refused_requests)}, is_live=True)


LEVEL_DEFAULT: Final = "info"
"""Unless another is chosen: each start of a child is a report for debugging."""


@view("/ops/reports")
async def reports(visit: Visit) -> ViewResult:
    """The reports that the filters select; the script adds new ones, unless the page is an older one."""
    found = await visit.read_list(list_reports, level=LEVEL_DEFAULT)
    # The script compares the filters with what the stream reports, which has a trace's id without the prefix.
    filters = {name: value.removeprefix("req_") for name, value in found.filters.items()}
    values = {
        "reports": found._replace(filters=filters),
        "tones": {kind: tone_of(kind) for kind in REPORT_KINDS},
        "streams": not visit.parameter("cursor"),
    }
    return Html("reports.html", values)
