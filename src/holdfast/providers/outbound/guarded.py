"""An HTTP client for untrusted URLs: a provider's outputs, a customer's webhook, an image to edit.

Addresses are checked where connections are made. There the name is resolved once, every address is checked, and the
connection goes to one of these addresses, so a name that resolves differently a moment later changes nothing. TLS
still verifies the certificate against the name. Only https is allowed, except for origins that the operator
configured, which are not checked at all.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import httpcore2
import httpx2
import trio

from holdfast.providers.outbound.addresses import is_plain_host, is_public
from holdfast.providers.outbound.name_lookups import NameLookups
from holdfast.providers.outbound.tls import tls_context

URL_MAX_CHARS = 8192
REDIRECTS_MAX_COUNT = 5
ADDRESSES_MAX_COUNT = 4
"""How many of a name's addresses are tried."""

Origin = tuple[str, int]
"""Host in lower case, and port."""

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
Dial = Callable[[str, int, float | None], Awaitable[httpcore2.AsyncNetworkStream]]


class Blocked(Exception):
    """The URL, or an address or redirect it leads to, is not allowed. Retrying does not help."""


class Unreachable(Exception):
    """No response, or a broken one. Retrying may help."""


_requester: ContextVar[str] = ContextVar("requester", default="")
"""The requester of the running request, for name look-ups; httpcore2 connects in its caller's task."""


