"""The HTTP client for one provider: requests bounded in time and size."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import httpx2
import msgspec
import trio

from holdfast.ledger.clock import utc_now
from holdfast.providers.media.base import Ambiguous, NotSent, PollFault
from holdfast.providers.media.health import ProviderHealth
from holdfast.providers.media.text import MESSAGE_MAX_CHARS, tidy
from holdfast.providers.outbound.bounded import BodyTooLarge, drain
from holdfast.providers.outbound.retry_after import parse_retry_after
from holdfast.providers.outbound.tls import tls_context

ANSWER_MAX_BYTES = 16 * 1024 * 1024
RETRY_AFTER_MAX_S = 3600
PROBE_TIMEOUT_S = 5.0

NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
"""No byte of the request was sent, so the server cannot have it."""

NO_ANSWER = (httpx2.HTTPError, trio.TooSlowError, BodyTooLarge)
"""The request may have arrived, but there is no response."""


class ProviderResponse(msgspec.Struct, frozen=True):
    """A server's response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def retry_after_s(self) -> int | None:
        """The ``Retry-After`` of the response, at most an hour; None without one."""
        pause_s = parse_retry_after(self.headers.get("retry-after"), utc_now())
        return None if pause_s is None else round(min(pause_s, RETRY_AFTER_MAX_S))


class ProviderClient:
    """Connections to the server at ``url``. A ``token`` is sent as a bearer token and never logged.

    ``connect_timeout_s`` bounds connecting, ``timeout_s`` a read or write. Raises ``ValueError`` unless ``url`` is
    an http or https URL.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        token: str | None,
        timeout_s: float,
        connect_timeout_s: float,
        connections_max_count: int,
    ) -> None:
        try:
            base = httpx2.URL(url)
        except httpx2.InvalidURL as fault:
            raise ValueError(f"the url of provider {name}: {fault}") from fault
        if base.scheme not in ("http", "https") or not base.host:
            raise ValueError(f"the url of provider {name} is not an http or https URL")
        self.base = str(base).rstrip("/")
        self.health = ProviderHealth(name)
        self._http = httpx2.AsyncClient(
            trust_env=False,
            follow_redirects=False,
            verify=tls_context(),
            headers={"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})},
            timeout=httpx2.Timeout(timeout_s, connect=connect_timeout_s),
            limits=httpx2.Limits(max_connections=connections_max_count, keepalive_expiry=5),
        )

    async def ask(
        self,
        method: str,
        path: str,
        within_s: float,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ProviderResponse:
        """Send a request. Raises the errors in :data:`NEVER_SENT` and :data:`NO_ANSWER`."""
        try:
            with trio.fail_after(within_s):
                async with self._http.stream(
                    method, self.base + path, content=content, headers=headers
                ) as response:
                    body = await drain(response.aiter_bytes(), ANSWER_MAX_BYTES)
        except httpx2.PoolTimeout:
            # Our own connections were all in use.
            raise
        except (httpx2.HTTPError, trio.TooSlowError) as fault:
            self.health.failed("calls", type(fault).__name__)
            raise
        self.health.call_answered(response.status_code)
        return ProviderResponse(response.status_code, dict(response.headers), body)

    async def probe(self, path: str) -> None:
        """Send a request that costs nothing; any response shows that the server is up."""
        with suppress(*NO_ANSWER):
            await self.ask("GET", path, PROBE_TIMEOUT_S)

    async def submit(
        self, method: str, path: str, within_s: float, content: bytes, headers: Mapping[str, str]
    ) -> ProviderResponse | NotSent | Ambiguous:
        """Send a job; without a response, return whether the server may have it."""
        try:
            return await self.ask(method, path, within_s, content, headers)
        except NEVER_SENT as fault:
            return NotSent(f"provider unreachable: {type(fault).__name__}")
        except NO_ANSWER as fault:
            return Ambiguous(f"no response to the submission: {type(fault).__name__}")

    async def ask_about(self, method: str, path: str, within_s: float) -> ProviderResponse:
        """Send a request about a job that the server has. Raises :class:`PollFault`."""
        try:
            return await self.ask(method, path, within_s)
        except NO_ANSWER as fault:
            raise PollFault(f"the provider is unreachable: {type(fault).__name__}") from fault

    async def close(self) -> None:
        """Close connections."""
        await self._http.aclose()


def detail_of(body: bytes) -> str:
    """Return the reason inside an error's body, for operators."""
    try:
        content = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "no reason given"
    reason = content.get("detail", content.get("error")) if isinstance(content, dict) else None
    if isinstance(reason, list):
        # Validation errors are a list, each with a message.
        reason = "; ".join(str(item["msg"]) for item in reason[:8] if isinstance(item, dict) and "msg" in item)
    return tidy(reason if isinstance(reason, str) else None, MESSAGE_MAX_CHARS - 50) or "no reason given"
