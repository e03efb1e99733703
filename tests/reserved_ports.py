"""Ports for servers that a test starts as processes, perhaps again and again."""

from __future__ import annotations

import socket
import weakref


def reserve_port(owner: object) -> int:
    """Return a port of loopback that no other process is given for as long as ``owner`` exists.

    It is kept by a socket that is bound and does not listen. A server that binds with SO_REUSEADDR may listen on it
    nevertheless; meanwhile connections are refused.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    weakref.finalize(owner, held.close)
    return int(held.getsockname()[1])
