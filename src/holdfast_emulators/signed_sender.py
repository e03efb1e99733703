"""Send signed messages to a receiver: one attempt at a time, for both emulators."""

from __future__ import annotations

import httpx2
import structlog
import trio

from holdfast.ledger.clock import Now, utc_now
from holdfast.providers.outbound.connection_pool import tls_context
from holdfast.providers.signatures import sign
from holdfast.telemetry.traces import trace_header

RETRY_DELAYS_S: tuple[float, ...] = (0, 1, 5, 30, 120, 600, 600, 600, 600, 600, 600)
"""The delay before each attempt to send one message; after the last it is given up."""

TIMEOUT_S = 15.0
"""Longer than a receiver waits for its own parts, so that it is not hung up on."""

_log = structlog.get_logger(__name__)


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
