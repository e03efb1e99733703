"""The HTTP client for one provider: requests bounded in time and size."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Literal

import msgspec
import trio

from holdfast.ledger.values import utc_now
from holdfast.providers.media.base import MESSAGE_MAX_CHARS, Ambiguous, JobCallFault, NotSent, tidy
from holdfast.providers.media.health import ProviderHealth
from holdfast.providers.outbound.connection_pool import (
    BodyTooLarge,
    ConnectionPool,
    ConnectTimeout,
    Endpoint,
    NeverSent,
    PoolTimeout,
    TransportFault,
    parse_retry_after,
    render_request,
)
from holdfast.providers.outbound.urls import parse_url
from holdfast.telemetry import metrics
from holdfast.telemetry.metrics.batched_histogram import BatchedHistogram
from holdfast.telemetry.traces import span, trace_header

ANSWER_MAX_BYTES = 16 * 1024 * 1024
RETRY_AFTER_MAX_S = 3600
CONNECT_TIMEOUT_S = 5.0
PROBE_TIMEOUT_S = 5.0
CONNECTIONS_MAX_COUNT = 65
"""Two halves for the calls of tasks, and one for a probe, which waits for none of those."""

REFUSING_STATUSES = frozenset({401, 402, 403, 408, 429})
"""Statuses by which the provider refuses this service. Others below 500 are about the job: its input, its id."""

ProviderCall = Literal["submit", "poll", "cancel", "probe"]
_METHODS = {"poll": "GET", "cancel": "POST"}

NO_ANSWER = (TransportFault, trio.TooSlowError, BodyTooLarge)
"""The request may have arrived, but there is no response."""


class ProviderResponse(msgspec.Struct, frozen=True):
    """A server's response."""

    status: int
    retry_after: str | None
    body: bytes

    @property
    def retry_after_s(self) -> int | None:
        """The ``Retry-After`` of the response, at most an hour; None without one."""
        pause_s = parse_retry_after(self.retry_after, utc_now())
        return None if pause_s is None else round(min(pause_s, RETRY_AFTER_MAX_S))


class ProviderClient:
    """Connections to the server at ``url``. A ``token`` is sent as a bearer token and never logged.

    Raises ``ValueError`` unless ``url`` is an http or https URL.
    """

    def __init__(self, name: str, url: str, *, token: str | None) -> None:
        try:
            base = parse_url(url)
        except ValueError as fault:
            raise ValueError(f"the url of provider {name}: {fault}") from fault
        if base.scheme not in ("http", "https") or not base.host:
            raise ValueError(f"the url of provider {name} is not an http or https URL")
        self._endpoint = Endpoint(base.host, base.port, base.scheme == "https", is_trusted=True)
        self._base_path = base.path.rstrip(b"/")
        self._headers = {
            "Host": base.netloc,
            "User-Agent": "holdfast",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            **({"Authorization": f"Bearer {token}"} if token else {}),
        }
        self.health = ProviderHealth(name)
        self._name = name
        self._pool = ConnectionPool(
            self._dial,
            connect_timeout_s=CONNECT_TIMEOUT_S,
            connections_max_count=CONNECTIONS_MAX_COUNT,
            idle_max_count=CONNECTIONS_MAX_COUNT // 2,
        )

    async def ask(
        self,
        call: ProviderCall,
        method: str,
        path: str,
        within_s: float,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ProviderResponse:
        """Send a request, measured as ``call``. Raises the errors in :data:`NO_ANSWER`.

        ``GET`` and ``PUT`` may be sent twice, if a kept connection turns out to be closed.
        """
        begun = trio.current_time()
        try:
            with span(f"{call} {self._name}", "client", {"provider": self._name}):
                sent = {**self._headers, **trace_header(), **(headers or {})}
                request = render_request(method, self._base_path + path.encode("ascii"), sent, content)
                is_repeatable, ends_at = method in ("GET", "PUT"), begun + within_s
                with await self._pool.exchange(
                    self._endpoint, request, is_repeatable=is_repeatable, ends_at=ends_at
                ) as response:
                    body = await response.read(ANSWER_MAX_BYTES)
        except NO_ANSWER as fault:
            self._count_error(call, _reason_of(fault))
            # The provider may well be up if no connection of ours was free, or if its response is too large.
            if not isinstance(fault, PoolTimeout | BodyTooLarge):
                self.health.failed("calls", f"{call}: {_no_answer(fault, within_s)}")
            raise
        finally:
            _duration(self._name, call).observe(trio.current_time() - begun)
        if response.status >= 500 or response.status in REFUSING_STATUSES:
            self._count_error(call, f"status_{response.status}")
        self.health.call_answered(call, response.status)
        return ProviderResponse(response.status, response.header("retry-after"), body)

    async def probe(self, path: str) -> None:
        """Send a request that costs nothing; any response shows that the server is up."""
        with suppress(*NO_ANSWER):
            await self.ask("probe", "GET", path, PROBE_TIMEOUT_S)

    async def submit(
        self, method: str, path: str, within_s: float, content: bytes, headers: Mapping[str, str]
    ) -> ProviderResponse | NotSent | Ambiguous:
        """Send a job; without a response, return whether the server may have it."""
        try:
            return await self.ask("submit", method, path, within_s, content=content, headers=headers)
        except NeverSent as fault:
            return NotSent(f"provider unreachable: {type(fault).__name__}")
        except NO_ANSWER as fault:
            return Ambiguous(f"no response to the submission: {type(fault).__name__}")

    async def ask_about(self, call: Literal["poll", "cancel"], path: str, within_s: float) -> ProviderResponse:
        """Poll or cancel a job that the server has. Raises :class:`JobCallFault`."""
        try:
            return await self.ask(call, _METHODS[call], path, within_s)
        except NO_ANSWER as fault:
            raise JobCallFault(f"the provider is unreachable: {type(fault).__name__}") from fault

    def close(self) -> None:
        """Close connections."""
        self._pool.close()

    def _count_error(self, call: ProviderCall, reason: str) -> None:
        metrics.PROVIDER_ERRORS.labels(self._name, call, reason).inc()

    async def _dial(self, endpoint: Endpoint, _requester: str) -> trio.SocketStream:
        try:
            with trio.fail_after(CONNECT_TIMEOUT_S):
                return await trio.open_tcp_stream(endpoint.host, endpoint.port)
        except trio.TooSlowError as fault:
            raise ConnectTimeout("the server did not accept a connection in time") from fault


def _reason_of(fault: Exception) -> str:
    """Return the fault's name as a label: ``connect_error`` for ConnectError."""
    name = "Timeout" if isinstance(fault, trio.TooSlowError) else type(fault).__name__
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _no_answer(fault: Exception, within_s: float) -> str:
    return f"no response within {within_s:g} s" if isinstance(fault, trio.TooSlowError) else type(fault).__name__


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


@functools.cache
def _duration(provider: str, call: ProviderCall) -> BatchedHistogram:
    return metrics.PROVIDER_CALL_S.labels(provider, call)
