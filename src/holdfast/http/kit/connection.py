"""The ASGI side of the application: one request in, one response out.

The server (:mod:`holdfast.http.server`) cancels the request of a client that disconnects and delivers the body on
demand. So a request needs one task, and no part of a body is read before a handler reads it.
"""

from __future__ import annotations

from typing import Final, cast

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

_UNLESS_SET: Final = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
"""The headers that every response has, with these values unless it has others."""


class HoldfastConnection(ASGIHTTPConnection):
    """One request. Every response has its id."""

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Answer the request."""
        request = HoldfastRequest(self.scope, receive)
        response = await self.app.handle_request(request)
        assert isinstance(response, Response)
        headers = encode_headers(response.headers)
        named = {name for name, _ in headers}
        headers.append((b"x-request-id", request.id.encode()))
        if request.traceresponse is not None:
            headers.append((b"traceresponse", request.traceresponse.encode()))
        headers += [header for header in _UNLESS_SET if header[0] not in named]
        start = cast(
            HTTPResponseStartEvent,
            {"type": "http.response.start", "status": response.status_code, "headers": headers},
        )
        if request.method == "HEAD":
            await send(start)
            await send(_part(b"", more=False))
            return
        if isinstance(response.response, DataBody):
            await send(start)
            await send(_part(response.response.data, more=False))
            return
        timeout_s = response.timeout if isinstance(response.timeout, int | float) else None
        # After the timeout the response is incomplete, and the server closes the connection.
        with trio.move_on_after(float("inf") if timeout_s is None else timeout_s):
            # Entered before anything is sent, so that nothing waits between a handler's checks and its body.
            async with response.response as body:
                await send(start)
                async for data in body:
                    await send(_part(data.encode() if isinstance(data, str) else data, more=True))
            await send(_part(b"", more=False))


def _part(body: bytes, *, more: bool) -> HTTPResponseBodyEvent:
    return {"type": "http.response.body", "body": body, "more_body": more}
