"""An attacker who tries to lock a user out of signing in, from another loopback address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx2

from .conftest import NewService

OTP, VERIFY = "/v2/control/auth/otp", "/v2/control/auth/verify"
VICTIM, ATTACKER, PROXY = "127.0.0.1", "127.0.0.2", "127.0.0.3"
EMAIL = "ada@example.com"


@contextmanager
def caller(url: str, address: str) -> Iterator[httpx2.Client]:
    """Return a client that connects from an address."""
    transport = httpx2.HTTPTransport(local_address=address)
    with httpx2.Client(base_url=url, transport=transport, timeout=30, trust_env=False) as http:
        yield http


def wrong(code: str) -> str:
    return f"{(int(code) + 1) % 1_000_000:06d}"


def test_an_attacker_cannot_lock_a_user_out_of_signing_in(new_service: NewService) -> None:
    service = new_service(TRUSTED_PROXIES=PROXY)
    service.start()
    with caller(service.url, VICTIM) as victim, caller(service.url, ATTACKER) as attacker:

        def request(http: httpx2.Client, **headers: str) -> httpx2.Response:
            return http.post(OTP, json={"email": EMAIL}, headers=headers)

        def verify(http: httpx2.Client, otp_id: str, code: str) -> httpx2.Response:
            return http.post(VERIFY, json={"email": EMAIL, "otp_id": otp_id, "otp": code})

        mine = request(victim).json()
        # Request as many codes as allowed, and use all wrong attempts of each.
        codes_count = 0
        while (found := request(attacker)).status_code == 200:
            codes_count += 1
            for _ in range(6):
                last = verify(attacker, found.json()["otp_id"], wrong(found.json()["debug_otp"]))
            assert (last.status_code, last.json()["error"]["code"]) == (429, "otp_attempts_exceeded")
        assert 1 <= codes_count <= 5
        assert found.status_code == 429

        # The victim's first code lives, its hour is its own, and so is a header that only a proxy may send.
        assert verify(victim, mine["otp_id"], mine["debug_otp"]).status_code == 200
        again = request(victim).json()
        assert verify(victim, again["otp_id"], again["debug_otp"]).status_code == 200
        assert request(attacker, **{"X-Forwarded-For": "198.51.100.1"}).status_code == 429

        # Through a trusted proxy each client has its own origin, and a claimed one changes nothing.
        with caller(service.url, PROXY) as proxy:
            assert request(proxy, **{"X-Forwarded-For": ATTACKER}).status_code == 429
            assert request(proxy, **{"X-Forwarded-For": f"198.51.100.1, {ATTACKER}"}).status_code == 429
            assert request(proxy, **{"X-Forwarded-For": "198.51.100.1"}).status_code == 200
    assert service.stop() == 0
    assert service.faults() == []
