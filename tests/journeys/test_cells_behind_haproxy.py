"""Three cells behind one HAProxy are one service, at whichever a request arrives and whatever happens to one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from decimal import Decimal
from functools import partial
from html import unescape
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from tests.clients import Customer, Totals, code_of, loopback_client, ok, refused, until
from tests.tools import needs

from holdfast.ledger.cells import Cell
from holdfast.ledger.values import place_of

from .load import Witness
from .quiet_provider import MODEL, QuietProvider, quiet_provider, signed
from .running_cells import Ranges, RunningCells, running_cells
from .service_process import OPERATOR_TOKEN

pytestmark = [needs("haproxy"), pytest.mark.slow]

THREE = (Ranges("000-555"), Ranges("556-aaa"), Ranges("aab-fff"))
EVE = "eve@example.com"
GIVEN = range(0x400, 0x556)
FOUR = (Ranges("000-3ff", "400-555"), *THREE[1:], Ranges("400-555"))
CREDIT = "5000.00"
CLIENTS = 20
OPERATORS = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}
NUMBERS = count()

NewCustomer = Callable[[int], Awaitable[Customer]]


@pytest.fixture(scope="module")
def provider() -> Iterator[QuietProvider]:
    """A provider of these cells alone: their jobs would be counted with others'."""
    with quiet_provider() as found:
        yield found


@pytest.fixture(scope="module")
def cells(provider: QuietProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCells]:
    """Three cells that run, and a fourth that can be added."""
    catalog = provider.write_catalog(tmp_path_factory.mktemp("catalog"))
    with running_cells(catalog, THREE, {"OPERATOR_READERS": EVE}, more=1) as found:
        yield found


@pytest.fixture
async def http(cells: RunningCells) -> AsyncIterator[list[httpx2.AsyncClient]]:
    """Clients of HAProxy, and of each cell by its number."""
    urls = [cells.proxy.url, *(f"http://{cells.address_of(number)}" for number in (1, 2, 3, 4))]
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(loopback_client(base_url=url, timeout=60)) for url in urls]


def email_of(cell: Cell) -> str:
    """Return a new e-mail address whose account is in a cell."""
    emails = (f"customer-{number}@example.com" for number in NUMBERS)
    return next(each for each in emails if any(place_of(each) in places for places in cell.emails))


def operators_of(cells: RunningCells, number: int) -> httpx2.AsyncClient:
    """Return a client of a cell's port for operators."""
    return loopback_client(base_url=cells.operators_url_of(number), timeout=60)


async def shown_cells(cells: RunningCells, at: int) -> list[dict[str, Any]]:
    """Return what a cell says of all."""
    async with operators_of(cells, at) as operators:
        return list(ok(await operators.get("/ops/api/cells", headers=OPERATORS))["data"])


@pytest.fixture
def new_customer(cells: RunningCells, http: list[httpx2.AsyncClient]) -> NewCustomer:
    """Sign in through HAProxy with an address of a cell."""

    async def make(number: int) -> Customer:
        cell = cells.read_list().of_number(number)
        assert cell is not None
        customer = Customer(http[0], model=MODEL, email=email_of(cell))
        await customer.sign_in()
        assert any(place_of(customer.account_id) in places for places in cell.places)
        return customer

    return make


def audit(cells: RunningCells, folder: Path, *numbers: int) -> None:
    """Each cell's rows agree, and so do the cells."""
    assert [cells.services[number - 1].audit() for number in numbers] == [[]] * len(numbers)
    others = [str(cells.write_env(number, folder)) for number in numbers if number != 1]
    assert cells.run("audit-cells", *others) == f"{len(numbers)} cells agree\n"


