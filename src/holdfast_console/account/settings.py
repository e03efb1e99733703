"""The account's settings, and what its owner decides of it as a whole. Each section is a template."""

from __future__ import annotations

from holdfast.http.endpoints.alerts import read_alerts, set_alerts
from holdfast.http.endpoints.archives import ArchiveBody, read_archive
from holdfast.http.kit.calls import Auth
from holdfast.http.schemas.events import AlertsBody
from holdfast.ledger.refusals import Refusal
from holdfast_console.rendering import Html
from holdfast_console.views import ViewResult, ViewTable, Visit

SETTINGS = "/account/settings"
SECTIONS = ("email", "session", "alerts", "archive", "closing")
"""The sections, in order: each is the template ``settings_{name}.html``."""

MAKING_S = 3
"""How often the page asks for itself while an archive is made."""

view = ViewTable(Auth.SESSION)


@view(SETTINGS)
async def settings(visit: Visit) -> ViewResult:
    """All sections."""
    archive = await visit.read(read_archive, ArchiveBody)
    values = {
        "sections": [(name, f"settings_{name}.html") for name in SECTIONS],
        "alerts": await visit.read(read_alerts, AlertsBody),
        "archive": archive,
        "base": visit.call.deps.urls.base,
    }
    is_making = isinstance(archive, ArchiveBody) and archive.state == "making"
    return Html("settings.html", values, live_s=MAKING_S if is_making else None)


@view(f"{SETTINGS}/alerts", method="POST")
async def change_alerts(visit: Visit) -> ViewResult:
    """Set what is mailed; what the form does not have stays as it is."""
    current = await visit.read(read_alerts, AlertsBody)
    if isinstance(current, Refusal):
        return current
    fields = {
        "balance_below": visit.form.get("balance_below"),
        "limit_share": current.limit_share,
        "email": "email" in visit.form,
    }
    return await visit.act(set_alerts, SETTINGS, "The alerts are set.", fields)
