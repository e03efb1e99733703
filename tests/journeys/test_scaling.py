"""Three members behind HAProxy: requests reach their account's owner, and a frozen owner does no harm.

``FREEZE_S=60`` freezes it for a minute, after which its lease has lapsed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trio
from tests.bucket_server import BucketServer
from tests.clients import Customer, loopback_client, ok, until
from tests.haproxy_process import Proxy, haproxy
from tests.tools import needs

from holdfast.ledger.values import place_of

from .conftest import NewService
from .load import Witness
from .quiet_provider import MODEL, QuietProvider, signed
from .service_process import Service, start_together

pytestmark = needs("haproxy")

FREEZE_S = float(os.environ.get("FREEZE_S", "0"))
CREDIT = Decimal("1000.00")
LANES = 3


@dataclass(frozen=True, slots=True)
class Cluster:
    """The members by their server's name in HAProxy, and HAProxy with a place map that follows them."""

    members: dict[str, Service]
    proxy: Proxy

    def servers(self) -> list[str]:
        """Return the server of each place, none without a map."""
        return [line.split()[1] for line in self.proxy.places.read_text().splitlines()]

    def owner_of(self, customer: Customer) -> str:
        """Return the server that owns a customer's account."""
        return self.servers()[place_of(customer.account_id)]

    async def are_linked(self) -> bool:
        """Whether all members own places, and HAProxy uses them."""
        owning = [member.metric("holdfast_members") for member in self.members.values()]
        return owning == [len(self.members)] * len(owning) and set(self.servers()) == set(self.members)


@pytest.fixture
def cluster(
    new_service: NewService, shared_url: str, provider: QuietProvider, bucket: BucketServer, tmp_path: Path
) -> Iterator[Cluster]:
    """Three members with data folders of their own, one database and one bucket."""
    listening = socket.create_server(("127.0.0.1", 0))
    settings = {
        "PUBLIC_URL": f"http://127.0.0.1:{listening.getsockname()[1]}",
        "DATABASE_URL": shared_url,
        "CATALOG": str(provider.write_catalog(tmp_path)),
        "SERVER_KEY": "the-server-key-that-all-members-have-0123456789",
        "TRUSTED_PROXIES": "127.0.0.1",
        **bucket.settings(),
    }
    members = [new_service(**settings) for _ in range(3)]
    start_together(members)
    named = {urlsplit(member.url).netloc: member for member in members}
    with haproxy(tmp_path / "haproxy", list(named), listening) as proxy:
        follow = ["places", "--file", str(proxy.places), "--socket", str(proxy.control), "--every", "0.5"]
        with subprocess.Popen([sys.executable, "-m", "holdfast", *follow], env=members[0].environment) as following:
            try:
                yield Cluster(named, proxy)
            finally:
                following.kill()


@pytest.fixture
async def new_customer_of(cluster: Cluster) -> AsyncIterator[Callable[[str], Awaitable[Customer]]]:
    """Sign customers in through HAProxy until one belongs to the member."""
    async with AsyncExitStack() as stack:

        async def make(owner: str) -> Customer:
            http = await stack.enter_async_context(loopback_client(base_url=cluster.proxy.url, timeout=60))
            while True:
                customer = Customer(http, model=MODEL)
                await customer.sign_in()
                if cluster.owner_of(customer) == owner:
                    await customer.recharge(str(CREDIT))
                    return customer

        yield make


async def served_by(cluster: Cluster, path: str, count: int) -> list[str]:
    """Wait until HAProxy has logged so many requests for a path, after their answers; return their servers."""

    async def logged() -> list[str] | None:
        servers = cluster.proxy.served_by(path)
        return servers if len(servers) >= count else None

    return await until(logged)


