"""The accept loop of one listening socket.

A crash of the loop leaves the socket open: new connections wait in its queue for the next incarnation.
"""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

import structlog
import trio

from holdfast.http.server.connection import Address, AsgiApp
from holdfast.http.server.connections import Connections
from holdfast.sockets.closing import refuse_new_connections
from holdfast.sockets.connected import ConnectedSocket

log = structlog.get_logger(__name__)

PAUSE_S: Final = 0.1
"""The pause after the process or the system ran out of file descriptors."""

ACCEPTED_AT_ONCE_MAX: Final = 16
"""How many connections are accepted before other tasks run."""

_NO_FILE_LEFT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_ABORTED: Final = frozenset(
    {
        errno.ECONNABORTED,
        errno.EPERM,
        errno.EPROTO,
        errno.ENETDOWN,
        errno.ENOPROTOOPT,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EOPNOTSUPP,
        errno.ENETUNREACH,
        errno.EINTR,
    }
)


class Listener:
    """One incarnation of an accept loop; a child of a supervisor.

    ``is_final`` distinguishes the stop of the service from a restart: only then is the socket closed, after all
    connections in its queue have been accepted. With ``is_shared`` another process has the same socket, and may
    still accept new connections. The connections of one ``is_for_operators`` are counted apart.
    """

    def __init__(
        self,
        listening: socket.socket,
        app: AsgiApp,
        connections: Callable[[], Connections],
        *,
        is_final: Callable[[], bool] = lambda: True,
        is_shared: bool = False,
        is_for_operators: bool = False,
    ) -> None:
        self._socket = listening
        self._app = app
        self._connections = connections
        self._is_final = is_final
        self._is_shared = is_shared
        self._is_for_operators = is_for_operators
        self._is_retired = False
        self._scope = trio.CancelScope()
        self._stopped = trio.Event()
        self._has_no_file = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Accept until stopped. Raises OSError if the socket is broken."""
        self._socket.setblocking(False)
        task_status.started()
        with self._scope:
            while True:
                await trio.lowlevel.wait_readable(self._socket)
                if not self._accept_waiting(ACCEPTED_AT_ONCE_MAX):
                    await trio.sleep(PAUSE_S)
        if self._is_retired or self._is_final():
            if not self._is_shared:
                refuse_new_connections(self._socket)
            self._accept_waiting(sys.maxsize)
            self._socket.close()
        if self._is_retired:
            await self._stopped.wait()

    async def stop(self) -> None:
        """End the loop."""
        self._stopped.set()
        self._scope.cancel()

    def retire(self) -> None:
        """Close the socket, as at a final stop, and keep running until stopped."""
        self._is_retired = True
        self._scope.cancel()

    def _accept_waiting(self, count_max: int) -> bool:
        """Accept connections from the queue. Return False if there are no file descriptors left."""
        for _ in range(count_max):
            try:
                accepted, address = self._socket.accept()
            except BlockingIOError:
                return True
            except OSError as fault:
                if fault.errno in _ABORTED:
                    continue
                if fault.errno not in _NO_FILE_LEFT:
                    raise
                if not self._has_no_file:
                    self._has_no_file = True
                    log.error("no file descriptor is left for a new connection", reason=fault.strerror)
                self._connections().close_longest_idle()
                return False
            self._has_no_file = False
            try:
                stream = ConnectedSocket(accepted)
                server = _address(accepted.getsockname())
            except OSError:
                accepted.close()  # closed by the client already
                continue
            self._connections().admit(
                self._app, stream, _address(address), server, is_for_operators=self._is_for_operators
            )
        return True


def _address(found: tuple[Any, ...]) -> Address:
    return str(found[0]), int(found[1])
