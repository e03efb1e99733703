"""The pages' stylesheet, script and icon, which anybody may read."""

from __future__ import annotations

from quart import Response

from holdfast.http.kit.calls import Auth
from holdfast.http.kit.shown import shown
from holdfast.http.pages.static_files import static_files
from holdfast.http.pages.views import ViewResult, ViewTable, Visit
from holdfast.ledger.refusals import Refusal

view = ViewTable()


@view("/ops/static/{name}", auth=Auth.NONE)
async def static_file(visit: Visit) -> ViewResult:
    """A file under its name with a hash: what it names never changes."""
    found = static_files().get(visit.path["name"])
    if found is None:
        return Refusal(code="route_not_found", message=f"The file {shown(visit.path['name'])} does not exist.")
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
    return Response(found.content, content_type=found.content_type, headers=headers)
