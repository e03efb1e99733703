"""The API description served by the service itself: ``/openapi.json`` for programs and ``/docs`` for people."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from quart import Response

from holdfast.http.kit.calls import Call
from holdfast.http.kit.docs_page import DOCS_CSP, docs_page
from holdfast.http.kit.openapi import describe
from holdfast.http.kit.routes import Media, Outcome, Route, RouteTable

CACHE_CONTROL: Final = "public, max-age=300"


def interface_pages(every_route: Callable[[], Sequence[Route]]) -> RouteTable:
    """Return the two pages. ``every_route`` is called on their first request: it includes these pages too."""
    table = RouteTable("Operations")

    @functools.lru_cache(maxsize=4)
    def document_for(public_url: str) -> bytes:
        return msgspec.json.encode(describe(every_route(), public_url))

    @functools.lru_cache(maxsize=4)
    def page_for(public_url: str) -> str:
        return docs_page(msgspec.json.decode(document_for(public_url)))

    @table(
        "GET",
        "/openapi.json",
        summary="The OpenAPI 3.1 document of this API",
        media=(
            Media(
                status=200, content_types=("application/json",), description="The document.", schema_type="object"
            ),
        ),
    )
    async def openapi_document(call: Call) -> Outcome:
        """Generated once for each public URL of the service."""
        document = document_for(call.deps.urls.base)
        return Response(document, content_type="application/json", headers={"Cache-Control": CACHE_CONTROL})

    @table(
        "GET",
        "/docs",
        summary="The API reference as a page",
        media=(Media(status=200, content_types=("text/html",), description="The page."),),
    )
    async def docs(call: Call) -> Outcome:
        """One page without scripts and without any origin but our own."""
        headers = {"Cache-Control": CACHE_CONTROL, "Content-Security-Policy": DOCS_CSP}
        page = page_for(call.deps.urls.base)
        return Response(page, content_type="text/html; charset=utf-8", headers=headers)

    return table
