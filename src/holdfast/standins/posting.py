"""Posting signed messages to a receiver, as both stand-ins do: one sending at a time, told whether it was taken."""

from __future__ import annotations

import httpx2
import structlog
import trio

from holdfast.ledger.clock import Now, utc_now
from holdfast.providers.signatures import sign

RETRY_DELAYS_S: tuple[float, ...] = (0, 1, 5, 30, 120, 600, 600, 600, 600, 600, 600)
"""How long to wait before each sending of one message; after the last it is given up."""

POST_TIMEOUT_S = 15.0

_log = structlog.get_logger(__name__)


class SignedPost:
    """Carries messages to their receivers over HTTP, each sending signed for its own moment.

    ``header`` names the signature's header; ``key_name`` is told in it, where given. ``name`` says in logs whose
    messages these are.
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
            timeout=POST_TIMEOUT_S,
            limits=httpx2.Limits(max_connections=32, max_keepalive_connections=8, keepalive_expiry=15),
        )

    async def send(self, url: str, body: bytes, *, timeout_s: float = POST_TIMEOUT_S) -> bool:
        """Send once; True where the receiver took it, False for whatever else happened."""
        signature = sign(self._secret, body, at=int(self._now().timestamp()), key_name=self._key_name)
        headers = {"Content-Type": "application/json", self._header: signature}
        heard = False
        with trio.move_on_after(timeout_s):
            try:
                async with self._http.stream("POST", url, content=body, headers=headers) as answer:
                    heard = answer.is_success
            except (httpx2.HTTPError, httpx2.InvalidURL) as fault:
                _log.info("callback_failed", sender=self._name, fault=type(fault).__name__)
        return heard

    async def close(self) -> None:
        """Give back connections."""
        await self._http.aclose()
