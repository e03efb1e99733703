"""Stored content as a response: whole, a range of it, or "not modified".

The bytes are not trusted: they are served under a sandboxing policy, their type is never sniffed, and no shared
cache may store them. What is of no type that a browser shows is only downloaded.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Final, Protocol
from urllib.parse import quote

from quart import Response

from holdfast.http.kit.calls import Call
from holdfast.http.kit.responses import refusal_response, streamed
from holdfast.http.kit.routes import Media, Outcome, Parameter
from holdfast.http.kit.values import shown
from holdfast.ledger.links import check_link
from holdfast.ledger.refusals import Refusal
from holdfast.providers.storage.base import AssetMissing, AssetReader, asset_key
from holdfast.providers.storage.sniffing import EXTENSIONS, MEDIA_TYPES, UNKNOWN_TYPE
from holdfast.telemetry.reports.conditions import STORAGE

SEND_TIMEOUT_S: Final = 3600.0
"""How long a client may take to fetch one response."""

CONTENT_TYPES: Final = tuple(sorted(MEDIA_TYPES))

_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})", re.ASCII)
_STORE_AWAY: Final = Refusal(
    code="temporarily_unavailable", message="Stored results cannot be read; try again later."
)
INVALID_LINK: Final = Refusal(code="invalid_link", message="The link's signature is not valid.")

RANGE: Final = Parameter(name="Range", location="header", description="One range of bytes, such as bytes=0-1023.")
IF_CACHED: Final = Parameter(name="If-None-Match", location="header", description="The ETag of the cached file.")
LINK_ERRORS: Final = ("invalid_link", "asset_expired", "range_not_satisfiable", "temporarily_unavailable")
"""The codes of a route that serves content by a signed link."""


class StoredContent(Protocol):
    """What is known of a content, besides who has it."""

    @property
    def sha256(self) -> str:
        """Its hash."""

    @property
    def content_type(self) -> str:
        """Its type, as its first bytes show it."""

    @property
    def bytes(self) -> int:
        """Its length."""


def content_media(*others: str) -> tuple[Media, ...]:
    """Return the declaration of what :func:`serve_content` responds."""
    content_types = (*CONTENT_TYPES, *others)
    return (
        Media(status=200, content_types=content_types, description="The whole file."),
        Media(status=206, content_types=content_types, description="The requested range."),
        Media(status=304, content_types=(), description="The cached file is current."),
    )


def link_parameters(*, required: bool) -> tuple[Parameter, Parameter]:
    """Return the declaration of a signed link's query."""
    return (
        Parameter(
            name="exp", location="query", description="When the link expires, in unix seconds.", required=required
        ),
        Parameter(name="sig", location="query", description="The link's signature.", required=required),
    )


def refuse_link(call: Call, name: str, gone: Refusal) -> Refusal | None:
    """Verify the query of a signed link to ``name``. Refuses: 1. ``invalid_link``; 2. with ``gone``."""
    query = call.query()
    exp, sig = query.get("exp", []), query.get("sig", [])
    if len(exp) != 1 or len(sig) != 1:
        return INVALID_LINK
    verdict = check_link(name, exp[0], sig[0], call.deps.urls.link_keys, call.deps.now())
    if verdict == "valid":
        return None
    return gone if verdict == "expired" else INVALID_LINK


async def serve_content(
    call: Call, stored: StoredContent, filename: str, *, gone: Refusal, is_gone: Callable[[], Awaitable[bool]]
) -> Outcome:
    """Return the response with a stored content. ``is_gone``: whether it has been deleted since it was found.

    Refuses: 1. ``range_not_satisfiable``; 2. with ``gone``; 3. ``temporarily_unavailable``.
    """
    request = call.request
    headers = _headers(stored, filename)
    if request.if_none_match.contains_weak(stored.sha256):
        return Response(b"", status=304, headers=headers)
    span = None
    if request.headers.get("If-Range", headers["ETag"]) == headers["ETag"]:
        span = read_range(request.headers.get("Range"), stored.bytes)
    if isinstance(span, Refusal):
        return refusal_response(span, {"Content-Range": f"bytes */{stored.bytes}"})
    headers["Content-Length"] = str(stored.bytes if span is None else len(span))
    if span is not None:
        headers["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{stored.bytes}"
    status = 200 if span is None else 206
    if request.method == "HEAD":
        bare = Response(b"", status=status, headers=headers)
        bare.headers["Content-Length"] = headers["Content-Length"]  # of the file, not of this body
        return bare
    # The file is opened before the response starts, so that a missing file is an error response.
    try:
        key = asset_key(stored.sha256, EXTENSIONS[stored.content_type])
        reader = await open_stored(call, key, *((span.start, span.stop) if span else ()))
    except AssetMissing:
        if await is_gone():
            return gone
        raise
    if isinstance(reader, Refusal):
        return reader
    return streamed(reader, headers, status=status, timeout_s=SEND_TIMEOUT_S)


async def open_stored(call: Call, key: str, *span: int) -> AssetReader | Refusal:
    """Open stored content, or a part of it. Refuses with ``temporarily_unavailable``; raises ``AssetMissing``."""
    try:
        return await call.deps.storage.store.open(key, *span)
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


def _headers(stored: StoredContent, filename: str) -> dict[str, str]:
    is_played = stored.content_type.startswith(("audio/", "video/"))
    return {
        "Content-Type": stored.content_type,
        "ETag": f'"{stored.sha256}"',
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, max-age=3600",
        "Content-Disposition": _disposition(
            "attachment" if stored.content_type == UNKNOWN_TYPE else "inline", filename
        ),
        "Content-Security-Policy": _PLAYER_CSP if is_played else _IMAGE_CSP,
        "Cross-Origin-Resource-Policy": "cross-origin",
    }


def _disposition(kind: str, filename: str) -> str:
    """Return the header ``Content-Disposition`` (RFC 6266); what is not plain in a name is replaced or encoded."""
    plain = "".join(sign if sign.isascii() and sign not in '"\\%' else "_" for sign in filename)
    encoded = "" if plain == filename else f"; filename*=UTF-8''{quote(filename, safe='')}"
    return f'{kind}; filename="{plain}"{encoded}'
