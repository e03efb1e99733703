"""The account's settings: its address, this session, and what it is mailed. Each section is a template."""

from __future__ import annotations

from holdfast.http.endpoints.alerts import read_alerts, set_alerts
from holdfast.http.kit.calls import Auth
from holdfast.http.schemas.events import AlertsBody
from holdfast.ledger.refusals import Refusal
from holdfast_console.forms import Message
from holdfast_console.rendering import Html, Redirect
from holdfast_console.views import ViewResult, ViewTable, Visit

SETTINGS = "/account/settings"
SECTIONS = ("email", "session", "alerts")
"""The sections, in order: each is the template ``settings_{name}.html``."""

view = ViewTable(Auth.SESSION)


@view(SETTINGS)
async def settings(visit: Visit) -> ViewResult:
    """All sections."""
    values = {
        "sections": [f"settings_{name}.html" for name in SECTIONS],
        "alerts": await visit.read(read_alerts, AlertsBody),
    }
    return Html("settings.html", values)


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
    done, _ = await visit.submit(set_alerts, fields=fields)
    return (
        done if isinstance(done, Refusal) else Redirect(SETTINGS, Message("The alerts are set.", is_failure=False))
    )
