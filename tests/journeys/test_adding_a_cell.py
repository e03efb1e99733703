"""A service with one database becomes the first of two cells, while both serve."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import text
from tests.clients import Customer, code_of, loopback_client, ok, until
from torture.service import reserve_port

from holdfast.ledger.values import place_of
from holdfast.persistence.server.connections import connected
from holdfast.start.exit_codes import BAD_CONFIGURATION

from .conftest import NewService
from .service_process import SERVER_KEY, STOP_S, Service

pytestmark = pytest.mark.slow

CELLS = """
[[cell]]
number = 1
places = "000-7ff"
emails = "000-7ff"
former_places = "800-fff"
former_emails = "800-fff"
url = "http://127.0.0.1:{0}"
operators_url = "http://127.0.0.1:{0}"

[[cell]]
number = 2
places = "800-fff"
emails = "800-fff"
url = "http://127.0.0.1:{1}"
operators_url = "http://127.0.0.1:{1}"
"""


class Pair:
    """Two services, the first of which begins without a list of cells."""

    def __init__(self, new_service: NewService, folder: Path) -> None:
        ports = [reserve_port(self) for _ in range(2)]
        self.listed = folder / "cells.toml"
        self.listed.write_text(CELLS.format(*ports))
        settings = {"SERVER_KEY": SERVER_KEY, "TRUSTED_PROXIES": "127.0.0.0/8"}
        self.one, self.two = (new_service(PORT=str(port), **settings) for port in ports)
        self.list_cells(self.two, 2)

    def list_cells(self, service: Service, number: int) -> None:
        """Have a service read the list when it starts."""
        service.environment |= {"HOLDFAST_CELLS": str(self.listed), "HOLDFAST_CELL": str(number)}

    def accounts(self) -> list[set[str]]:
        """The e-mail addresses of each service's accounts."""
        found = []
        for service in (self.one, self.two):
            with connected(service.database_url) as rows:
                found.append(set(rows.execute(text("select email from accounts")).scalars()))
        return found


@pytest.fixture
def pair(new_service: NewService, tmp_path: Path) -> Pair:
    found = Pair(new_service, tmp_path)
    found.one.start()
    return found


def email_of_half(half: int, name: str) -> str:
    """Return an address whose hash is in one half of the places."""
    emails = (f"{name}{number}@example.com" for number in range(1000))
    return next(each for each in emails if place_of(each) // 0x800 == half)


async def signed_in(http: httpx2.AsyncClient, email: str) -> Customer:
    """Sign in at a service, and check that its account is found by the key there."""
    customer = Customer(http, email=email)
    await customer.sign_in()
    assert (await customer.as_session("GET", "/v2/control/account")).json()["account_id"] == customer.account_id
    return customer


async def _is_served(customer: Customer) -> bool:
    return (await customer.as_session("GET", "/v2/control/account")).status_code == 200


async def test_a_single_service_becomes_the_first_of_two_cells(pair: Pair) -> None:
    limits = {"timeout": 60}
    async with loopback_client(base_url=pair.one.url, **limits) as http:
        before = [await signed_in(http, email_of_half(half, f"old{each}-")) for half in (0, 1) for each in range(3)]
    pair.two.start()
    async with loopback_client(base_url=pair.two.url, **limits) as at_two:
        # The first process has no list yet, and opens the accounts that the second one asks it for.
        early = await signed_in(at_two, email_of_half(1, "early"))
        assert pair.accounts()[1] == set()
        begun = ok(await at_two.post("/v2/control/auth/otp", json={"email": (late := email_of_half(1, "late"))}))
        assert pair.one.stop() == 0
        assert (await early.as_session("GET", "/v2/control/account")).status_code in {401, 503}
        pair.list_cells(pair.one, 1)
        pair.one.start()
        # The second service tries the first again a second after it could not reach it.
        await until(partial(_is_served, early))
        # A code that was sent before the list was read is of use after it.
        proof = {"email": late, "otp_id": begun["otp_id"], "otp": begun["debug_otp"]}
        late_id = ok(await at_two.post("/v2/control/auth/verify", json=proof))["account_id"]
        async with loopback_client(base_url=pair.one.url, **limits) as at_one:
            for known in (*before, early):
                for http in (at_one, at_two):
                    again = await signed_in(http, known.email)
                    assert again.account_id == known.account_id
                    created = Customer(http, key=known.key, account_id=known.account_id)
                    assert code_of(await created.create(key="1")) == "insufficient_credit"
            assert (await signed_in(at_one, late)).account_id == late_id
            opened = {}
            for half in (0, 1):
                for number, http in enumerate((at_one, at_two)):
                    email = email_of_half(half, f"new{number}-")
                    opened[email] = (await signed_in(http, email)).account_id
                    assert place_of(opened[email]) // 0x800 == half
            for email, account_id in opened.items():
                for http in (at_one, at_two):
                    assert (await signed_in(http, email)).account_id == account_id
            of_one, of_two = pair.accounts()
            assert of_two == {email for email in opened if place_of(email) >= 0x800}
            assert not of_one & of_two
            unknown = {"Authorization": f"Bearer hst_{place_of(early.account_id):03x}{'A' * 40}"}
            for http in (at_one, at_two):
                assert code_of(await http.get("/v2/control/account", headers=unknown)) == "invalid_session"
    assert [each.audit() for each in (pair.one, pair.two)] == [[], []]


async def test_a_list_without_the_former_places_does_not_start(pair: Pair) -> None:
    async with loopback_client(base_url=pair.one.url, timeout=60) as http:
        for number in range(2):
            await signed_in(http, email_of_half(1, f"{number}-"))
    pair.one.stop()
    given = pair.listed.read_text()
    pair.listed.write_text("".join(line for line in given.splitlines(keepends=True) if "former" not in line))
    pair.list_cells(pair.one, 1)
    pair.one._launch()
    assert pair.one.process is not None
    assert pair.one.process.wait(STOP_S) == BAD_CONFIGURATION
    assert "HOLDFAST_CELLS: by this list no request would find 2 accounts" in pair.one.log_tail()
