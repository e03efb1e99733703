"""The address without a path, as a person types it."""

from __future__ import annotations

from werkzeug.exceptions import NotFound

from holdfast.http.kit.calls import Auth
from holdfast.http.kit.errors import refusal_of_http
from holdfast.http.kit.responses import render_refusal
from holdfast.http.pages.rendering import Redirect
from holdfast.http.pages.views import ViewResult, ViewTable, Visit

view = ViewTable()


@view("/", auth=Auth.NONE)
async def root(visit: Visit) -> ViewResult:
    """Send a browser to the API reference. Other clients find nothing here."""
    request = visit.call.request
    if "text/html" in request.headers.get("Accept", ""):
        return Redirect("docs")
    return render_refusal(*refusal_of_http(NotFound(), request.method, request.path))