async def test_accounts_are_spread_and_served_at_every_cell(
    cells: RunningCells,
    http: list[httpx2.AsyncClient],
    provider: QuietProvider,
    new_customer: NewCustomer,
    tmp_path: Path,
) -> None:
    for number in (1, 2, 3):
        await cells.is_mapped(number)
    for number in (1, 2, 3):
        customer = await new_customer(number)
        for turn, door in enumerate(http[:4]):
            at = replace(customer, http=door)
            callback_at = http[(number + turn) % 4]
            for _ in range(2):
                await at.recharge("10.00", key=f"buy-{turn}")
                created = ok(await at.create(key=f"create-{turn}"))
            path = f"/v2/task/{created['request_id']}"

            async def is_submitted(request_id: str = created["request_id"]) -> bool:
                return any(job.startswith(request_id) for job in provider.jobs)

            await until(is_submitted)
            async with trio.open_nursery() as nursery:
                waited: list[httpx2.Response] = []

                async def wait(at: Customer = at, path: str = path) -> None:
                    waited.append(await at.as_key("GET", f"{path}?wait=30"))  # noqa: B023

                nursery.start_soon(wait)
                body = provider.success(created["request_id"], event_id="evt_1", sequence=1)
                ok(await callback_at.post("/v2/callback", content=body, headers=signed(body)))
            assert ok(waited[0])["status"] == "succeeded"
            assert len(await at.tasks()) == turn + 1
            assert await at.totals() == Totals(*map(Decimal, (9 * (turn + 1), 0, 9 * (turn + 1))))

            async def is_hosted(at: Customer = at, request_id: str = created["request_id"]) -> str:
                output = (await at.task(request_id))["output"][0]
                return str(output["url"] or "")

            link = httpx2.URL(await until(is_hosted))
            for each in http[:4]:
                assert (await each.get(link.raw_path.decode())).status_code == 200
        # HAProxy finds the cell by itself.
        path = f"/v2/task/{created['request_id']}"

        async def logged(path: str = path) -> list[str]:
            return cells.proxy.served_by(path)

        ok(await customer.as_key("GET", path))
        assert set(await until(logged)) == {cells.address_of(number)}
    shown = await shown_cells(cells, 2)
    assert [(each["number"], each["is_this"], each["members"]) for each in shown] == [
        (1, False, 1),
        (2, True, 1),
        (3, False, 1),
    ]
    assert min(each["accounts"] for each in shown) >= 1
    audit(cells, tmp_path, 1, 2, 3)


async def sign_in_at(operators: httpx2.AsyncClient) -> dict[str, str]:
    """Sign in by the page of a cell, and return what a browser then sends there."""
    origin = str(operators.base_url).rstrip("/")
    form = {"token": OPERATOR_TOKEN, "return_to": "/ops/cells"}
    answer = await operators.post("/ops/sign-in", data=form, headers={"Origin": origin})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/ops/cells"), answer.text
    return {"Cookie": answer.headers["Set-Cookie"].partition(";")[0]}


async def sign_in_by_code(operators: httpx2.AsyncClient) -> None:
    """Sign in by a code, wherever the address is known."""
    headers = {"Origin": str(operators.base_url).rstrip("/")}
    sent = ok(await operators.post("/ops/api/session/code", json={"email": EVE}, headers=headers))
    proof = {"email": EVE, "otp_id": sent["otp_id"], "otp": sent["debug_otp"]}
    begun = await operators.post("/ops/api/session/verify", json=proof, headers=headers)
    assert (ok(begun)["operator"], begun.json()["role"]) == (EVE, "read")
    cookie = {"Cookie": begun.headers["Set-Cookie"].partition(";")[0]}
    assert (await operators.get("/ops/accounts", headers=cookie)).status_code == 200


def links_to_cells(page: httpx2.Response) -> list[str]:
    """Return what a page links to at the addresses of cells."""
    assert page.status_code == 200, page.text
    return [unescape(each) for each in re.findall(r'href="(http[^"]+)"', page.text)]