@pytest.mark.slow
async def test_a_frozen_member_behind_haproxy_does_no_harm(
    cluster: Cluster, provider: QuietProvider, new_customer_of: Callable[[str], Awaitable[Customer]]
) -> None:
    await until(cluster.are_linked)
    witnesses = {owner: Witness(await new_customer_of(owner), seed=1, pause_s=0.1) for owner in cluster.members}

    # An account's requests reach its owner, whatever they name it by.
    for owner, witness in witnesses.items():
        customer = witness.customer
        witness.keys.append("first")
        witness.created["first"] = ok(await customer.create(key="first"))
        request_id = witness.created["first"]["request_id"]
        path = f"/v2/task/{request_id}"
        ok(await customer.as_key("GET", path))
        ok(await customer.as_key("POST", f"{path}/cancel"))
        assert await served_by(cluster, path, 1) == [owner]
        assert await served_by(cluster, f"{path}/cancel", 1) == [owner]
    assert Counter(await served_by(cluster, "/v2/task/create", 3)) == dict.fromkeys(cluster.members, 1)

    frozen_server, other_server, _ = cluster.members
    frozen = cluster.members[frozen_server]
    assert frozen.process is not None
    ada, bob = witnesses[frozen_server], witnesses[other_server]

    async def is_down() -> bool:
        return cluster.proxy.states()[frozen_server] == "DOWN"

    async with trio.open_nursery() as nursery:
        for witness in [ada, bob] * LANES:
            nursery.start_soon(witness.work)
        await ada.answers(10)
        thaw_at = trio.current_time() + FREEZE_S
        frozen.process.send_signal(signal.SIGSTOP)
        try:
            await until(is_down)
            # The first lanes wait for the frozen member's answers; these reach its successor.
            for _ in range(LANES):
                nursery.start_soon(ada.work)
            await ada.answers(10)
            await bob.answers(10)
            turned_away = len(ada.turned_away + bob.turned_away)
            await ada.answers(10)
            await bob.answers(10)
            if FREEZE_S:
                ada.pause_s = bob.pause_s = 1.0
                await trio.sleep_until(thaw_at)
            else:
                assert len(ada.turned_away + bob.turned_away) == turned_away
        finally:
            frozen.process.send_signal(signal.SIGCONT)
        await until(cluster.are_linked)
        await ada.answers(10)
        ada.is_stopping = bob.is_stopping = True

    for answer in ada.turned_away + bob.turned_away:
        assert answer.status_code == 503, answer.text
        assert int(answer.headers["Retry-After"]) >= 1
        assert answer.json()["error"]["code"] in {"temporarily_unavailable", "overloaded"}
    for witness in (ada, bob):
        await witness.hold_to_it()
        await finish(witness.customer, provider)
        tasks = await witness.settle(CREDIT)
        assert "succeeded" in {task["status"] for task in tasks.values()}
    await read_everywhere(cluster, ada.customer)
    assert frozen.audit() == []
    for member in cluster.members.values():
        assert [line for line in member.log_lines() if line.get("level") == "critical"] == []
        assert await trio.to_thread.run_sync(member.stop) == 0


async def finish(customer: Customer, provider: QuietProvider) -> None:
    """Send the callbacks of the first tasks that run, and cancel the others."""
    running = [task for task in (await customer.tasks()).values() if task["status"] not in {"canceled"}]
    for number, task in enumerate(running):
        request_id = task["request_id"]
        if number >= LANES:
            ok(await customer.as_key("POST", f"/v2/task/{request_id}/cancel"))
            continue

        async def is_submitted(request_id: str = request_id) -> bool:
            return any(job.startswith(request_id) for job in provider.jobs)

        await until(is_submitted, within_s=60)
        body = provider.success(request_id, event_id="evt_1", sequence=1)
        ok(await customer.http.post("/v2/callback", content=body, headers=signed(body)))


async def read_everywhere(cluster: Cluster, customer: Customer) -> None:
    """Read a stored output, which one member wrote, through every member."""
    task = next(task for task in (await customer.tasks()).values() if task["status"] == "succeeded")
    link = urlsplit(task["output"][0]["url"])
    for server in [*cluster.members, urlsplit(cluster.proxy.url).netloc]:
        found = await customer.http.get(link._replace(netloc=server).geturl())
        assert (found.status_code, found.headers["Content-Type"]) == (200, "image/png")
