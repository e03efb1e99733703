"""The API's description: the OpenAPI document, and a page to read it and try calls on.

The page is RapiDoc, a single file served from here: nothing is loaded from another origin.
"""

from __future__ import annotations

import functools
import hashlib
from importlib.resources import files
from string import Template
from typing import Final
from urllib.parse import urlsplit

import msgspec
from quart import Response

from holdfast.http.endpoints import all_routes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.openapi import describe
from holdfast.http.kit.routes import Media, Outcome, RouteTable

route = RouteTable("Operations")

RAPIDOC: Final = "rapidoc-9.3.8.js"
DOCS_CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""RapiDoc sets style attributes, so styles may be inline; scripts come from this origin only."""

_VIEWER: Final = files("holdfast.http") / "viewer"
_PAGE: Final = Template((_VIEWER / "docs.html").read_text(encoding="utf-8"))


@functools.lru_cache(maxsize=4)
def document_for(public_url: str) -> bytes:
    """Return the OpenAPI document of all endpoints, served at ``public_url``."""
    return msgspec.json.encode(describe(all_routes(), public_url))


@functools.cache
def _script() -> tuple[bytes, str]:
    script = (_VIEWER / RAPIDOC).read_bytes()
    return script, hashlib.sha256(script).hexdigest()


@route(
    "GET",
    "/openapi.json",
    summary="Retrieve the OpenAPI 3.1 document of this API",
    media=(
        Media(status=200, content_types=("application/json",), description="The document.", schema_type="object"),
    ),
)
async def openapi_document(call: Call) -> Outcome:
    """It describes the operators' endpoints too, wherever they are served."""
    return _cached(document_for(call.deps.urls.base), "application/json", 300)


@route(
    "GET",
    "/docs",
    summary="Retrieve the API reference as a page",
    media=(Media(status=200, content_types=("text/html",), description="The page."),),
)
async def docs(call: Call) -> Outcome:
    """Calls tried on the page go to its own origin, which is the only one that it may connect to."""
    page = _PAGE.substitute(server=urlsplit(call.deps.urls.base).path or "/")
    response = _cached(page.encode(), "text/html; charset=utf-8", 300)
    response.headers["Content-Security-Policy"] = DOCS_CSP
    return response


@route(
    "GET",
    f"/docs/{RAPIDOC}",
    summary="Retrieve the script of the API reference",
    media=(
        Media(status=200, content_types=("text/javascript",), description="The script."),
        Media(status=304, content_types=(), description="The cached script is current."),
    ),
)
async def docs_script(call: Call) -> Outcome:
    """Its name contains its version, so that caches may keep it for a year."""
    script, etag = _script()
    if call.request.headers.get("If-None-Match") == f'"{etag}"':
        return Response(b"", status=304)
    response = _cached(script, "text/javascript; charset=utf-8", 31_536_000)
    response.headers["ETag"] = f'"{etag}"'
    return response


def _cached(body: bytes, content_type: str, max_age_s: int) -> Response:
    return Response(body, content_type=content_type, headers={"Cache-Control": f"public, max-age={max_age_s}"})
