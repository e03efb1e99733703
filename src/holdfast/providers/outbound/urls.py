"""Parse absolute http and https URLs into what a request needs, and tell which callers may name."""

from __future__ import annotations

import re
from typing import NamedTuple

import httpx2

from holdfast.providers.outbound.addresses import is_plain_host, is_public, names_address

URL_MAX_CHARS = 8192

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_CHARS = r"A-Za-z0-9_~!$&'()*+,;=:@.\-"
_CANONICAL = re.compile(
    rf"(https?)://((?:[a-z0-9-]+\.)*[a-z][a-z0-9-]*|(?:{_OCTET}\.){{3}}{_OCTET})(?::([1-9][0-9]{{0,4}}))?"
    rf"((?:/(?!\.)(?:[{_CHARS}]|%[0-9A-Fa-f]{{2}})*)+)(\?(?:[{_CHARS}/?]|%[0-9A-Fa-f]{{2}})*)?"
)
"""URLs in which nothing needs to be normalized. Most are; httpx2 takes about fifty times as long."""


_INSIDE = ("localhost", "local", "internal", "localdomain")
"""Last labels of names that exist inside a network only."""


class Target(NamedTuple):
    """Where a request goes: host in lower case and without brackets, port, and ``path`` with the query, encoded.

    ``netloc`` is the value of the Host header.
    """

    scheme: str
    host: str
    port: int
    netloc: str
    path: bytes


def parse_url(url: str, base: Target | None = None) -> Target:
    """Parse a URL, which may be relative to ``base``. Raises ``ValueError``, whose text is the reason."""
    if len(url) > URL_MAX_CHARS:
        raise ValueError("the URL is too long")
    plain = _CANONICAL.fullmatch(url)
    if plain is not None:
        scheme, host, digits, path, query = plain.groups("")
        usual = 443 if scheme == "https" else 80
        port = int(digits or usual)
        netloc = host if port == usual else f"{host}:{port}"
        target = Target(scheme, host, port, netloc, (path + query).encode("ascii"))
    else:
        target = _normalized(url, base)
    if not 1 <= target.port <= 65535:
        raise ValueError("the URL's port does not exist")
    return target


def _normalized(url: str, base: Target | None) -> Target:
    try:
        if base is None:
            parsed = httpx2.URL(url)
        else:
            before = httpx2.URL(f"{base.scheme}://{base.netloc}{base.path.decode('ascii')}")
            parsed = before.join(url)
    except (httpx2.InvalidURL, ValueError) as fault:
        raise ValueError("the URL is malformed") from fault
    if parsed.userinfo:
        raise ValueError("the URL contains credentials")
    host = parsed.raw_host.decode("ascii").strip("[]").lower()
    port = (443 if parsed.scheme == "https" else 80) if parsed.port is None else parsed.port
    return Target(parsed.scheme, host, port, parsed.netloc.decode("ascii"), parsed.raw_path)


def is_public_url(url: str, *, local_allowed: bool = False) -> bool:
    """Whether a URL that a caller chose is allowed: absolute, https, a public host, without credentials.

    A name is not looked up: who connects checks the addresses that it leads to. ``local_allowed`` admits http and
    hosts of private networks.
    """
    if not url.isascii() or not url.isprintable() or " " in url:
        return False
    try:
        target = parse_url(url)
    except ValueError:
        return False
    host = target.host
    if target.scheme != "https" and not (local_allowed and target.scheme == "http"):
        return False
    if not is_plain_host(host):
        return False
    if local_allowed:
        return True
    if names_address(host):
        return is_public(host)
    labels = host.rstrip(".").split(".")
    return len(labels) > 1 and all(labels) and labels[-1] not in _INSIDE
