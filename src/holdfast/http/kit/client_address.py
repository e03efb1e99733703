"""The address of the client: the connection's peer, or the address that a trusted proxy reports.

Each proxy appends its peer's address to the header, so only the right-most entries come from our proxies; entries
further left may come from the client. The header is read from the right, past trusted proxies, and the first other
address is the client's. A header that cannot be parsed that far is ignored.

A setting chooses which of the two headers is read, since a proxy that writes one of them forwards the other as the
client sent it. Sources: RFC 7239 for ``Forwarded``; ``X-Forwarded-For`` as common proxies write it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import Final

from holdfast.settings.values import IPNetwork, ProxyHeader

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

UNKNOWN: Final = "unknown"
"""The origin of a request whose connection has no address, such as one over a local socket."""

HOPS_MAX: Final = 32
"""Real chains are far shorter. Of a longer ``X-Forwarded-For`` the right-most hops are read."""

_PAIR = re.compile(r"""\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+)=("(?:[^"\\]|\\.)*"|[^\s;,"]*)\s*""", re.ASCII)
_WITH_PORT = re.compile(r"\[([^\[\]]*)\](?::[0-9]{1,5})?|([0-9.]+):[0-9]{1,5}", re.ASCII)


def client_address(
    peer: str | None,
    header_lines: Sequence[str],
    trusted: Sequence[IPNetwork],
    *,
    header: ProxyHeader = "X-Forwarded-For",
) -> IPAddress | None:
    """Return the address of the client whose request came from ``peer``, None if the peer has none.

    ``header_lines`` are the header's values in the order sent. They are used only if the peer is trusted; malformed
    values count as none. If all hops are trusted, the farthest is the client.
    """
    address = parse_address(peer)
    if address is None or not header_lines or not is_trusted(address, trusted):
        return address
    found = address
    for hop in reversed(hops_of(header_lines, header) or ()):
        parsed = parse_address(hop)
        if parsed is None:
            return address
        found = parsed
        if not is_trusted(parsed, trusted):
            break
    return found


def hops_of(header_lines: Sequence[str], header: ProxyHeader) -> list[str] | None:
    """Return the right-most hops that a header names, from left to right; None if it is malformed or too long."""
    return _forwarded(header_lines) if header == "Forwarded" else _forwarded_for(header_lines)


def origin_of(address: IPAddress | None) -> str:
    """Return the key by which limits count an address: an IPv6 address counts by its /64, which one caller owns."""
    if address is None:
        return UNKNOWN
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(address), 64), strict=False))
    return str(address)


def parse_address(text: str | None) -> IPAddress | None:
    """Parse an address, with or without zone or port; an IPv4-mapped IPv6 address becomes the IPv4 address."""
    if not text:
        return None
    bare = _WITH_PORT.fullmatch(text.strip())
    try:
        address = ipaddress.ip_address((bare[1] or bare[2] or "") if bare else text.strip().partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def is_trusted(address: IPAddress, trusted: Iterable[IPNetwork]) -> bool:
    """Whether an address belongs to a trusted proxy."""
    return any(address in network for network in trusted)


def _forwarded_for(lines: Sequence[str]) -> list[str]:
    # From the right: a client that sends a long chain must not hide what our proxies append to it.
    return [hop.strip() for hop in ",".join(lines).rsplit(",", HOPS_MAX)]


def _forwarded(lines: Sequence[str]) -> list[str] | None:
    """Return the ``for`` of each element, from left to right.

    None if the header does not follow RFC 7239, or has more than :data:`HOPS_MAX` elements.
    """
    text, at = ",".join(lines), 0
    hops: list[str] = []
    found: str | None = None
    while True:
        pair = _PAIR.match(text, at)
        if pair is None:
            return None
        if pair[1].lower() == "for":
            if found is not None:
                return None
            found = re.sub(r"\\(.)", r"\1", pair[2][1:-1]) if pair[2].startswith('"') else pair[2]
        at = pair.end()
        end = text[at : at + 1]
        if end not in {"", ",", ";"}:
            return None
        at += 1
        if end == ";":
            continue
        # An element without a client hides its caller, so elements left of it cannot be attributed.
        if found is None:
            return None
        hops.append(found)
        found = None
        if not end:
            return hops
        if len(hops) == HOPS_MAX:
            return None
