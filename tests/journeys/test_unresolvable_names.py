"""Many webhooks to names that never resolve: results and events of other accounts do not wait for them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio
from tests.clients import IMAGE, Customer, code_of, ok, until

from .conftest import NewCustomer, NewService
from .receiver import Receiver
from .service_process import Service

ATTACKERS_COUNT = 10
WEBHOOKS_COUNT = 5
HANGING_RESOLVER = """
import os, socket, threading

real = socket.getaddrinfo

def getaddrinfo(host, *rest, **named):
    name = host.decode() if isinstance(host, bytes) else host
    if name is not None and name.endswith(".dead.example"):
        with open(os.environ["LOOKED_UP"], "a") as log:
            log.write(name + "\\n")
        threading.Event().wait(300)
    return real(host, *rest, **named)

socket.getaddrinfo = getaddrinfo
"""


@pytest.fixture
def looked_up(tmp_path: Path) -> Path:
    """The file in which the resolver records unresolvable names."""
    path = tmp_path / "looked_up"
    path.touch()
    return path


@pytest.fixture
def service(new_service: NewService, tmp_path: Path, looked_up: Path) -> Service:
    """A service whose system resolver hangs for unresolvable names during the test."""
    folder = tmp_path / "resolver"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HANGING_RESOLVER)
    service = new_service(WEBHOOK_TIMEOUT_S="5")
    inherited = service.environment.get("PYTHONPATH")
    service.environment["PYTHONPATH"] = os.pathsep.join([str(folder), *([inherited] if inherited else [])])
    service.environment["LOOKED_UP"] = str(looked_up)
    return service


async def create(customer: Customer, url: str) -> str:
    """Create a task with ``url`` as its webhook."""
    order = {"model": "studio/image-1", "input": IMAGE, "webhook_url": url}
    return str(ok(await customer.as_key("POST", "/v2/task/create", order))["request_id"])


def names_in(looked_up: Path) -> list[str]:
    """Return the unresolvable names that were looked up."""
    return looked_up.read_text().split()


@pytest.mark.slow
async def test_unresolvable_webhook_names_delay_no_other_account(
    service: Service, new_customer: NewCustomer, looked_up: Path, endpoint: Receiver
) -> None:
    await trio.to_thread.run_sync(service.start)

    async def attack(number: int) -> None:
        mallory = await new_customer(service, credit="5.00")
        for webhook in range(WEBHOOKS_COUNT):
            url = f"http://{number}-{webhook}.dead.example/"
            request_id = await create(mallory, url)
            canceled = await mallory.as_key("POST", f"/v2/task/{request_id}/cancel")
            assert canceled.status_code == 200 or code_of(canceled).startswith("task_"), canceled.text

    with trio.fail_after(120):
        async with trio.open_nursery() as nursery:
            for number in range(ATTACKERS_COUNT):
                nursery.start_soon(attack, number)

        async def all_are_at_it() -> bool:
            return len(names_in(looked_up)) >= ATTACKERS_COUNT

        await until(all_are_at_it)
        ada: Customer = await new_customer(service, credit="5.00")
        # A name that resolves needs a thread too, unlike an address.
        url = endpoint.url.replace("127.0.0.1", "localhost") + "/ada"
        for _ in range(3):
            request_id = await create(ada, url)
            task = (await ada.all_ended())[request_id]
            assert task["status"] == "succeeded"
            assert (await ada.http.get(task["output"][0]["url"])).status_code == 200
        posts = await endpoint.wait("/ada", 6)
        assert {post.event["type"] for post in posts} == {"task.succeeded", "task.assets_ready"}
        assert service.metric("holdfast_name_lookups_total") > 0
    # Each account has at most two threads at a time, and the dead names' own threads are all that hang.
    assert len(names_in(looked_up)) <= ATTACKERS_COUNT * 2
    assert service.audit() == []
    assert service.faults() == []
    assert await trio.to_thread.run_sync(service.stop) == 0
