"""The ASGI side of the application: one request in, one response out.

The server (:mod:`holdfast.http.server`) cancels the request of a client that disconnects and delivers the body on
demand. So a request needs one task, and no part of a body is read before a handler reads it.
"""

from __future__ import annotations

from typing import cast

import trio
from hypercorn.typing import (
    ASGIReceiveCallable,
    ASGISendCallable,
    HTTPResponseBodyEvent,
    HTTPResponseStartEvent,
)
from quart import Response
from quart.asgi import ASGIHTTPConnection
from quart.utils import encode_headers
from quart.wrappers.response import DataBody

from holdfast.http.kit.bounded_body import HoldfastRequest


class HoldfastConnection(ASGIHTTPConnection):
    """One request."""

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Answer the request."""
        request = self._create_request_from_scope(send)
        assert isinstance(request, HoldfastRequest)
        request.receive = receive
        response = await self.app.handle_request(request)
        assert isinstance(response, Response)
        start = {
            "type": "http.response.start",
            "status": response.status_code,
            "headers": encode_headers(response.headers),
        }
        await send(cast(HTTPResponseStartEvent, start))
        if request.method == "HEAD":
            await send(_part(b"", more=False))
            return
        if isinstance(response.response, DataBody):
            await send(_part(response.response.data, more=False))
            return
        timeout_s = response.timeout if isinstance(response.timeout, int | float) else None
        # After the timeout the response is incomplete, and the server closes the connection.
        with trio.move_on_after(float("inf") if timeout_s is None else timeout_s):
            async with response.response as body:
                async for data in body:
                    await send(_part(data.encode() if isinstance(data, str) else data, more=True))
            await send(_part(b"", more=False))


def _part(body: bytes, *, more: bool) -> HTTPResponseBodyEvent:
    return {"type": "http.response.body", "body": body, "more_body": more}
