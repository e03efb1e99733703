"""How one request's body is taken in and its answer handed over, whatever the handler read of the body.

An answer may be ready before the body has arrived: a wrong path, no credential, a body said to be too large. The
server below can use the connection again only when the body is through. So an answer waits a moment for the rest,
which is thrown away; where it does not come, the answer says ``Connection: close``, and the connection is closed.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import trio
from hypercorn.typing import ASGIReceiveCallable, ASGIReceiveEvent, ASGISendCallable, ASGISendEvent, HTTPScope
from quart import Request
from quart.app import Quart
from quart_trio.asgi import TrioASGIHTTPConnection

REST_OF_BODY_S: Final = 2.0
"""How long an answer waits for the rest of a body that nobody reads."""

LAST_WORD_S: Final = 5.0


class FrontConnection(TrioASGIHTTPConnection):
    """One request over the server below; made anew for each."""

    def __init__(self, app: Quart, scope: HTTPScope) -> None:
        super().__init__(app, scope)
        self._body_is_through = trio.Event()

    async def handle_messages(  # type: ignore[override]  # quart-trio's own signature differs from quart's
        self, nursery: trio.Nursery, request: Request, receive: ASGIReceiveCallable
    ) -> None:
        """Take the body in, and end the handler when its caller hangs up."""

        async def watched() -> ASGIReceiveEvent:
            event = await receive()
            if event["type"] != "http.request" or not event.get("more_body", False):
                self._body_is_through.set()
            return event

        await super().handle_messages(nursery, request, watched)

    async def handle_request(  # type: ignore[override]  # as above
        self, nursery: trio.Nursery, request: Request, send: ASGISendCallable
    ) -> None:
        """Answer; a connection that cannot be used again is really closed."""
        await super().handle_request(nursery, request, partial(self._send, send))

    async def _send(self, send: ASGISendCallable, event: ASGISendEvent) -> None:
        if event["type"] == "http.response.start" and not self._body_is_through.is_set():
            with trio.move_on_after(REST_OF_BODY_S):
                await self._body_is_through.wait()
            if not self._body_is_through.is_set() and self.scope["http_version"].startswith("1"):
                event["headers"] = [*event["headers"], (b"connection", b"close")]
        if event["type"] == "http.response.body" and not event.get("more_body", False):
            # The server below first tells us that the call is over, which cancels us, and only then closes the
            # connection or begins to time its idleness, still in our task. Cut off in between, it would do neither.
            with trio.move_on_after(LAST_WORD_S, shield=True):
                await send(event)
        else:
            await send(event)
