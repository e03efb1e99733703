"""Breaking a connection on purpose: the answer begins and its end never comes."""

from __future__ import annotations

from typing import Any, Final

from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope
from quart import Response

BREAK_HEADER: Final = "x-break-connection"

_LENGTH = b"1000"


def broken() -> Response:
    """A response that :class:`Breaker` cuts off."""
    return Response("", headers={BREAK_HEADER: "1"})


class Breaker:
    """Wraps an application and cuts off the answers marked by :func:`broken`.

    The server closes a connection whose answer ended short of its announced length, which is what a client sees of
    a provider that dies while answering.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Serve one connection's scope."""
        cut = False

        async def send_or_cut(message: Any) -> None:
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

        await self._app(scope, receive, send_or_cut)
