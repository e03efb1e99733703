"""Requests as ASGI applications get them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import unquote

from holdfast.http.server.request_parser import ParsedRequest
from holdfast.http.server.response_framing import refusal_parts
from holdfast.ledger.refusals import Refusal

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]
Address = tuple[str, int]

_ASGI: Final = {"version": "3.0", "spec_version": "2.4"}


def scope_of(request: ParsedRequest, client: Address, server: Address) -> MutableMapping[str, Any]:
    """Return the scope of a request."""
    path, _, query = request.target.partition(b"?")
    return {
        "type": "http",
        "asgi": _ASGI,
        "http_version": request.version,
        "method": request.method,
        "scheme": "http",
        "path": unquote(path.decode("ascii")),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": request.headers,
        "client": client,
        "server": server,
        "state": {},
        "extensions": {},
    }


def refusing(refusal: Refusal) -> AsgiApp:
    """Return an application that answers with a refusal."""

    async def app(_scope: MutableMapping[str, Any], _receive: Receive, send: Send) -> None:
        status, headers, body = refusal_parts(refusal)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    return app
