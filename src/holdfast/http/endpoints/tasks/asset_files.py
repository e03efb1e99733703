"""Stored results, served by signed links that expire."""

from __future__ import annotations

from holdfast.http.kit.calls import Call
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.kit.stored_content import (
    IF_CACHED,
    LINK_ERRORS,
    RANGE,
    content_media,
    link_parameters,
    refuse_link,
)
from holdfast.http.services.files import LINK_EXPIRED, send_asset
from holdfast.persistence.queries.tasks import asset_by_id

route = RouteTable("Files")


@route(
    "GET",
    "/v2/assets/{asset_id}",
    summary="Retrieve a stored result by its signed link; supports ranges",
    media=content_media(),
    parameters=(*link_parameters(required=True), RANGE, IF_CACHED),
    errors=LINK_ERRORS,
)
async def fetch_asset(call: Call) -> Outcome:
    """The link's own parameters are the credential; it is an output's `url` of a task."""
    asset_id = call.path["asset_id"]
    refusal = refuse_link(call, asset_id, LINK_EXPIRED)
    if refusal is not None:
        return refusal
    asset = await call.read(lambda rows: asset_by_id(rows, asset_id))
    return LINK_EXPIRED if asset is None else await send_asset(call, asset)
