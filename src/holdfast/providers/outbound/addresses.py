"""Which network addresses an untrusted URL may lead to: global unicast ones that do not contain another address.

The service runs inside a private network and can reach what its callers must not: itself, its neighbours, the
cloud's metadata. So addresses are checked, not names, and at the time of connecting.
"""

from __future__ import annotations

import ipaddress
import re

# All of them, and not Python's ``is_global``: its releases differ.
_REFUSED = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "168.63.129.16/32",  # a cloud's own services at a global address
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",
        "2001::/23",  # Teredo and other protocol assignments
        "2001:db8::/32",
        "3fff::/20",
    )
)
_UNICAST_V6 = ipaddress.IPv6Network("2000::/3")
_SIX_TO_FOUR = ipaddress.IPv6Network("2002::/16")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP = re.compile(r"[0-9a-f]{16}0[02]005efe")
_NUMERIC_LABEL = re.compile(r"(?:0[xX][0-9a-fA-F]*|[0-9]+)\Z")


def is_public(address: str) -> bool:
    """Whether an address is global unicast; IPv6 forms that contain an IPv4 address are checked by that address."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv4Address):
        return not _is_refused(ip)
    if ip.scope_id is not None:
        return False
    packed = int(ip)
    if ip.ipv4_mapped is not None:
        return not _is_refused(ip.ipv4_mapped)
    if ip in _NAT64:
        return not _is_refused(ipaddress.IPv4Address(packed & 0xFFFFFFFF))
    if ip not in _UNICAST_V6 or _is_refused(ip):
        return False
    if ip in _SIX_TO_FOUR and _is_refused(ipaddress.IPv4Address(packed >> 80 & 0xFFFFFFFF)):
        return False
    isatap = _ISATAP.match(f"{packed:032x}") is not None
    return not isatap or not _is_refused(ipaddress.IPv4Address(packed & 0xFFFFFFFF))


def is_plain_host(host: str) -> bool:
    """Whether a host is written unambiguously: no numbers except four decimal ones, no zones, no blanks."""
    if not host or not host.isascii() or re.search(r"[\s%@/\\?#\x00-\x1f\x7f]", host):
        return False
    if ":" in host:
        return names_address(host)
    last = host.rstrip(".").rsplit(".", 1)[-1]
    return names_address(host) if _NUMERIC_LABEL.match(last) else True


def names_address(host: str) -> bool:
    """Whether a host is an address and not a name; an IPv6 address is given without brackets."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_refused(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return any(ip in network for network in _REFUSED)
