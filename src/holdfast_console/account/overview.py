"""The overview of an account."""

from __future__ import annotations

from holdfast.http.kit.calls import Auth
from holdfast_console.rendering import Html
from holdfast_console.views import ViewResult, ViewTable, Visit

view = ViewTable(Auth.SESSION)


@view("/account")
async def overview(_visit: Visit) -> ViewResult:
    """The state of the account."""
    return Html("overview.html", {}, is_live=True)
