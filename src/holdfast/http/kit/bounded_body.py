"""Requests whose body is read on demand, up to a limit."""

from __future__ import annotations

from typing import Any

import trio
from hypercorn.typing import ASGIReceiveCallable
from quart_trio.wrappers.request import TrioRequest
from werkzeug.exceptions import RequestEntityTooLarge


class HoldfastRequest(TrioRequest):
    """A request whose body stays in the server until it is read."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.receive: ASGIReceiveCallable | None = None
        self.started_s = 0.0
        self.id = ""

    async def read_body(self, bytes_max: int) -> bytes:
        """Read the whole body, once.

        Raises ``RequestEntityTooLarge`` after more than ``bytes_max`` bytes. If the client disconnects it does not
        return: the server cancels the request.
        """
        assert self.receive is not None
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
