"""Stored results, served by signed links that expire.

The bytes are not trusted: they are served under a sandboxing policy, their type is never sniffed, and no shared
cache may store them.
"""

from __future__ import annotations

import re
from typing import Final, cast

import structlog
from quart import Response
from quart.wrappers.response import ResponseBody

from holdfast.http.kit.calls import Call
from holdfast.http.kit.responses import has_entity_tag, refusal_response
from holdfast.http.kit.routes import Media, Outcome, Parameter, RouteTable
from holdfast.http.kit.values import shown
from holdfast.ledger.links import check_link
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.queries.tasks import asset_by_id
from holdfast.persistence.records.rows import AssetRow
from holdfast.providers.storage.base import AssetMissing, AssetReader, asset_key
from holdfast.providers.storage.sniffing import EXTENSIONS, MEDIA_TYPES
from holdfast.telemetry.reports.conditions import STORAGE

log = structlog.get_logger(__name__)

route = RouteTable("Assets")

SEND_TIMEOUT_S: Final = 3600.0
"""How long a client may take to fetch one response."""

CONTENT_TYPES: Final = tuple(sorted(MEDIA_TYPES))

_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})", re.ASCII)
_GONE: Final = Refusal(
    code="asset_expired",
    message="The link has expired. Retrieve the task for a new one while its results are stored.",
)
_STORE_AWAY: Final = Refusal(
    code="temporarily_unavailable", message="Stored results cannot be read; try again later."
)
_INVALID_LINK: Final = Refusal(code="invalid_link", message="The link's signature is not valid.")


@route(
    "GET",
    "/v2/assets/{asset_id}",
    summary="Retrieve a stored result by its signed link; supports ranges",
    media=(
        Media(status=200, content_types=CONTENT_TYPES, description="The whole file."),
        Media(status=206, content_types=CONTENT_TYPES, description="The requested range."),
        Media(status=304, content_types=(), description="The cached file is current."),
    ),
    parameters=(
        Parameter(name="exp", place="query", description="When the link expires, in unix seconds.", required=True),
        Parameter(name="sig", place="query", description="The link's signature.", required=True),
        Parameter(name="Range", place="header", description="One range of bytes, such as bytes=0-1023."),
        Parameter(name="If-None-Match", place="header", description="The ETag of the cached file."),
    ),
    errors=("invalid_link", "asset_expired", "range_not_satisfiable", "temporarily_unavailable"),
)
async def fetch_asset(call: Call) -> Outcome:
    """The link's own parameters are the credential; it is an output's `url` of a task."""
    deps, asset_id = call.deps, call.path["asset_id"]
    query = call.query()
    exp, sig = query.get("exp", []), query.get("sig", [])
    if len(exp) != 1 or len(sig) != 1:
        return _INVALID_LINK
    now = deps.now()
    verdict = check_link(asset_id, exp[0], sig[0], deps.urls.link_key, now)
    if verdict != "valid":
        return _GONE if verdict == "expired" else _INVALID_LINK
    asset = await deps.database.read(lambda rows: asset_by_id(rows, asset_id))
    return _GONE if asset is None else await send_asset(call, asset)


async def send_asset(call: Call, asset: AssetRow) -> Outcome:
    """Send a stored result, or the part of it that the request asks for. Refuses with ``asset_expired``."""
    deps, request = call.deps, call.request
    if asset.expires_at <= deps.now():
        return _GONE
    headers = _headers(asset)
    if has_entity_tag(request.headers.get("If-None-Match"), headers["ETag"]):
        return Response(b"", status=304, headers=headers)
    span = None
    if request.headers.get("If-Range", headers["ETag"]) == headers["ETag"]:
        span = read_range(request.headers.get("Range"), asset.bytes)
    if isinstance(span, Refusal):
        return refusal_response(span, {"Content-Range": f"bytes */{asset.bytes}"})
    headers["Content-Length"] = str(asset.bytes if span is None else len(span))
    if span is not None:
        headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{asset.bytes}"
    status = 200 if span is None else 206
    if request.method == "HEAD":
        bare = Response(b"", status=status, headers=headers)
        bare.headers["Content-Length"] = headers["Content-Length"]  # of the file, not of this body
        return bare
    # The file is opened before the response starts, so that a missing file is an error response.
    try:
        key = asset_key(asset.sha256, _extension(asset))
        reader = await open_stored(call, key, *((span.start, span.stop) if span else ()))
    except AssetMissing:
        # It may have expired since the row was read.
        if await deps.database.read(lambda rows: asset_by_id(rows, asset.asset_id)) is None:
            return _GONE
        raise
    if isinstance(reader, Refusal):
        return reader
    response = Response(None, status=status, headers=headers)
    # It has all that is used of a body: it is entered, iterated and left.
    response.response = cast(ResponseBody, reader)
    response.timeout = SEND_TIMEOUT_S
    return response


async def open_stored(call: Call, key: str, *span: int) -> AssetReader | Refusal:
    """Open stored content, or a part of it. Refuses with ``temporarily_unavailable``; raises ``AssetMissing``."""
    try:
        return await call.deps.asset_store.open(key, *span)
    except OSError as fault:
        call.deps.conditions.failed(STORAGE, "", fault.strerror or type(fault).__name__)
        return _STORE_AWAY


def read_range(header: str | None, size_bytes: int) -> range | Refusal | None:
    """Return the range that a header requests; None for the whole file (no header, several ranges, not a range).

    Refuses with ``range_not_satisfiable``.
    """
    match = _RANGE.fullmatch(header.replace(" ", "").lower()) if header else None
    if match is None or match.group(1) == match.group(2) == "":
        return None
    first, last = match.groups()
    if first == "":
        start, stop = max(0, size_bytes - int(last)), size_bytes
    else:
        start, stop = int(first), min(int(last) + 1, size_bytes) if last else size_bytes
        if last and int(last) < start:
            return None
    assert header is not None
    if start >= stop:
        return Refusal(
            code="range_not_satisfiable",
            message=f"The range {shown(header)} is outside the file's {size_bytes} bytes.",
            param="Range",
        )
    return range(start, stop)


_IMAGE_CSP = "sandbox; default-src 'none'"
_PLAYER_CSP = "sandbox allow-same-origin; default-src 'none'; media-src 'self'; style-src 'unsafe-inline'"
"""A browser shows audio and video in a page with a player, which loads the link again."""


def _headers(asset: AssetRow) -> dict[str, str]:
    is_played = asset.content_type.startswith(("audio/", "video/"))
    return {
        "Content-Type": asset.content_type,
        "ETag": f'"{asset.sha256}"',
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, max-age=3600",
        "Content-Disposition": f'inline; filename="{asset.asset_id}.{_extension(asset)}"',
        "Content-Security-Policy": _PLAYER_CSP if is_played else _IMAGE_CSP,
        "Cross-Origin-Resource-Policy": "cross-origin",
    }


def _extension(asset: AssetRow) -> str:
    return EXTENSIONS[asset.content_type]
