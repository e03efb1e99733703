"""The interface, told by the service itself: ``/openapi.json`` for programs and ``/docs`` for people."""

from __future__ import annotations

import functools
from typing import Final

import msgspec
from quart import Response

from holdfast.http.calls import Call
from holdfast.http.docs_page import DOCS_CSP, docs_page
from holdfast.http.openapi import describe
from holdfast.http.routes import Media, Outcome, RouteTable

route = RouteTable("Operations")

CACHE_CONTROL: Final = "public, max-age=300"


@route(
    "GET",
    "/openapi.json",
    summary="This interface as an OpenAPI 3.1 document",
    media=(
        Media(status=200, content_types=("application/json",), description="The document.", schema_type="object"),
    ),
)
async def openapi_document(call: Call) -> Outcome:
    """Written once for each address the service is known by."""
    document = _document(call.front.public_url())
    return Response(document, content_type="application/json", headers={"Cache-Control": CACHE_CONTROL})


@route(
    "GET",
    "/docs",
    summary="This interface as a page to read",
    media=(Media(status=200, content_types=("text/html",), description="The page."),),
)
async def docs(call: Call) -> Outcome:
    """One page without scripts and without any address but our own."""
    headers = {"Cache-Control": CACHE_CONTROL, "Content-Security-Policy": DOCS_CSP}
    return Response(_page(call.front.public_url()), content_type="text/html; charset=utf-8", headers=headers)


@functools.lru_cache(maxsize=4)
def _document(public_url: str) -> bytes:
    # The list of all routes includes this module's own, so it can only be looked up when it is complete.
    from holdfast.http.app import ROUTES

    return msgspec.json.encode(describe(ROUTES, public_url))


@functools.lru_cache(maxsize=4)
def _page(public_url: str) -> str:
    return docs_page(msgspec.json.decode(_document(public_url)))
