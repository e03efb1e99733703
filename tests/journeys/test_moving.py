"""An account is moved to another cell under load, by a command that is ended after each of its steps."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path

import httpx2
import pytest
import trio
from tests.clients import Customer, code_of, loopback_client, ok, until
from torture.service import reserve_port

from holdfast.commands.move_account import EndOfMove, move_account
from holdfast.persistence.queries.books import trial_balance
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.settings.settings import load_settings

from .conftest import NewCustomer
from .quiet_provider import MODEL, QuietProvider
from .service_process import SERVER_KEY, Service, new_folder, running_service

pytestmark = pytest.mark.slow

CELLS = """
[[cell]]
number = 1
places = "000-ffe"
emails = "000-fff"
url = "http://127.0.0.1:{0}"
operators_url = "http://127.0.0.1:{0}"

[[cell]]
number = 2
places = "fff"
url = "http://127.0.0.1:{1}"
operators_url = "http://127.0.0.1:{1}"
"""
CLIENTS = 20
RETRIED_S = 0.05


@pytest.fixture
def cells(provider: QuietProvider) -> Iterator[list[Service]]:
    """The services of two cells."""
    folders = [new_folder(), new_folder()]
    ports = [reserve_port(provider) for _ in folders]
    listed = folders[0] / "cells.toml"
    listed.write_text(CELLS.format(*ports))
    settings = {
        "CATALOG": str(provider.write_catalog(folders[0])),
        "CELLS": str(listed),
        "SERVER_KEY": SERVER_KEY,
        "SANDBOX_SECRET": "sandbox-secret-of-both-cells-0123456789",
    }
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                running_service(folder, CELL=str(number), PORT=str(port), RECEIPT_PREFIX=f"C{number}-", **settings)
            )
            for number, (folder, port) in enumerate(zip(folders, ports, strict=True), 1)
        ]


def move(cells: list[Service], account_id: str, *, steps: int | None = None) -> None:
    """Move an account in this process; after so many steps the command ends with an exception."""
    source, target = (EndOfMove(load_settings(each.environment), each.database_url) for each in cells)
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if len(said) == steps:
            raise KeyboardInterrupt

    with ExitStack() as stack:
        if steps is not None:
            stack.enter_context(pytest.raises(KeyboardInterrupt))
        move_account(account_id, source, target, say=say)


def run_command(cells: list[Service], folder: Path, account_id: str) -> str:
    """Move an account by the command."""
    there = folder / "there.env"
    there.write_text(
        "".join(f"{name}={value}\n" for name, value in cells[1].environment.items() if name[:9] == "HOLDFAST_")
    )
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "move-account", account_id, "--to", str(there)],
        env=cells[0].environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Clients:
    """Customers' programs that create tasks, at the cell where the account was opened."""

    def __init__(self, ada: Customer) -> None:
        self.ada = ada
        self.created: dict[str, str] = {}
        self.codes: set[str] = set()
        self.wanted = 10**6

    async def work(self, lane: int) -> None:
        """Create one task after the other, each until it is answered."""
        turn = 0
        while turn < self.wanted:
            key = f"{lane}-{turn}"
            try:
                answer = await self.ada.create(MODEL, key=key)
            except httpx2.TransportError:
                continue
            if answer.status_code == 200:
                request_id = answer.json()["request_id"]
                assert self.created.setdefault(key, request_id) == request_id
                # What was answered is there, whichever cell answers.
                found = await self.ada.as_key("GET", f"/v2/task/{request_id}")
                if found.status_code != 200:
                    assert found.status_code == 503, found.text
                    self.codes.add(code_of(found))
                turn += 1
                continue
            self.codes.add(code_of(answer))
            assert answer.status_code == 503, answer.text
            await trio.sleep(RETRIED_S)

    async def turns(self, many: int) -> None:
        """Wait until each client has created so many more tasks on average."""
        enough = len(self.created) + many * CLIENTS

        async def is_enough() -> bool:
            return len(self.created) >= enough

        await until(is_enough)


@asynccontextmanager
async def working(ada: Customer) -> AsyncIterator[Clients]:
    """Run the clients of a customer, each of which has created two tasks."""
    clients = Clients(ada)
    with trio.fail_after(180):
        async with trio.open_nursery() as nursery:
            for lane in range(CLIENTS):
                nursery.start_soon(clients.work, lane)
            await clients.turns(2)
            yield clients
            clients.wanted = 0


@contextmanager
def frozen(service: Service) -> Iterator[None]:
    assert service.process is not None
    service.process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        service.process.send_signal(signal.SIGCONT)


async def check_end(cells: list[Service], clients: Clients) -> None:
    """Everything that was answered is in the target, once, and both cells' books agree."""
    for service in cells:
        async with loopback_client(base_url=service.url, timeout=60) as http:
            there = replace(clients.ada, http=http)
            tasks = await there.tasks()
            assert set(tasks) == set(clients.created.values())
            assert len(tasks) == len(clients.created)
            totals = await there.totals()
            assert (totals.balance, totals.held) == (Decimal(5000), Decimal(len(tasks)))
    assert [each.audit() for each in cells] == [[], []]
    between = Decimal()
    for each in cells:
        with connected(each.database_url) as rows:
            books = trial_balance(rows)
        assert books.is_balanced
        between += sum(Decimal(line.balance) for line in books.ledger_accounts if line.ledger_account == "cells")
    assert between == 0


async def test_an_account_moves_under_load_by_a_command_that_is_ended(
    cells: list[Service], new_customer: NewCustomer, tmp_path: Path
) -> None:
    ada = await new_customer(cells[0], credit="5000.00")
    async with working(ada) as clients:
        for steps in (1, 2, 3):
            await trio.to_thread.run_sync(partial(move, cells, ada.account_id, steps=steps))
            if steps == 1:
                await clients.turns(1)
        said = await trio.to_thread.run_sync(run_command, cells, tmp_path, ada.account_id)
        assert said.endswith(f"{ada.account_id} is in cell 2\n")
        await clients.turns(3)
        # It goes back and returns; no response meanwhile says that the key is not valid.
        for ends in (cells[::-1], cells) * 2:
            await trio.to_thread.run_sync(partial(move, ends, ada.account_id))
            await clients.turns(1)
    assert clients.codes == {"account_moving"}
    await check_end(cells, clients)
    again = await trio.to_thread.run_sync(run_command, cells, tmp_path, ada.account_id)
    assert again.startswith(f"{ada.account_id} is in cell 2 since ")
    # The owner's session moves, too, and no second account is opened here.
    assert (await ada.as_session("GET", "/v2/control/account")).json()["account_id"] == ada.account_id
    sent = ok(await ada.http.post("/v2/control/auth/otp", json={"email": ada.email}))
    proof = {"email": ada.email, "otp_id": sent["otp_id"], "otp": sent["debug_otp"]}
    signed_in = ok(await ada.http.post("/v2/control/auth/verify", json=proof))
    assert signed_in["account_id"] == ada.account_id


async def test_a_process_that_was_frozen_during_a_move_commits_nothing(
    cells: list[Service], new_customer: NewCustomer
) -> None:
    ada = await new_customer(cells[0], credit="5000.00")
    async with working(ada) as clients:
        has_moved = False
        while not has_moved:
            # One that was frozen within a transaction holds the account's row, and the move gives up.
            with frozen(cells[0]), suppress(DatabaseAway):
                await trio.to_thread.run_sync(move, cells, ada.account_id)
                has_moved = True
            await clients.turns(1)
        await clients.turns(2)
    await check_end(cells, clients)