async def test_operators_go_from_cell_to_cell_at_ports_of_their_own(
    cells: RunningCells, http: list[httpx2.AsyncClient], new_customer: NewCustomer
) -> None:
    for door in http[:4]:
        for path in ("/ops/api/cells", "/ops/cells", "/metrics"):
            refused(await door.get(path, headers=OPERATORS), 404, "route_not_found")
    urls = [cells.operators_url_of(number) for number in (1, 2, 3)]
    customers = [await new_customer(number) for number in (1, 2, 3)]
    async with AsyncExitStack() as stack:
        operators = [await stack.enter_async_context(operators_of(cells, number)) for number in (1, 2, 3)]
        signed_in = [await sign_in_at(each) for each in operators]
        for each in operators:
            await sign_in_by_code(each)
        for here, (door, headers) in enumerate(zip(operators, signed_in, strict=True)):
            refused(await door.get("/v2/models"), 404, "route_not_found")
            assert links_to_cells(await door.get("/ops/cells", headers=headers)) == [f"{url}/ops" for url in urls]
            for there, customer in enumerate(customers):
                for sought in (customer.account_id, customer.email):
                    found = await door.get("/ops/find", params={"q": sought}, headers=headers)
                    if there != here:
                        [link] = links_to_cells(found)
                        assert link.startswith(urls[there])
                        found = await operators[there].get(link, headers=signed_in[there])
                    assert found.headers["Location"] == f"/ops/accounts/{customer.account_id}"


async def test_while_a_cell_is_killed_and_restarted_the_others_answer_everything(
    cells: RunningCells, http: list[httpx2.AsyncClient], new_customer: NewCustomer, tmp_path: Path
) -> None:
    for number in (1, 2, 3):
        await cells.is_mapped(number)
    witnesses = [Witness(await new_customer(number), seed=number, pause_s=0.05) for number in (1, 2, 3)]
    for witness in witnesses:
        await witness.customer.recharge(CREDIT)
    killed = cells.services[1]
    others = [witnesses[0], witnesses[2]]

    async with trio.open_nursery() as nursery:
        for witness in witnesses * 2:
            nursery.start_soon(witness.work)
        for witness in witnesses:
            await witness.answers(10)
        await trio.to_thread.run_sync(killed.kill)
        for witness in others:
            await witness.answers(20)
        # What has no place is answered by any cell that lives, and by them for their own alone.
        for number in (1, 3):
            await new_customer(number)
        found = cells.read_list().of_number(2)
        assert found is not None
        for door in (http[0], http[1], http[3]):
            answer = await door.post("/v2/control/auth/otp", json={"email": email_of(found)})
            refused(answer, 503, "temporarily_unavailable")
        shown = await shown_cells(cells, 1)
        assert [each["is_reached"] for each in shown] == [True, False, True]
        sought = witnesses[1].customer.account_id
        async with operators_of(cells, 1) as operators:
            signed_in = await sign_in_at(operators)
            for path in ("/ops", "/ops/accounts", "/ops/cells"):
                page = await operators.get(path, headers=signed_in)
                assert (page.status_code, "away" in page.text) == (200, path == "/ops/cells"), path
            page = await operators.get(f"/ops/find?q={sought}", headers=signed_in)
        assert links_to_cells(page) == [f"{cells.operators_url_of(2)}/ops/find?q={sought}"]
        await trio.to_thread.run_sync(killed.start)
        for witness in witnesses:
            await witness.answers(20)
            witness.is_stopping = True

    assert {code_of(each) for each in witnesses[1].turned_away} == {"temporarily_unavailable"}
    for witness in others:
        assert witness.turned_away == []
        assert set(witness.created) == set(witness.keys)
    for witness in witnesses:
        await witness.hold_to_it()
    audit(cells, tmp_path, 1, 2, 3)


