"""An HTTP client for untrusted URLs: a provider's outputs, a customer's webhook, an image to edit.

Addresses are checked where connections are made. There the name is resolved once, every address is checked, and the
connection goes to one of these addresses, so a name that resolves differently a moment later changes nothing. TLS
still verifies the certificate against the name. Only https is allowed, except for origins that the operator
configured, which are not checked at all.
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol

import trio

from holdfast.providers.outbound.addresses import is_plain_host, is_public
from holdfast.providers.outbound.connection_pool import (
    ConnectError,
    ConnectionPool,
    ConnectTimeout,
    Endpoint,
    Response,
    StartTls,
    render_request,
    start_tls,
)
from holdfast.providers.outbound.name_lookups import NameLookups
from holdfast.providers.outbound.urls import Target, parse_url

REDIRECTS_MAX_COUNT = 5
ADDRESSES_MAX_COUNT = 4
"""How many of a name's addresses are tried."""
CONNECTIONS_MAX_COUNT = 256
"""As many as hosting has downloads of 32 providers, each of which has a limit of its own and delays no other."""

Origin = tuple[str, int]
"""Host in lower case, and port."""


class Resolve(Protocol):
    """Resolves a host's name to addresses, on behalf of a requester. Raises ``OSError`` and ``UnicodeError``."""

    async def __call__(self, host: str, port: int, *, requester: str) -> Sequence[str]: ...


Dial = Callable[[str, int], Awaitable[trio.SocketStream]]
"""Connects to an address and port. Raises ``OSError``."""


class Blocked(Exception):
    """The URL, or an address or redirect it leads to, is not allowed. Retrying does not help."""


class GuardedClient:
    """Sends requests to checked addresses.

    ``allow`` are the origins the operator configured, such as the studio's, with hosts in lower case; the set may
    change while the client is used. ``local_allowed`` disables the check, for development. ``resolve`` resolves
    names, by default in threads of the client's own; it, ``dial`` and ``start_tls`` are replaced in tests. Times in
    seconds: ``connect_timeout_s`` for resolving, for connecting to each address, and for starting TLS;
    ``idle_timeout_s`` between two bytes.
    """

    def __init__(
        self,
        allow: AbstractSet[Origin] = frozenset(),
        *,
        local_allowed: bool = False,
        resolve: Resolve | None = None,
        dial: Dial = trio.open_tcp_stream,
        start_tls: StartTls = start_tls,
        ssl_context: ssl.SSLContext | None = None,
        connect_timeout_s: float = 10.0,
        idle_timeout_s: float = 30.0,
        connections_max_count: int = CONNECTIONS_MAX_COUNT,
    ) -> None:
        self._allow = allow
        self._local_allowed = local_allowed
        self._connect_timeout_s = connect_timeout_s
        self._resolve = resolve or NameLookups("downloads").addresses
        self._dial_address = dial
        self._pool = ConnectionPool(
            self._dial,
            ssl_context=ssl_context,
            connect_timeout_s=connect_timeout_s,
            idle_timeout_s=idle_timeout_s,
            connections_max_count=connections_max_count,
            idle_max_count=connections_max_count // 4,
            start_tls=start_tls,
        )

    async def open(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        redirects_max_count: int = REDIRECTS_MAX_COUNT,
        only: AbstractSet[Origin] | None = None,
        requester: str = "",
        ends_at: float = math.inf,
    ) -> Response:
        """Send a request, which may arrive twice, and return the response, which is a context that must be entered.

        Up to ``redirects_max_count`` redirects are followed, each checked like a new URL, without headers to
        another origin; with 0 a redirect is returned as the response. ``only`` are the configured origins that this
        request may lead to: one provider's outputs are not at another's. Name look-ups count against the limit of
        ``requester``. Raises :class:`Blocked`, and what :meth:`ConnectionPool.exchange` raises.
        """
        target = self._admit(url, None, only)
        trusted = _origin(target) in self._allow
        for hop in range(redirects_max_count + 1):
            response = await self._pool.exchange(
                self._endpoint(target),
                _render(method, target, headers or {}, content),
                is_repeatable=True,
                requester=requester,
                ends_at=ends_at,
            )
            location = response.header("location") if 300 <= response.status < 400 else None
            if location is None or redirects_max_count == 0:
                return response
            with response:
                if hop == redirects_max_count:
                    break
                before, target = target, self._admit(location, target, only)
                if _origin(target) in self._allow and not trusted:
                    raise Blocked("a redirect leads to a configured origin")
                if _origin(before) != _origin(target):
                    headers = {}
        raise Blocked(f"more than {redirects_max_count} redirects")

    def close(self) -> None:
        """Close connections."""
        self._pool.close()

    def _endpoint(self, target: Target) -> Endpoint:
        is_trusted = self._local_allowed or _origin(target) in self._allow
        return Endpoint(target.host, target.port, target.scheme == "https", is_trusted)

    async def _dial(self, endpoint: Endpoint, requester: str) -> trio.SocketStream:
        try:
            with trio.fail_after(self._connect_timeout_s):
                addresses = await self._resolve(endpoint.host, endpoint.port, requester=requester)
        except trio.TooSlowError as fault:
            raise ConnectTimeout("the name was not resolved in time") from fault
        except (OSError, UnicodeError) as fault:
            raise ConnectError("the name does not resolve") from fault
        if not endpoint.is_trusted and not all(map(is_public, addresses)):
            raise Blocked("the host is not on the public network")
        failure: Exception = ConnectError("the name has no address")
        for address in addresses[:ADDRESSES_MAX_COUNT]:
            try:
                with trio.fail_after(self._connect_timeout_s):
                    return await self._dial_address(address, endpoint.port)
            except trio.TooSlowError:
                failure = ConnectTimeout("the server did not accept a connection in time")
            except OSError as fault:
                failure = fault
        raise failure

    def _admit(self, url: str, base: Target | None, only: AbstractSet[Origin] | None) -> Target:
        try:
            target = parse_url(url, base)
        except ValueError as fault:
            raise Blocked(str(fault)) from fault
        is_configured = _origin(target) in self._allow
        if only is not None and is_configured and _origin(target) not in only:
            raise Blocked("the URL leads to another provider")
        allowed = self._local_allowed or is_configured
        if target.scheme != "https" and not (target.scheme == "http" and allowed):
            raise Blocked("the URL is not https")
        if not allowed and not is_plain_host(target.host):
            raise Blocked("the URL's host is written ambiguously")
        return target


def _origin(target: Target) -> Origin:
    return target.host, target.port


def _render(method: str, target: Target, headers: Mapping[str, str], content: bytes | None) -> bytes:
    always = {"Host": target.netloc, "User-Agent": "holdfast", "Accept": "*/*", "Accept-Encoding": "identity"}
    return render_request(method, target.path, {**always, **headers}, content)
