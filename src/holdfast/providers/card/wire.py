"""The HTTP transport of the official client, so that the rules for outbound HTTP hold for it too.

No proxy or certificate from the environment, no redirects, a limit on the size of a response, and a timeout for
each whole exchange rather than for each read. A response that no provider would send (a proxy's page, a truncated
object) becomes a plain connection error here, since the official client would fail on it.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping
from typing import Any, ClassVar

import httpx2
import msgspec
import stripe
import trio

from holdfast.providers.outbound.connection_pool import tls_context
from holdfast.providers.outbound.faults import BodyTooLarge
from holdfast.telemetry.traces import trace_header
from holdfast.telemetry.traces.spans import span

ANSWER_MAX_BYTES = 8 * 1024 * 1024
CONNECTIONS_MAX_COUNT = 32
KEEP_ALIVE_S = 15

_ERROR_WITHOUT_MESSAGE = b'{"error": {"type": "api_error"}}'


class NoResponse(stripe.APIConnectionError):
    """No response of the provider arrived; ``retry`` is whether a retry may help."""

    def __init__(self, reason: str, *, retry: bool) -> None:
        super().__init__(reason, should_retry=retry)  # type: ignore[no-untyped-call]


class TimedOut(NoResponse):
    """One exchange took longer than allowed."""


class TrioHttp(stripe.HTTPClient):
    """One connection pool, ``timeout_s`` for each exchange; asynchronous calls only."""

    name: ClassVar[str] = "httpx"

    def __init__(self, *, timeout_s: float, connect_timeout_s: float) -> None:
        super().__init__()
        self._timeout_s = timeout_s
        self._http = httpx2.AsyncClient(
            trust_env=False,
            follow_redirects=False,
            verify=tls_context(),
            timeout=httpx2.Timeout(timeout_s, connect=connect_timeout_s),
            limits=httpx2.Limits(max_connections=CONNECTIONS_MAX_COUNT, keepalive_expiry=KEEP_ALIVE_S),
        )

    async def request_async(
        self, method: str, url: str, headers: Mapping[str, str], post_data: Any = None
    ) -> tuple[bytes, int, Mapping[str, str]]:
        """Make one exchange. Raises :class:`NoResponse` for anything that is not a response of the provider."""
        content = post_data.encode() if isinstance(post_data, str) else post_data
        try:
            with span("call cardprovider", "client"), trio.fail_after(self._timeout_s):
                sent = {**headers, **trace_header()}
                async with self._http.stream(method, url, content=content, headers=sent) as answer:
                    body = await _read(answer.aiter_bytes(), ANSWER_MAX_BYTES)
        except (trio.TooSlowError, httpx2.TimeoutException) as fault:
            error: NoResponse = TimedOut(type(fault).__name__, retry=True)
        except (httpx2.HTTPError, BodyTooLarge) as fault:
            error = NoResponse(type(fault).__name__, retry=True)
        else:
            if _sensible(answer.status_code, body):
                return body, answer.status_code, answer.headers
            if answer.status_code == 429 or answer.status_code >= 500:
                # Only the status is used: the body may be a proxy's and in any format.
                return _ERROR_WITHOUT_MESSAGE, answer.status_code, answer.headers
            error = NoResponse(f"unreadable response {answer.status_code}", retry=False)
        # Raised outside ``except`` so that the request, which holds the key, is not its cause.
        raise error

    async def sleep_async(self, secs: float) -> None:
        """Wait between retries."""
        await trio.sleep(secs)

    async def close_async(self) -> None:
        """Close connections."""
        await self._http.aclose()

    def close(self) -> None:
        """Do nothing: there is nothing to close without awaiting."""


def _sensible(status: int, body: bytes) -> bool:
    """Whether the official client can parse the response."""
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    if not isinstance(answer, dict):
        return False
    return 200 <= status < 300 or (status >= 400 and isinstance(answer.get("error"), dict))


async def _read(blocks: AsyncIterable[bytes], limit_bytes: int) -> bytes:
    """Read ``blocks`` to their end and return them.

    Raises :class:`BodyTooLarge` for more than ``limit_bytes``. Reading is then ended by cancelling it from within:
    the body is a chain of asynchronous generators, and one that is not read to its end would be closed by the
    garbage collector.
    """
    read = bytearray()
    with trio.CancelScope() as reading:
        async for block in blocks:
            if len(read) <= limit_bytes:
                read += block
            if len(read) > limit_bytes:
                reading.cancel()
    if len(read) > limit_bytes:
        raise BodyTooLarge(limit_bytes)
    return bytes(read)
