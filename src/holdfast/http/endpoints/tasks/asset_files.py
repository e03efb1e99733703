"""Stored results, served by signed links that expire."""

from __future__ import annotations

from typing import Final

from holdfast.http.kit.calls import Call
from holdfast.http.kit.routes import Outcome, RouteTable
from holdfast.http.kit.stored_content import (
    IF_CACHED,
    LINK_ERRORS,
    RANGE,
    content_media,
    link_parameters,
    refuse_link,
    serve_content,
)
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.tasks import asset_by_id
from holdfast.persistence.records.rows import AssetRow
from holdfast.providers.storage.sniffing import EXTENSIONS

route = RouteTable("Assets")

_GONE: Final = Refusal(
    code="asset_expired",
    message="The link has expired. Retrieve the task for a new one while its results are stored.",
)


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
    refusal = refuse_link(call, asset_id, _GONE)
    if refusal is not None:
        return refusal
    asset = await call.deps.database.read(lambda rows: asset_by_id(rows, asset_id))
    return _GONE if asset is None else await send_asset(call, asset)


async def send_asset(call: Call, asset: AssetRow) -> Outcome:
    """Send a stored result, or the part of it that the request asks for. Refuses with ``asset_expired``."""
    if asset.expires_at <= call.deps.now():
        return _GONE

    async def is_gone() -> bool:
        return await call.deps.database.read(lambda rows: asset_by_id(rows, asset.asset_id)) is None

    filename = f"{asset.asset_id}.{EXTENSIONS[asset.content_type]}"
    return await serve_content(call, asset, filename, gone=_GONE, is_gone=is_gone)
