"""Requests as the server delivers them; their body is read on demand, up to a limit."""

from __future__ import annotations

import trio
from hypercorn.typing import ASGIReceiveCallable, HTTPScope
from quart_trio.wrappers.request import TrioRequest
from werkzeug.datastructures import Headers
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.sansio.request import Request as SansIORequest

from holdfast.telemetry.traces.spans import Span


class HoldfastRequest(TrioRequest):
    """A request whose body stays in the server until it is read."""

    def __init__(self, scope: HTTPScope, receive: ASGIReceiveCallable) -> None:
        client = scope.get("client")
        headers = Headers()
        headers[:] = [(name.decode("latin1").title(), value.decode("latin1")) for name, value in scope["headers"]]
        # Not Quart's own: it makes a lock and a buffer with two events for a body that would be sent to it.
        SansIORequest.__init__(
            self,
            scope["method"],
            scope["scheme"],
            scope.get("server"),
            "",
            scope["path"],
            scope["query_string"],
            headers,
            client[0] if client else None,
        )
        self.http_version = scope["http_version"]
        self.scope = scope
        self.receive = receive
        self.started_s = 0.0
        self.id = ""
        self.traceresponse: str | None = None
        """The caller's trace, which this request continues."""
        self.span: Span | None = None

    @property
    def content_length(self) -> int | None:
        """The length of the body; None for no body or one in chunks. The server has checked it."""
        sent = self.headers.getlist("Content-Length")
        return int(sent[0]) if sent else None

    async def close(self) -> None:
        """Do nothing: no files of a form are open."""

    async def read_body(self, bytes_max: int) -> bytes:
        """Read the whole body, once.

        Raises ``RequestEntityTooLarge`` after more than ``bytes_max`` bytes. If the client disconnects it does not
        return: the server cancels the request.
        """
        parts: list[bytes] = []
        count = 0
        while True:
            event = await self.receive()
            if event["type"] != "http.request":
                await trio.sleep_forever()
            part = event.get("body", b"")
            count += len(part)
            if count > bytes_max:
                raise RequestEntityTooLarge
            parts.append(part)
            if not event.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)
