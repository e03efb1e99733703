"""The interface, told by the service itself: ``/openapi.json`` for programs and ``/docs`` for people."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from quart import Response

from holdfast.http.calls import Call
from holdfast.http.docs_page import DOCS_CSP, docs_page
from holdfast.http.openapi import describe
from holdfast.http.routes import Media, Outcome, Route, RouteTable

CACHE_CONTROL: Final = "public, max-age=300"


def interface_pages(every_route: Callable[[], Sequence[Route]]) -> RouteTable:
    """The two pages. ``every_route`` is asked when they are first read: it tells of these pages as well."""
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
        summary="This interface as an OpenAPI 3.1 document",
        media=(
            Media(
                status=200, content_types=("application/json",), description="The document.", schema_type="object"
            ),
        ),
    )
    async def openapi_document(call: Call) -> Outcome:
        """Written once for each address the service is known by."""
        document = document_for(call.front.public_url())
        return Response(document, content_type="application/json", headers={"Cache-Control": CACHE_CONTROL})

    @table(
        "GET",
        "/docs",
        summary="This interface as a page to read",
        media=(Media(status=200, content_types=("text/html",), description="The page."),),
    )
    async def docs(call: Call) -> Outcome:
        """One page without scripts and without any address but our own."""
        headers = {"Cache-Control": CACHE_CONTROL, "Content-Security-Policy": DOCS_CSP}
        page = page_for(call.front.public_url())
        return Response(page, content_type="text/html; charset=utf-8", headers=headers)

    return table