class Clients:
    """Programs of one customer that create tasks through HAProxy, each until it is answered."""

    def __init__(self, customer: Customer) -> None:
        self.customer = customer
        self.created: dict[str, str] = {}
        self.codes: Counter[str] = Counter()
        self.is_stopping = False

    async def work(self, lane: int) -> None:
        """Create one task after the other, and read it."""
        for turn in count():
            key = f"{lane}-{turn}"
            await until(partial(self._create, key))
            if self.is_stopping:
                return

    async def _create(self, key: str) -> bool:
        answer = await self.customer.create(key=key)
        if answer.status_code != 200:
            self.codes[code_of(answer)] += 1
            return False
        self.created[key] = request_id = answer.json()["request_id"]
        found = await self.customer.as_key("GET", f"/v2/task/{request_id}")
        assert found.status_code == 200 or code_of(found) == "account_moving"
        return True

    async def turns(self, many: int) -> None:
        """Wait until each client has created so many more tasks on average."""
        enough = len(self.created) + many * CLIENTS

        async def is_enough() -> bool:
            return len(self.created) >= enough

        await until(is_enough, within_s=180)

    async def settle(self, at: httpx2.AsyncClient) -> None:
        """All that was answered is there, once, wherever it is asked for."""
        customer = replace(self.customer, http=at)
        tasks = await customer.tasks()
        assert set(tasks) == set(self.created.values())
        assert len(tasks) == len(self.created)
        spent = Decimal(len(tasks))
        assert await customer.totals() == Totals(Decimal(CREDIT), spent, Decimal(CREDIT) - spent)


