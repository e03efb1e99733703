"""The whole house over real HTTP on a real database: one service for all, or one of a test's own."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeAlias

import httpx
import pytest

from holdfast.persistence.server.embedded import EmbeddedPostgres

from .card_bank import CardBank, Payer, card_bank
from .house import OPERATOR_TOKEN, Customer, Service, loopback_client, new_folder, running_service
from .quiet_provider import QuietProvider, quiet_provider
from .scripted_provider import ScriptedProvider, scripted_provider

NewService: TypeAlias = Callable[..., Service]
NewCustomer: TypeAlias = Callable[..., Awaitable[Customer]]


@pytest.fixture(scope="session")
def house() -> Iterator[Service]:
    """A running service that tests share; nobody may break it."""
    with running_service(new_folder()) as service:
        yield service


@pytest.fixture
def new_service() -> Iterator[NewService]:
    """Make services of the test's own, not yet started: ``new_service(PORT="0", …)``."""
    made: list[tuple[Service, Path]] = []

    def make(**settings: str) -> Service:
        folder = new_folder()
        service = Service(folder, **settings)
        made.append((service, folder))
        return service

    yield make
    for service, _ in made:
        if service.is_alive():
            service.kill()
    for _, folder in made:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def provider() -> Iterator[QuietProvider]:
    """A provider whose callbacks are the test's to send."""
    with quiet_provider() as found:
        yield found


@pytest.fixture(scope="session")
def quiet_house(provider: QuietProvider) -> Iterator[Service]:
    """A running service whose only provider is the quiet one."""
    folder = new_folder()
    with running_service(folder, CATALOG=str(provider.write_catalog(folder))) as service:
        yield service


@pytest.fixture(scope="session")
def scripted() -> Iterator[ScriptedProvider]:
    """A provider that answers as each story has written."""
    with scripted_provider() as found:
        yield found


@pytest.fixture(scope="session")
def scripted_house(scripted: ScriptedProvider) -> Iterator[Service]:
    """A running service whose providers are the scripted one and what stands around it; nobody may break it."""
    folder = new_folder()
    settings = {"CATALOG": str(scripted.write_catalog(folder)), "OPERATOR_TOKEN": OPERATOR_TOKEN}
    with running_service(folder, **settings) as service:
        yield service


@pytest.fixture
async def new_customer() -> AsyncIterator[NewCustomer]:
    """Sign a new customer in at a service: ``await new_customer(service, credit="10.00")``."""
    async with AsyncExitStack() as stack:

        async def make(service: Service, *, credit: str | None = None, connections: int = 100) -> Customer:
            limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
            http = loopback_client(base_url=service.url, timeout=30, limits=limits)
            customer = Customer(await stack.enter_async_context(http))
            await customer.sign_in()
            if credit is not None:
                await customer.recharge(credit)
            return customer

        yield make


@pytest.fixture
def shared_url() -> Iterator[str]:
    """A database for several services."""
    folder = new_folder()
    server = EmbeddedPostgres(folder)
    try:
        yield server.start()
    finally:
        server.stop()
        server.release()
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def bank() -> Iterator[CardBank]:
    """A card provider for all tests; whoever has its webhooks or calls go wrong sets them right again."""
    with card_bank() as found:
        yield found


@pytest.fixture(scope="session")
def paid_house(bank: CardBank) -> Iterator[Service]:
    """A running service that takes cards at the bank; nobody may break it."""
    with running_service(new_folder(), **bank.settings()) as service:
        yield service


@pytest.fixture
async def sound_bank(bank: CardBank, paid_house: Service) -> AsyncIterator[CardBank]:
    """The bank in good order, speaking to the shared service."""
    bank.serve(paid_house)
    yield bank
    await bank.webhooks()
    await bank.recover()


@pytest.fixture
async def payer(sound_bank: CardBank, paid_house: Service, new_customer: NewCustomer) -> Payer:
    """Somebody with an empty account at the shared service."""
    return Payer(await new_customer(paid_house), sound_bank)
