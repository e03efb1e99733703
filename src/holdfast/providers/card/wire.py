"""The official client's way onto the network: ours, so that the house's rules of outgoing HTTP hold for it too.

No proxy or certificate from the environment, no redirects, no answer without an end, and a time limit on each whole
exchange rather than on each read. What no provider would send (a page of a proxy, half an object) becomes a plain
connection error here, since the official client would stumble over it.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, ClassVar

import httpx
import msgspec
import stripe
import trio

from holdfast.providers.outward.bounded import BodyTooLarge, drain
from holdfast.providers.outward.outgoing import exchange

ANSWER_MAX_BYTES = 8 * 1024 * 1024
CONNECTIONS_MAX_COUNT = 32
KEEP_ALIVE_S = 15

_WORDLESS = b'{"error": {"type": "api_error"}}'


class Broken(stripe.APIConnectionError):
    """No answer of the provider came; ``again`` says whether another try may help."""

    def __init__(self, reason: str, *, again: bool) -> None:
        super().__init__(reason, should_retry=again)  # type: ignore[no-untyped-call]


class TimedOut(Broken):
    """One exchange took longer than allowed."""


class TrioHttp(stripe.HTTPClient):
    """One pool of connections, ``timeout_s`` for each exchange; asynchronous calls only."""

    name: ClassVar[str] = "httpx"

    def __init__(self, *, timeout_s: float, connect_timeout_s: float) -> None:
        super().__init__()
        self._timeout_s = timeout_s
        self._http = httpx.AsyncClient(
            trust_env=False,
            follow_redirects=False,
            verify=ssl.create_default_context(cafile=stripe.ca_bundle_path),
            timeout=httpx.Timeout(timeout_s, connect=connect_timeout_s),
            limits=httpx.Limits(max_connections=CONNECTIONS_MAX_COUNT, keepalive_expiry=KEEP_ALIVE_S),
        )

    async def request_async(
        self, method: str, url: str, headers: Mapping[str, str], post_data: Any = None
    ) -> tuple[bytes, int, Mapping[str, str]]:
        """One exchange. Raises :class:`Broken` for all that is no answer of the provider."""
        content = post_data.encode() if isinstance(post_data, str) else post_data
        try:
            with trio.fail_after(self._timeout_s):
                async with exchange(self._http, method, url, content=content, headers=headers) as answer:
                    body = await drain(answer.aiter_bytes(), ANSWER_MAX_BYTES)
        except (trio.TooSlowError, httpx.TimeoutException) as fault:
            trouble: Broken = TimedOut(type(fault).__name__, again=True)
        except (httpx.HTTPError, BodyTooLarge) as fault:
            trouble = Broken(type(fault).__name__, again=True)
        else:
            if _sensible(answer.status_code, body):
                return body, answer.status_code, answer.headers
            if answer.status_code == 429 or answer.status_code >= 500:
                # Told by their status alone, whoever on the way said it and in whatever words.
                return _WORDLESS, answer.status_code, answer.headers
            trouble = Broken(f"unreadable answer {answer.status_code}", again=False)
        # Raised out here so that the request, which holds the key, does not travel along as the cause.
        raise trouble

    async def sleep_async(self, secs: float) -> None:
        """Wait between tries."""
        await trio.sleep(secs)

    async def close_async(self) -> None:
        """Give back connections."""
        await self._http.aclose()

    def close(self) -> None:
        """Nothing is open that could be closed without waiting."""


def _sensible(status: int, body: bytes) -> bool:
    """True for an answer that the official client can read."""
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    if not isinstance(answer, dict):
        return False
    return 200 <= status < 300 or (status >= 400 and isinstance(answer.get("error"), dict))
