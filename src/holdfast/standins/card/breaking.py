"""Abort a connection on purpose: the response starts and is never completed."""

from __future__ import annotations

from typing import Any, Final

from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope
from quart import Response

BREAK_HEADER: Final = "x-break-connection"

_LENGTH = b"1000"


def aborted_response() -> Response:
    """Return a response that :class:`AbortMiddleware` aborts."""
    return Response("", headers={BREAK_HEADER: "1"})


class AbortMiddleware:
    """ASGI middleware that aborts the responses marked by :func:`aborted_response`.

    The server closes a connection whose response ended short of its announced length, which is what a client sees
    of a provider that dies while responding.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Serve one ASGI scope."""
        cut = False

        async def send_or_abort(message: Any) -> None:
            nonlocal cut
            if cut:
                return
            if message["type"] == "http.response.start":
                cut = any(name.lower() == BREAK_HEADER.encode() for name, _ in message["headers"])
                if cut:
                    headers = [(b"content-type", b"application/json"), (b"content-length", _LENGTH)]
                    message = {**message, "headers": headers}
                    await send(message)
                    message = {"type": "http.response.body", "body": b"{", "more_body": True}
            await send(message)

        await self._app(scope, receive, send_or_abort)
