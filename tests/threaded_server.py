"""A server on threads, which also responds while a test blocks its own thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import TCPServer


@contextmanager
def serving(server: TCPServer) -> Iterator[str]:
    """Let a server on loopback answer for as long as this lasts; its base address."""
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
