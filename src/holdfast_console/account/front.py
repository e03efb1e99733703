"""What everybody sees: what this service is, and its models with their prices."""

from __future__ import annotations

from holdfast.http.kit.calls import Auth
from holdfast_console.rendering import Html
from holdfast_console.views import ViewResult, ViewTable, Visit

view = ViewTable(Auth.NONE)


@view("/", is_for_browsers=True)
async def front(_visit: Visit) -> ViewResult:
    """What this is, with the ways in."""
    return Html("front.html", {})
