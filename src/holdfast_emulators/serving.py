"""What the emulators share: serving a web application, and sending signed messages."""

from __future__ import annotations

import socket

import httpx2
import structlog
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from quart_trio import QuartTrio

from holdfast.ledger.values import Now, utc_now
from holdfast.providers.outbound.connection_pool import tls_context
from holdfast.providers.signatures import sign
from holdfast.telemetry.traces import trace_header

ANY_PORT = "127.0.0.1:0"
STOP_WITHIN_S = 5.0
GRACEFUL_TIMEOUT_S = 0.1
"""Short, because idle connections last as long: clients close theirs before an emulator is stopped."""
KEEP_ALIVE_TIMEOUT_S = 30

RETRY_DELAYS_S: tuple[float, ...] = (0, 1, 5, 30, 120, 600, 600, 600, 600, 600, 600)
"""The delay before each attempt to send one message; after the last it is given up."""
TIMEOUT_S = 15.0
"""Longer than a receiver waits for its own parts, so that it is not hung up on."""
_log = structlog.get_logger(__name__)


async def serve_app(
    app: QuartTrio,
    *,
    bound: socket.socket | None = None,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; reports its URL.

    ``bound`` is the socket it listens on, which stays open; without one it takes any free port.

    Raises, in a group, ``RuntimeError`` if the server stops by itself.
    """
    # A duplicate, because the server closes what it serves on.
    bind = ANY_PORT if bound is None else f"fd://{bound.dup().detach()}"
    stop, stopped = trio.Event(), trio.Event()
    server = trio.CancelScope(shield=True)

    async def serve_web(*, task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED) -> None:
        # Shielded: a cancelled server does not close its sockets in order. It is stopped instead.
        try:
            with server:
                await serve(app, _config(bind), shutdown_trigger=stop.wait, task_status=task_status)
        finally:
            stopped.set()

    async with trio.open_nursery() as nursery:
        binds = await nursery.start(serve_web)
        task_status.started(binds[0])
        try:
            await stopped.wait()
        finally:
            stop.set()
            with trio.move_on_after(STOP_WITHIN_S, shield=True):
                await stopped.wait()
            server.cancel()
        raise RuntimeError("the server stopped by itself")


def _config(bind: str) -> Config:
    config = Config()
    config.bind = [bind]
    config.accesslog = None
    config.errorlog = None
    config.graceful_timeout = GRACEFUL_TIMEOUT_S
    config.keep_alive_timeout = KEEP_ALIVE_TIMEOUT_S
    config.h11_max_incomplete_size = 64 * 1024
    config.include_server_header = False
    return config


class SignedSender:
    """Sends messages over HTTP, each attempt signed at its own time.

    ``header`` is the name of the signature header, which contains ``key_name`` if given. ``name`` is the sender in
    logs.
    """

    def __init__(
        self, name: str, secret: str, *, header: str, key_name: str | None = None, now: Now = utc_now
    ) -> None:
        self._name = name
        self._secret = secret
        self._header = header
        self._key_name = key_name
        self._now = now
        self._http = httpx2.AsyncClient(
            trust_env=False,
            follow_redirects=False,
            verify=tls_context(),
            timeout=TIMEOUT_S,
            limits=httpx2.Limits(max_connections=32, max_keepalive_connections=8, keepalive_expiry=15),
        )

    async def send(self, url: str, body: bytes) -> bool:
        """Send once; returns whether the receiver accepted the message."""
        signature = sign(self._secret, body, at=int(self._now().timestamp()), key_name=self._key_name)
        headers = {"Content-Type": "application/json", self._header: signature, **trace_header()}
        accepted = False
        with trio.move_on_after(TIMEOUT_S):
            try:
                async with self._http.stream("POST", url, content=body, headers=headers) as response:
                    accepted = response.is_success
            except (httpx2.HTTPError, httpx2.InvalidURL) as fault:
                _log.info("callback failed", sender=self._name, fault=type(fault).__name__)
        return accepted

    async def close(self) -> None:
        """Close connections."""
        await self._http.aclose()