async def test_an_account_moves_under_load_behind_haproxy(
    cells: RunningCells, http: list[httpx2.AsyncClient], new_customer: NewCustomer, tmp_path: Path
) -> None:
    for number in (1, 2, 3):
        await cells.is_mapped(number)
    customer, neighbour = await new_customer(1), Witness(await new_customer(3), seed=3, pause_s=0.05)
    for each in (customer, neighbour.customer):
        await each.recharge(CREDIT)
    clients = Clients(customer)
    there = cells.write_env(2, tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(neighbour.work)
        for lane in range(CLIENTS):
            nursery.start_soon(clients.work, lane)
        await clients.turns(2)
        move = partial(cells.run, "move-account", customer.account_id, "--to", str(there))
        said = await trio.to_thread.run_sync(move)
        assert said.endswith(f"{customer.account_id} is in cell 2\n")
        await clients.turns(3)
        clients.is_stopping = neighbour.is_stopping = True
    # The second is of a create that may have been written just before the account departed.
    assert set(clients.codes) <= {"account_moving", "temporarily_unavailable"}
    for door in http[:4]:
        await clients.settle(door)
    again = Customer(http[0], email=customer.email)
    await again.sign_in()
    assert again.account_id == customer.account_id
    assert neighbour.turned_away == []
    assert set(neighbour.created) == set(neighbour.keys)
    audit(cells, tmp_path, 1, 2, 3)


class Newcomers:
    """People with addresses that the fourth cell gets, who sign up at each door while it is added."""

    def __init__(self) -> None:
        self.sessions: dict[str, tuple[str, str]] = {}
        self.codes: set[str] = set()
        self.is_stopping = False

    async def join(self, at: httpx2.AsyncClient, doors: Sequence[httpx2.AsyncClient]) -> None:
        """Sign up one after the other, and read each account at each door."""
        while not self.is_stopping:
            email = next(
                each for each in (f"new-{number}@example.com" for number in NUMBERS) if place_of(each) in GIVEN
            )
            with suppress(httpx2.TransportError):
                sent = await self._answered(at.post("/v2/control/auth/otp", json={"email": email}))
                if sent is not None:
                    proof = {"email": email, "otp_id": sent["otp_id"], "otp": sent["debug_otp"]}
                    begun = await self._answered(at.post("/v2/control/auth/verify", json=proof))
                    if begun is not None:
                        self.sessions[email] = begun["account_id"], begun["session"]["token"]
            for door in doors if email in self.sessions else ():
                with suppress(httpx2.TransportError):
                    await self.read(email, door)
            await trio.sleep(0.1)

    async def read(self, email: str, door: httpx2.AsyncClient) -> dict[str, Any] | None:
        """Read the account of an address."""
        headers = {"Authorization": f"Bearer {self.sessions[email][1]}"}
        found = await self._answered(door.get("/v2/control/account", headers=headers))
        assert found is None or found["account_id"] == self.sessions[email][0]
        return found

    async def _answered(self, asked: Awaitable[httpx2.Response]) -> dict[str, Any] | None:
        answer = await asked
        if answer.status_code == 503:
            self.codes.add(code_of(answer))
            return None
        return ok(answer)


async def test_a_fourth_cell_is_added_to_the_running_service(
    cells: RunningCells, http: list[httpx2.AsyncClient], new_customer: NewCustomer, tmp_path: Path
) -> None:
    for number in (1, 2, 3):
        await cells.is_mapped(number)
    witnesses = [Witness(await new_customer(number), seed=number, pause_s=0.05) for number in (1, 2, 3)]
    early = await new_customer(1)
    while not all(place_of(each) in GIVEN for each in (early.email, early.account_id)):
        early = await new_customer(1)
    for customer in (early, *(each.customer for each in witnesses)):
        await customer.recharge(CREDIT)
    mover, newcomers = await new_customer(1), Newcomers()
    async with trio.open_nursery() as nursery:
        for witness in witnesses:
            nursery.start_soon(witness.work)
        cells.list_cells(FOUR)
        await trio.to_thread.run_sync(cells.services[3].start)
        await trio.to_thread.run_sync(cells.reload_proxy)
        cells.follow(4)
        for witness in witnesses:
            await witness.answers(5)
            assert witness.turned_away == []
            # One is in progress.
            assert len(witness.keys) - len(witness.created) <= 1
        for door in http:
            nursery.start_soon(newcomers.join, door, http)
        for number in (1, 2, 3):
            if number == 2:
                # The other processes do not know the cell that it goes to.
                there = cells.write_env(4, tmp_path)
                move = partial(cells.run, "move-account", mover.account_id, "--to", str(there))
                assert (await trio.to_thread.run_sync(move)).endswith(f"{mover.account_id} is in cell 4\n")
                for door in http:
                    ok(await replace(mover, http=door).as_session("GET", "/v2/control/account"))
            for witness in witnesses:
                await witness.answers(5)
            others = [each for each in witnesses if each is not witnesses[number - 1]]
            turned_away = [len(each.turned_away) for each in others]
            assert await trio.to_thread.run_sync(cells.services[number - 1].stop) == 0
            await trio.to_thread.run_sync(cells.services[number - 1].start)
            assert [len(each.turned_away) for each in others] == turned_away
        for witness in witnesses:
            await witness.answers(5)
            witness.is_stopping = True
        newcomers.is_stopping = True
    for witness in witnesses:
        await witness.hold_to_it()
    assert newcomers.codes <= {"account_moving", "temporarily_unavailable"}
    # Both cells have opened accounts; each is found everywhere, and by its address.
    assert {place_of(account_id) in GIVEN for account_id, _ in newcomers.sessions.values()} == {False, True}
    for number, (email, (account_id, _)) in enumerate(newcomers.sessions.items()):
        for door in http:
            assert await newcomers.read(email, door)
        again = Customer(http[number % len(http)], email=email)
        await again.sign_in()
        assert again.account_id == account_id
    # What was opened in its places before is found where it is, and new accounts are here.
    again = Customer(http[0], email=early.email)
    await again.sign_in()
    assert again.account_id == early.account_id
    for door in http:
        ok(await replace(early, http=door).create(key="twice"))
    assert len(await early.tasks()) == 1
    late = await new_customer(4)
    await cells.is_mapped(4)
    for door in http:
        ok(await replace(late, http=door).as_session("GET", "/v2/control/account"))
    shown = await shown_cells(cells, 4)
    assert [(each["number"], each["is_reached"]) for each in shown] == [(1, True), (2, True), (3, True), (4, True)]
    audit(cells, tmp_path, 1, 2, 3, 4)
