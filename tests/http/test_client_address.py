"""The client's address: trusted proxies may set it, clients may not."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.http.kit.client_address import client_address, origin_of, parse_address
from holdfast.settings.values import ProxyHeader

TRUSTED = tuple(map(ipaddress.ip_network, ("10.0.0.0/8", "127.0.0.1/32", "2001:db8:f::/48")))
PROXY, CLIENT, CLAIMED = "10.1.2.3", "198.51.100.9", "203.0.113.66"


def client_of(peer: str | None, *lines: str, header: ProxyHeader = "X-Forwarded-For") -> str:
    return str(client_address(peer, lines, TRUSTED, header=header))


@pytest.mark.parametrize(
    ("peer", "lines", "client"),
    [
        (CLIENT, [], CLIENT),
        (CLIENT, [CLAIMED], CLIENT),
        (PROXY, [], PROXY),
        (PROXY, [CLIENT], CLIENT),
        (PROXY, [f"{CLAIMED}, {CLIENT}"], CLIENT),
        (PROXY, [f"{CLAIMED},{CLIENT} , 10.9.9.9"], CLIENT),
        # Lines of the same header are one list, in the order they were sent.
        (PROXY, [CLAIMED, CLIENT], CLIENT),
        (PROXY, [f"not an address, {CLIENT}"], CLIENT),
        (PROXY, [f"{CLIENT}:4711"], CLIENT),
        (PROXY, ["[2001:db8::7]:4711"], "2001:db8::7"),
        (PROXY, ["2001:db8::7"], "2001:db8::7"),
        (PROXY, [f"::ffff:{CLIENT}"], CLIENT),
        (f"::ffff:{PROXY}", [CLIENT], CLIENT),
        ("2001:db8:f::1", [CLIENT], CLIENT),
        (PROXY, ["10.0.0.1, 10.0.0.2"], "10.0.0.1"),
        # A header that cannot be parsed is ignored.
        (PROXY, [""], PROXY),
        (PROXY, [f"{CLIENT}, "], PROXY),
        (PROXY, ["unknown"], PROXY),
        (PROXY, [f"{CLIENT}, localhost"], PROXY),
        (PROXY, ["1.2.3.4.5"], PROXY),
        (PROXY, [", ".join(["10.0.0.1"] * 40)], PROXY),
        (PROXY, [f"for={CLIENT}"], PROXY),
        (None, [CLIENT], "None"),
        ("not an address", [CLIENT], "None"),
    ],
)
def test_the_right_most_untrusted_hop_is_the_client(peer: str | None, lines: list[str], client: str) -> None:
    assert client_of(peer, *lines) == client


@pytest.mark.parametrize(
    ("lines", "client"),
    [
        ([f"for={CLIENT}"], CLIENT),
        ([f"For={CLIENT};proto=https;by=10.1.1.1"], CLIENT),
        ([f"for={CLAIMED}, for={CLIENT}"], CLIENT),
        ([f"for={CLAIMED}", f"proto=https; for={CLIENT} , for=10.9.9.9"], CLIENT),
        (['for="[2001:db8::7]:4711"'], "2001:db8::7"),
        ([f'for="{CLIENT}:4711"'], CLIENT),
        # A comma or semicolon inside quotes separates nothing.
        ([f'for={CLIENT};host="a, for={CLAIMED}"'], CLIENT),
        ([f'for={CLIENT};host="a\\", for={CLAIMED}"'], CLIENT),
        (["for=_hidden"], PROXY),
        (["for=unknown"], PROXY),
        ([f"for={CLIENT}, proto=https"], PROXY),
        ([f"for={CLIENT};for={CLAIMED}"], PROXY),
        ([f'for="{CLIENT}'], PROXY),
        ([f"for={CLIENT},"], PROXY),
        ([CLIENT], PROXY),
        ([""], PROXY),
    ],
)
def test_the_forwarded_header_is_parsed(lines: list[str], client: str) -> None:
    assert client_of(PROXY, *lines, header="Forwarded") == client


HOPS = st.sampled_from([PROXY, CLAIMED, "10.0.0.1", "2001:db8:f::2", "unknown", "", "::1", ",", '"', "for=", ";"])


@given(st.lists(HOPS, max_size=6), st.sampled_from(["X-Forwarded-For", "Forwarded"]))
def test_no_header_of_a_client_changes_its_address(sent: list[str], header: ProxyHeader) -> None:
    """A proxy appends its peer: whatever the header had before, the result is the client or the proxy itself."""
    claimed, added = ", ".join(sent), CLIENT if header == "X-Forwarded-For" else f"for={CLIENT}"
    assert client_of(PROXY, claimed, added, header=header) in {CLIENT, PROXY}
    assert client_of(PROXY, f"{claimed}, {added}", header=header) in {CLIENT, PROXY}
    if header == "X-Forwarded-For":
        assert client_of(PROXY, claimed, added) == CLIENT


@given(st.lists(st.text(max_size=60), max_size=3), st.sampled_from(["X-Forwarded-For", "Forwarded"]))
def test_any_header_is_parsed_or_ignored(lines: list[str], header: ProxyHeader) -> None:
    assert client_address(PROXY, lines, TRUSTED, header=header) is not None
    assert client_address(CLIENT, lines, TRUSTED, header=header) == parse_address(CLIENT)


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        (None, "unknown"),
    ],
)
def test_an_origin_is_an_address_or_a_64_bit_network(address: str | None, origin: str) -> None:
    assert origin_of(parse_address(address)) == origin
