"""The whole service over real HTTP on a real database: shared by tests, or started by one test.

What most modules use runs until their worker ends, since a start computes for seconds, and an idle service takes
less than a hundredth of a core. The rest ends with its module.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, TypeAlias

import httpx2
import pytest
from playwright.sync_api import Browser
from tests.clients import Customer, loopback_client
from tests.fresh_clusters import create_data_folder

from holdfast.persistence.server.embedded import EmbeddedPostgres

from .card_provider import CardProviderProcess, Payer, run_card_provider
from .page_browser import running_browser
from .quiet_provider import QuietProvider, quiet_provider
from .receiver import Receiver, receiver
from .scripted_provider import ScriptedProvider, scripted_provider
from .service_process import OPERATOR_TOKEN, SERVER_KEY, Service, new_folder, running_service, start_together

NewService: TypeAlias = Callable[..., Service]
NewCustomer: TypeAlias = Callable[..., Awaitable[Customer]]
MIDNIGHT_NEAR_S: Final = 100.0
"""Longer than a test of what is spent in a day takes on a slow machine."""


@pytest.fixture
def one_day() -> None:
    """Begin after midnight if that is near: what a test spends or buys is to be of one day in UTC."""
    now = datetime.now(UTC)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    left_s = (midnight - now).total_seconds()
    if left_s < MIDNIGHT_NEAR_S:
        time.sleep(left_s + 1)


@pytest.fixture(scope="session")
def shared_service() -> Iterator[Service]:
    """A running service shared by the tests of a worker; no test may break it."""
    with running_service(new_folder()) as service:
        yield service


@pytest.fixture
def new_service() -> Iterator[NewService]:
    """Create services for one test, not yet started: ``new_service(PORT="0", …)``."""
    services: list[tuple[Service, Path]] = []

    def make(**settings: str) -> Service:
        folder = new_folder()
        service = Service(folder, **settings)
        services.append((service, folder))
        return service

    yield make
    for service, _ in services:
        if service.is_alive():
            service.kill()
    for _, folder in services:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Receiver]:
    """Run the customers' webhook receiver."""
    with receiver() as found:
        yield found


@pytest.fixture(scope="session")
def provider() -> Iterator[QuietProvider]:
    """A provider whose callbacks the test sends."""
    with quiet_provider() as found:
        yield found


@pytest.fixture(scope="session")
def quiet_service(provider: QuietProvider) -> Iterator[Service]:
    """A running service whose only provider is the quiet one, shared by the tests of a worker."""
    folder = new_folder()
    with running_service(folder, CATALOG=str(provider.write_catalog(folder))) as service:
        yield service


@pytest.fixture(scope="session")
def scripted() -> Iterator[ScriptedProvider]:
    """A provider that responds as each scenario scripts it."""
    with scripted_provider() as found:
        yield found


@pytest.fixture(scope="session")
def scripted_service(scripted: ScriptedProvider) -> Iterator[Service]:
    """A running service whose providers are the scripted ones; no test may break it."""
    folder = new_folder()
    settings = {"CATALOG": str(scripted.write_catalog(folder)), "OPERATOR_TOKEN": OPERATOR_TOKEN}
    with running_service(folder, **settings) as service:
        yield service


@pytest.fixture
async def new_customer() -> AsyncIterator[NewCustomer]:
    """Sign a new customer in: ``await new_customer(service, credit="10.00")``."""
    async with AsyncExitStack() as stack:

        async def make(service: Service, *, credit: str | None = None, connections: int = 100) -> Customer:
            limits = httpx2.Limits(max_connections=connections, max_keepalive_connections=connections)
            http = loopback_client(base_url=service.url, timeout=60, limits=limits)
            customer = Customer(await stack.enter_async_context(http))
            await customer.sign_in()
            if credit is not None:
                await customer.recharge(credit)
            return customer

        yield make


async def customers_of_each(
    services: Sequence[Service], new_customer: NewCustomer, number: int, *, credit: str
) -> list[Customer]:
    """Sign customers in at the first of some members until each of them owns so many of the accounts."""
    found: list[list[Customer]] = [[] for _ in services]
    while min(map(len, found)) < number:
        customer = await new_customer(services[0], credit=credit)
        owner = next(index for index, service in enumerate(services) if service.owns(customer.account_id))
        found[owner].append(customer)
    return [customer for owned in found for customer in owned[:number]]


@contextmanager
def running_postgres() -> Iterator[EmbeddedPostgres]:
    """Run a database server of its own."""
    folder = new_folder()
    create_data_folder(folder / "var")
    server = EmbeddedPostgres(folder / "var")
    try:
        server.start()
        yield server
    finally:
        server.stop()
        server.release()
        shutil.rmtree(folder)


@pytest.fixture
def postgres() -> Iterator[EmbeddedPostgres]:
    """A database server of this test, given to services by URL."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def shared_url(postgres: EmbeddedPostgres) -> str:
    """A database for several services."""
    return postgres.url


@pytest.fixture(scope="module")
def two_services(provider: QuietProvider) -> Iterator[list[Service]]:
    """Two services on one database, with the quiet provider; every test leaves them running."""
    folders = [new_folder(), new_folder()]
    with running_postgres() as server:
        settings = {"CATALOG": str(provider.write_catalog(folders[0])), "SERVER_KEY": SERVER_KEY}
        services = [Service(folder, DATABASE_URL=server.url, **settings) for folder in folders]
        try:
            start_together(services)
            yield services
            assert [service.stop() for service in services] == [0, 0]
        finally:
            for service in services:
                if service.is_alive():
                    service.kill()
            for folder in folders:
                shutil.rmtree(folder)


@pytest.fixture(scope="module")
def card_provider() -> Iterator[CardProviderProcess]:
    """A card provider shared by a module's tests; a test that makes its webhooks or calls fail restores them."""
    with run_card_provider() as found:
        yield found


@pytest.fixture(scope="module")
def card_service(card_provider: CardProviderProcess) -> Iterator[Service]:
    """A running service that uses the card provider; no test may break it."""
    with running_service(new_folder(), **card_provider.settings()) as service:
        yield service


@pytest.fixture
async def shared_card_provider(
    card_provider: CardProviderProcess, card_service: Service
) -> AsyncIterator[CardProviderProcess]:
    """The card provider without faults, sending its webhooks to the shared service."""
    card_provider.serve(card_service)
    yield card_provider
    await card_provider.webhooks()
    await card_provider.recover()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Run a headless browser. No longer than a module: its event loop would run beside the next one's trio."""
    with running_browser() as browser:
        yield browser


@pytest.fixture
async def payer(
    shared_card_provider: CardProviderProcess, card_service: Service, new_customer: NewCustomer
) -> Payer:
    """A customer with an empty account at the shared service."""
    return Payer(await new_customer(card_service), shared_card_provider)
