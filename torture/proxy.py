"""A TCP proxy between the service and its database, which can cut, stall and drop traffic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import trio

Mode = Literal["pass", "stall", "swallow", "refuse"]
"""``stall`` holds back both directions, ``swallow`` drops the database's responses, ``refuse`` ends new
connections."""

CHUNK_BYTES = 65536


@dataclass
class Proxy:
    """Listens on ``port`` and connects to ``target_port``, both on loopback."""

    target_port: int
    port: int = 0
    mode: Mode = "pass"
    _changed: trio.Event = field(default_factory=trio.Event)
    _connections: set[trio.CancelScope] = field(default_factory=set)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._serve, listeners)

    def set_mode(self, mode: Mode) -> None:
        """Set the mode, for open connections too."""
        self.mode = mode
        self._changed.set()
        self._changed = trio.Event()

    def cut(self) -> None:
        """End every open connection; bytes in transit are lost."""
        for scope in list(self._connections):
            scope.cancel()

    async def _serve(self, client: trio.SocketStream) -> None:
        if self.mode == "refuse":
            return
        with trio.CancelScope() as scope:
            self._connections.add(scope)
            try:
                server = await trio.open_tcp_stream("127.0.0.1", self.target_port)
                async with server, trio.open_nursery() as nursery:
                    nursery.start_soon(self._copy, client, server, False, scope)
                    nursery.start_soon(self._copy, server, client, True, scope)
            except OSError:
                return
            finally:
                self._connections.discard(scope)

    async def _copy(
        self,
        source: trio.SocketStream,
        target: trio.SocketStream,
        is_answer: bool,
        scope: trio.CancelScope,
    ) -> None:
        try:
            while chunk := await source.receive_some(CHUNK_BYTES):
                while self.mode == "stall" or (self.mode == "swallow" and is_answer):
                    await self._changed.wait()
                await target.send_all(chunk)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        scope.cancel()