def resolver(names: NameLookups) -> Resolve:
    """Resolve names with ``names``, on behalf of the running request's requester."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        return await names.addresses(host, port, requester=_requester.get())

    return resolve


async def dial(address: str, port: int, timeout_s: float | None) -> httpcore2.AsyncNetworkStream:
    """Connect to an address. Raises ``httpcore2.ConnectError`` or ``httpcore2.ConnectTimeout``."""
    return await httpcore2.TrioBackend().connect_tcp(address, port, timeout=timeout_s)


class _GuardedBackend(httpcore2.AsyncNetworkBackend):
    def __init__(self, allow: AbstractSet[Origin], resolve_: Resolve, dial_: Dial, *, local_allowed: bool) -> None:
        self._allow = allow
        self._local_allowed = local_allowed
        self._resolve = resolve_
        self._dial = dial_

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,  # noqa: ARG002 - the signature is httpcore2's
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002
    ) -> httpcore2.AsyncNetworkStream:
        allowed = self._local_allowed or (host.lower(), port) in self._allow
        if not allowed and not is_plain_host(host):
            raise Blocked("the host is written ambiguously")
        try:
            with trio.fail_after(float("inf") if timeout is None else timeout):
                addresses = await self._resolve(host, port)
        except trio.TooSlowError as fault:
            raise httpcore2.ConnectTimeout("the name was not resolved in time") from fault
        except (OSError, UnicodeError) as fault:
            raise httpcore2.ConnectError("the name does not resolve") from fault
        if not allowed and not all(map(is_public, addresses)):
            raise Blocked("the host is not on the public network")
        failure: Exception = httpcore2.ConnectError("the name has no address")
        for address in addresses[:ADDRESSES_MAX_COUNT]:
            try:
                return await self._dial(address, port, timeout)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as fault:
                failure = fault
        raise failure

    async def connect_unix_socket(
        self,
        path: str,  # noqa: ARG002 - the signature is httpcore2's
        timeout: float | None = None,  # noqa: ARG002
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002
    ) -> httpcore2.AsyncNetworkStream:
        raise Blocked("unix sockets are not allowed")

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


class GuardedClient:
    """Sends requests to checked addresses.

    ``allow`` are the origins the operator configured, such as the studio's, with hosts in lower case; the set may
    change while the client is used. ``local_allowed`` disables the check, for development. ``resolve`` resolves
    names, by default in threads of the client's own; it and ``dial`` are replaced in tests. Times in seconds:
    ``connect_timeout_s`` for resolving and connecting, ``idle_timeout_s`` between two bytes.
    """

    def __init__(
        self,
        allow: AbstractSet[Origin] = frozenset(),
        *,
        local_allowed: bool = False,
        resolve: Resolve | None = None,
        dial: Dial = dial,
        ssl_context: ssl.SSLContext | None = None,
        connect_timeout_s: float = 10.0,
        idle_timeout_s: float = 30.0,
        connections_max_count: int = 32,
    ) -> None:
        self._allow = allow
        self._local_allowed = local_allowed
        self._timeouts = {
            "connect": connect_timeout_s,
            "read": idle_timeout_s,
            "write": idle_timeout_s,
            "pool": connect_timeout_s,
        }
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=ssl_context or tls_context(),
            max_connections=connections_max_count,
            max_keepalive_connections=connections_max_count // 4,
            keepalive_expiry=5.0,
            network_backend=_GuardedBackend(
                self._allow, resolve or resolver(NameLookups("downloads")), dial, local_allowed=local_allowed
            ),
        )

    @asynccontextmanager
    async def open(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
        redirects_max_count: int = REDIRECTS_MAX_COUNT,
        only: AbstractSet[Origin] | None = None,
        requester: str = "",
    ) -> AsyncIterator[httpcore2.Response]:
        """Send a request and open the response; its body has not been read yet.

        Up to ``redirects_max_count`` redirects are followed, each checked like a new URL, without headers to
        another origin; with 0 a redirect is returned as the response. ``only`` are the configured origins that this
        request may lead to: one provider's outputs are not at another's. ``requester`` is charged for name
        look-ups. Raises :class:`Blocked` and :class:`Unreachable`, also while the body is read.
        """
        target = self._admit(url, None, only)
        trusted = _origin(target) in self._allow
        for hop in range(redirects_max_count + 1):
            request = self._request(method, target, headers or {}, content)
            try:
                response = await self._send(request, requester)
                try:
                    location = header(response, "location") if 300 <= response.status < 400 else None
                    if location is None or redirects_max_count == 0:
                        yield response
                        return
                finally:
                    with trio.CancelScope(shield=True):
                        await response.aclose()
            except _TRANSPORT_FAULTS as fault:
                raise Unreachable(type(fault).__name__) from fault
            if hop == redirects_max_count:
                break
            before, target = target, self._admit(location, target, only)
            if _origin(target) in self._allow and not trusted:
                raise Blocked("a redirect leads to a configured origin")
            if _origin(before) != _origin(target):
                headers = {}
        raise Blocked(f"more than {redirects_max_count} redirects")

    async def close(self) -> None:
        """Close connections."""
        await self._pool.aclose()

    async def _send(self, request: httpcore2.Request, requester: str) -> httpcore2.Response:
        token = _requester.set(requester)
        try:
            return await self._pool.handle_async_request(request)
        finally:
            _requester.reset(token)

    def _admit(self, url: str, base: httpx2.URL | None, only: AbstractSet[Origin] | None = None) -> httpx2.URL:
        if len(url) > URL_MAX_CHARS:
            raise Blocked("the URL is too long")
        try:
            target = httpx2.URL(url) if base is None else base.join(url)
        except (httpx2.InvalidURL, ValueError) as fault:
            raise Blocked("the URL is malformed") from fault
        if target.userinfo:
            raise Blocked("the URL contains credentials")
        if not 1 <= _origin(target)[1] <= 65535:
            raise Blocked("the URL's port does not exist")
        host = target.raw_host.decode("ascii").strip("[]")
        if only is not None and _origin(target) in self._allow - only:
            raise Blocked("the URL leads to another provider")
        allowed = self._local_allowed or _origin(target) in self._allow
        if target.scheme != "https" and not (target.scheme == "http" and allowed):
            raise Blocked("the URL is not https")
        if not allowed and not is_plain_host(host):
            raise Blocked("the URL's host is written ambiguously")
        return target

    def _request(
        self, method: str, target: httpx2.URL, headers: Mapping[str, str], content: bytes
    ) -> httpcore2.Request:
        sent = [
            (b"Host", target.netloc),
            (b"User-Agent", b"holdfast"),
            (b"Accept", b"*/*"),
            (b"Accept-Encoding", b"identity"),
            *((name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()),
        ]
        if content or method == "POST":
            sent.append((b"Content-Length", str(len(content)).encode("ascii")))
        host, port = _origin(target)
        return httpcore2.Request(
            method,
            httpcore2.URL(scheme=target.raw_scheme, host=host.encode("ascii"), port=port, target=target.raw_path),
            headers=sent,
            content=content,
            extensions={"timeout": self._timeouts},
        )


_TRANSPORT_FAULTS = (
    httpcore2.NetworkError,
    httpcore2.TimeoutException,
    httpcore2.ProtocolError,
    httpcore2.ConnectionNotAvailable,
    httpcore2.UnsupportedProtocol,
)


def _origin(url: httpx2.URL) -> Origin:
    host = url.raw_host.decode("ascii").strip("[]").lower()
    return host, url.port or (443 if url.scheme == "https" else 80)


def header(response: httpcore2.Response, name: str) -> str | None:
    """Return the first header of that name as text."""
    wanted = name.encode("ascii")
    for key, value in response.headers:
        if key.lower() == wanted:
            return value.decode("latin-1")
    return None
