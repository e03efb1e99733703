"""The API's descriptions: an OpenAPI document for customers and one for operators, and pages that show them.

A page is Scalar's API reference, a single script served from here: nothing is loaded from another origin.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import html
from importlib.resources import files
from string import Template
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
import trio
from quart import Response

from holdfast.http.endpoints import all_routes
from holdfast.http.kit.calls import Auth, Call
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.extensions import ServedPage, installed_extensions
from holdfast.http.kit.openapi import describe
from holdfast.http.kit.reference import CUSTOMERS, OPERATORS, Reference, reference_of
from holdfast.http.kit.requests import HoldfastRequest
from holdfast.http.kit.routes import Media, Outcome, RouteTable

route = RouteTable("Reference")

SCRIPT: Final = "scalar-1.76.0.js"
DOCS_CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; "
    "img-src 'self' data: blob:; media-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The script adds styles to the page, and shows results that it has fetched; scripts come from this origin only."""

_VIEWER: Final = files("holdfast.http") / "viewer"
_PAGE: Final = Template((_VIEWER / "docs.html").read_text(encoding="utf-8"))
_OPTIONS: Final[dict[str, Any]] = {
    "agent": {"disabled": True},
    "defaultHttpClient": {"targetKey": "shell", "clientKey": "curl"},
    "documentDownloadType": "direct",
    "externalUrls": dict.fromkeys(("dashboardUrl", "registryUrl", "proxyUrl", "apiBaseUrl"), ""),
    "hiddenClients": True,
    "hideClientButton": True,
    "hideModels": True,
    "mcp": {"disabled": True},
    "orderRequiredPropertiesFirst": False,
    "orderSchemaPropertiesBy": "preserve",
    "showDeveloperTools": "never",
    "telemetry": False,
    "withDefaultFonts": False,
}
"""What the script does: no services of its makers, fields as they are declared, and the document's own samples."""


class PublicDocument(NamedTuple):
    """A large document for many readers. All responses send these bytes, without a copy."""

    plain: bytes
    gzipped: bytes
    etag: str


_describers: Final = trio.CapacityLimiter(1)
"""Reading the sources of all types takes longer than the loop may stand; the second request finds the result."""


@functools.lru_cache(maxsize=4)
def document_for(public_url: str, reference: Reference = CUSTOMERS, url: str | None = None) -> PublicDocument:
    """Return the OpenAPI document of the endpoints in a reference, as :func:`describe` does."""
    extensions = installed_extensions()
    routes = (*all_routes(), *(route for each in extensions for route in each.routes))
    own = [route for route in routes if reference_of(route) is reference]
    return _prepared(msgspec.json.encode(describe(own, public_url, extensions, reference, url)))


@functools.cache
def _script() -> PublicDocument:
    gzipped = (_VIEWER / f"{SCRIPT}.gz").read_bytes()
    return PublicDocument(gzip.decompress(gzipped), gzipped, f'"{hashlib.sha256(gzipped).hexdigest()}"')


def _prepared(content: bytes) -> PublicDocument:
    return PublicDocument(content, gzip.compress(content, mtime=0), f'"{hashlib.sha256(content).hexdigest()}"')


_DOCUMENT: Final = (
    Media(status=200, content_types=("application/json",), description="The document.", schema_type="object"),
    Media(status=304, content_types=(), description="The cached document is current."),
)


@route("GET", "/openapi.json", summary="Retrieve the OpenAPI 3.1 document of this API", media=_DOCUMENT)
async def openapi_document(call: Call) -> Outcome:
    """It describes what customers call, and the requests of this service to their webhooks."""
    return await _document(call, CUSTOMERS, "public")


@route(
    "GET",
    "/ops/openapi.json",
    summary="Retrieve the OpenAPI 3.1 document of the operators' API",
    auth=Auth.OPERATOR_READ,
    media=_DOCUMENT,
)
async def operators_document(call: Call) -> Outcome:
    """It describes the operators' endpoints, health, readiness and metrics."""
    return await _document(call, OPERATORS, "private")


async def _document(call: Call, reference: Reference, cached_by: str) -> Response:
    public_url, url = call.deps.urls.base, _address(call.deps, reference)
    document = await trio.to_thread.run_sync(document_for, public_url, reference, url, limiter=_describers)
    return _served(call.request, document, "application/json", f"{cached_by}, max-age=300")


def _address(deps: Dependencies, reference: Reference) -> str:
    """Return where the operations of a reference are served, which for operators may be a listener of their own."""
    is_apart = reference is OPERATORS and deps.settings.ops_port is not None
    return deps.settings.url if is_apart else deps.urls.base


def reference_page(deps: Dependencies, reference: Reference) -> Response:
    """Return the page that shows a reference. It connects to its own origin alone, to try calls, too."""
    folder = urlsplit(_address(deps, reference)).path.rstrip("/")
    ops = "/ops" if reference is OPERATORS else ""
    options = {**_OPTIONS, "url": f"{folder}{ops}/openapi.json", "servers": [{"url": folder or "/"}]}
    page = _PAGE.substitute(
        title=reference.title,
        script=f"{folder}{ops}/docs/{SCRIPT}",
        document=f"{folder}{ops}/openapi.json",
        options=html.escape(msgspec.json.encode(options).decode()),
    )
    headers = {"Cache-Control": "private, max-age=300", "Content-Security-Policy": DOCS_CSP}
    return Response(page.encode(), content_type="text/html; charset=utf-8", headers=headers)


async def _customers_page(deps: Dependencies, _request: HoldfastRequest, _path: dict[str, str]) -> Response:
    return reference_page(deps, CUSTOMERS)


async def _with_a_slash(deps: Dependencies, _request: HoldfastRequest, _path: dict[str, str]) -> Response:
    return Response(b"", status=308, headers={"Location": f"{deps.urls.base}/docs"}, content_type="text/plain")


async def _serve_script(_deps: Dependencies, request: HoldfastRequest, _path: dict[str, str]) -> Response:
    """Serve the script, whose name contains its version, so that caches may keep it for a year."""
    script = await trio.to_thread.run_sync(_script, limiter=_describers)
    return _served(request, script, "text/javascript; charset=utf-8", "public, max-age=31536000")


PAGES: Final = (
    ServedPage(method="GET", path="/docs", serve=_customers_page),
    ServedPage(method="GET", path="/docs/", serve=_with_a_slash),
    ServedPage(method="GET", path=f"/docs/{SCRIPT}", serve=_serve_script),
    ServedPage(method="GET", path=f"/ops/docs/{SCRIPT}", serve=_serve_script),
)
"""The page for customers, and the script of both pages."""


def _served(request: HoldfastRequest, document: PublicDocument, content_type: str, caching: str) -> Response:
    """Serve a document, compressed if the client accepts that, or the answer that a cached one is current."""
    # Weak: it names both encodings.
    headers = {"Cache-Control": caching, "ETag": f"W/{document.etag}", "Vary": "Accept-Encoding"}
    if request.if_none_match.contains_weak(document.etag.strip('"')):
        return Response(b"", status=304, headers=headers)
    if request.accept_encodings.best_match(("gzip", "identity"), default="identity") == "identity":
        return Response(document.plain, content_type=content_type, headers=headers)
    return Response(document.gzipped, content_type=content_type, headers={**headers, "Content-Encoding": "gzip"})
