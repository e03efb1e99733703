"""A stranger who wants to keep somebody from signing in, over real HTTP from another address of loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from .conftest import NewService

OTP, VERIFY = "/v2/control/auth/otp", "/v2/control/auth/verify"
VICTIM, STRANGER, PROXY = "127.0.0.1", "127.0.0.2", "127.0.0.3"
EMAIL = "ada@example.com"


@contextmanager
def caller(url: str, address: str) -> Iterator[httpx.Client]:
    """A client whose connections come from an address."""
    transport = httpx.HTTPTransport(local_address=address)
    with httpx.Client(base_url=url, transport=transport, timeout=30, trust_env=False) as http:
        yield http


def wrong(code: str) -> str:
    return f"{(int(code) + 1) % 1_000_000:06d}"


def test_a_stranger_cannot_keep_anybody_from_signing_in(new_service: NewService) -> None:
    service = new_service(TRUSTED_PROXIES=PROXY)
    service.start()
    with caller(service.url, VICTIM) as victim, caller(service.url, STRANGER) as stranger:

        def request(http: httpx.Client, **headers: str) -> httpx.Response:
            return http.post(OTP, json={"email": EMAIL}, headers=headers)

        def verify(http: httpx.Client, otp_id: str, code: str) -> httpx.Response:
            return http.post(VERIFY, json={"email": EMAIL, "otp_id": otp_id, "otp": code})

        mine = request(victim).json()
        # The stranger's codes, as many as there are, each with all its wrong tries.
        codes_count = 0
        while (found := request(stranger)).status_code == 200:
            codes_count += 1
            for _ in range(6):
                last = verify(stranger, found.json()["otp_id"], wrong(found.json()["debug_otp"]))
            assert (last.status_code, last.json()["error"]["code"]) == (429, "otp_attempts_exceeded")
        assert 1 <= codes_count <= 5
        assert found.status_code == 429

        # The victim's first code lives, its hour is its own, and so is a header that only a proxy may send.
        assert verify(victim, mine["otp_id"], mine["debug_otp"]).status_code == 200
        again = request(victim).json()
        assert verify(victim, again["otp_id"], again["debug_otp"]).status_code == 200
        assert request(stranger, **{"X-Forwarded-For": "198.51.100.1"}).status_code == 429

        # Behind a trusted proxy everybody has an origin, and a claimed one changes nothing.
        with caller(service.url, PROXY) as proxy:
            assert request(proxy, **{"X-Forwarded-For": STRANGER}).status_code == 429
            assert request(proxy, **{"X-Forwarded-For": f"198.51.100.1, {STRANGER}"}).status_code == 429
            assert request(proxy, **{"X-Forwarded-For": "198.51.100.1"}).status_code == 200
    assert service.stop() == 0
    assert service.faults() == []
