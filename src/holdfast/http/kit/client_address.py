"""Where a request comes from: the peer of its connection, or what a trusted proxy says of the peer before it.

Each proxy on the way appends the address it was called from, so only the right-most entries of the header are
written by proxies of ours; everything further left may have been sent by the client. The header is therefore read
from the right, past the proxies that are trusted, and the first other address is the client. A header that cannot
be read that far is not believed at all.

Which of the two headers is read is a setting, since a proxy that writes one of them passes the other one on as the
client sent it. Sources: RFC 7239 for ``Forwarded``; ``X-Forwarded-For`` as common proxies write it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from typing import Final

from holdfast.settings import IPNetwork, ProxyHeader

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

UNKNOWN: Final = "unknown"
"""The origin of a request whose connection has no address, such as one over a local socket."""

HOPS_MAX: Final = 32
"""A longer chain is not read: no honest one comes near it."""

_PAIR = re.compile(r"""\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+)=("(?:[^"\\]|\\.)*"|[^\s;,"]*)\s*""", re.ASCII)
_WITH_PORT = re.compile(r"\[([^\[\]]*)\](?::[0-9]{1,5})?|([0-9.]+):[0-9]{1,5}", re.ASCII)


def client_address(
    peer: str | None,
    header_lines: Sequence[str],
    trusted: Sequence[IPNetwork],
    *,
    header: ProxyHeader = "X-Forwarded-For",
) -> IPAddress | None:
    """The address of the client behind ``peer``, or None where even the peer has none.

    ``header_lines`` are the values of the header's lines in the order they were sent. They are looked at only where
    the peer is trusted; malformed ones count as none. Where all hops are trusted, the farthest is the client.
    """
    address = parse_address(peer)
    if address is None or not header_lines or not is_trusted(address, trusted):
        return address
    hops = _forwarded(header_lines) if header == "Forwarded" else _forwarded_for(header_lines)
    if hops is None or not 0 < len(hops) <= HOPS_MAX:
        return address
    found = address
    for hop in reversed(hops):
        said = parse_address(hop)
        if said is None:
            return address
        found = said
        if not is_trusted(said, trusted):
            break
    return found


def origin_of(address: IPAddress | None) -> str:
    """What limits count an address by: of an IPv6 address its /64, since one caller has all of that."""
    if address is None:
        return UNKNOWN
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((int(address), 64), strict=False))
    return str(address)


def parse_address(text: str | None) -> IPAddress | None:
    """Read an address, with a zone or a port or without; an IPv4 address inside an IPv6 one is told as itself."""
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
    """Whether an address is one of a trusted proxy."""
    return any(address in network for network in trusted)


def _forwarded_for(lines: Sequence[str]) -> list[str]:
    return [hop.strip() for hop in ",".join(lines).split(",", HOPS_MAX + 1)]


def _forwarded(lines: Sequence[str]) -> list[str] | None:
    """The ``for`` of each element, from left to right; None where the header is not as RFC 7239 has it."""
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
        # An element that names no client hides who called: nothing left of it can be told either.
        if found is None:
            return None
        hops.append(found)
        found = None
        if not end or len(hops) > HOPS_MAX:
            return hops
