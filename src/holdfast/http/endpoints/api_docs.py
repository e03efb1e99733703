"""The API's description: the OpenAPI document, and a page to read it and try calls on.

The page is RapiDoc, a single file served from here: nothing is loaded from another origin.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
from importlib.resources import files
from string import Template
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
import trio
from quart import Response

from holdfast.http.endpoints import all_routes
from holdfast.http.kit.calls import Call
from holdfast.http.kit.extensions import installed_extensions
from holdfast.http.kit.openapi import JsonSchema, describe
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


class PublicDocument(NamedTuple):
    """A large document for everybody. All responses send these bytes, without a copy."""

    plain: bytes
    gzipped: bytes
    etag: str


_describers: Final = trio.CapacityLimiter(1)
"""Reading the sources of all types takes longer than the loop may stand; the second request finds the result."""


@functools.lru_cache(maxsize=4)
def document_for(public_url: str) -> PublicDocument:
    """Return the OpenAPI document of all endpoints, served at ``public_url``."""
    return _prepared(msgspec.json.encode(_document(public_url)))


@functools.lru_cache(maxsize=4)
def page_document_for(public_url: str) -> PublicDocument:
    """Return the document as the page shows it: of an error only its status and codes.

    All errors have one body, and reading it in each of them takes the page more than half of its time.
    """
    document = _document(public_url)
    for operations in document["paths"].values():
        for operation in operations.values():
            for status, response in operation["responses"].items():
                if status >= "400":
                    operation["responses"][status] = {"description": response["description"]}
    return _prepared(msgspec.json.encode(document))


def _document(public_url: str) -> JsonSchema:
    extensions = installed_extensions()
    routes = (*all_routes(), *(route for each in extensions for route in each.routes))
    return describe(routes, public_url, extensions)


@functools.cache
def _script() -> PublicDocument:
    return _prepared((_VIEWER / RAPIDOC).read_bytes())


def _prepared(content: bytes) -> PublicDocument:
    return PublicDocument(content, gzip.compress(content, mtime=0), f'"{hashlib.sha256(content).hexdigest()}"')


@route(
    "GET",
    "/openapi.json",
    summary="Retrieve the OpenAPI 3.1 document of this API",
    media=(
        Media(status=200, content_types=("application/json",), description="The document.", schema_type="object"),
        Media(status=304, content_types=(), description="The cached document is current."),
    ),
)
async def openapi_document(call: Call) -> Outcome:
    """It describes the operators' endpoints too, wherever they are served."""
    document = await trio.to_thread.run_sync(document_for, call.deps.urls.base, limiter=_describers)
    return _served(call, document, "application/json", 300)


@route(
    "GET",
    "/docs/openapi.json",
    summary="Retrieve the OpenAPI document as the page of the API reference shows it",
    media=(
        Media(status=200, content_types=("application/json",), description="The document.", schema_type="object"),
        Media(status=304, content_types=(), description="The cached document is current."),
    ),
)
async def page_document(call: Call) -> Outcome:
    """Errors have no body in it: that is the same for all, and the page shows sooner without."""
    document = await trio.to_thread.run_sync(page_document_for, call.deps.urls.base, limiter=_describers)
    return _served(call, document, "application/json", 300)


@route(
    "GET",
    "/docs",
    summary="Retrieve the API reference as a page",
    media=(Media(status=200, content_types=("text/html",), description="The page."),),
)
async def docs(call: Call) -> Outcome:
    """Calls tried on the page go to its own origin, which is the only one that it may connect to."""
    page = _PAGE.substitute(server=urlsplit(call.deps.urls.base).path or "/")
    headers = {**_caching(300), "Content-Security-Policy": DOCS_CSP}
    return Response(page.encode(), content_type="text/html; charset=utf-8", headers=headers)


@route(
    "GET",
    "/docs/",
    summary="Find the API reference",
    statuses=(308,),
    media=(Media(status=308, content_types=(), description="The reference is at `/docs`."),),
)
async def docs_folder(call: Call) -> Outcome:
    """The page's own links would not work at this address."""
    return Response(b"", status=308, headers={"Location": f"{call.deps.urls.base}/docs"}, content_type="text/plain")


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
    return _served(call, _script(), "text/javascript; charset=utf-8", 31_536_000)


def _served(call: Call, document: PublicDocument, content_type: str, max_age_s: int) -> Response:
    """Serve a document, compressed if the client accepts that, or the answer that a cached one is current."""
    asked = call.request
    # Weak: it names both encodings.
    headers = {**_caching(max_age_s), "ETag": f"W/{document.etag}", "Vary": "Accept-Encoding"}
    if asked.if_none_match.contains_weak(document.etag.strip('"')):
        return Response(b"", status=304, headers=headers)
    if asked.accept_encodings.best_match(("gzip", "identity"), default="identity") == "identity":
        return Response(document.plain, content_type=content_type, headers=headers)
    return Response(document.gzipped, content_type=content_type, headers={**headers, "Content-Encoding": "gzip"})


def _caching(max_age_s: int) -> dict[str, str]:
    return {"Cache-Control": f"public, max-age={max_age_s}"}
