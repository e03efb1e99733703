"""An account that was moved to another cell is served as before, at whichever cell its requests arrive."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import count
from typing import TypeAlias

import httpx2
import pytest
import trio
from tests.clients import Customer, loopback_client, ok, refused, until
from tests.tools import needs

from holdfast.commands.move_account import EndOfMove, move_account
from holdfast.ledger.values import place_of
from holdfast.settings.settings import load_settings

from .quiet_provider import MODEL, QuietProvider, quiet_provider, signed
from .running_cells import Ranges, RunningCells, running_cells

pytestmark = [needs("haproxy"), pytest.mark.slow]

TWO = (Ranges("000-7ff"), Ranges("800-fff"))
NUMBERS = count()

Doors: TypeAlias = list[httpx2.AsyncClient]
"""Clients of HAProxy, of the cell that an account leaves, and of the one that it moves to."""


@pytest.fixture(scope="module")
def provider() -> Iterator[QuietProvider]:
    """A provider of these cells alone."""
    with quiet_provider() as found:
        yield found


@pytest.fixture(scope="module")
def cells(provider: QuietProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCells]:
    """Two cells that run; HAProxy knows the server of a third."""
    catalog = provider.write_catalog(tmp_path_factory.mktemp("catalog"))
    with running_cells(catalog, TWO, more=1) as found:
        yield found


@pytest.fixture
async def doors(cells: RunningCells) -> AsyncIterator[Doors]:
    """Clients of HAProxy and of both cells."""
    urls = [cells.proxy.url, *(f"http://{cells.address_of(number)}" for number in (1, 2))]
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(loopback_client(base_url=url, timeout=60)) for url in urls]


@pytest.fixture
async def ada(cells: RunningCells, doors: Doors) -> Customer:
    """A customer with credit, whose account is in the first cell, through HAProxy."""
    for number in (1, 2):
        await cells.is_mapped(number)
    emails = (f"ada-{number}@example.com" for number in NUMBERS)
    customer = Customer(doors[0], model=MODEL, email=next(each for each in emails if place_of(each) < 0x800))
    await customer.sign_in()
    await customer.recharge("100.00")
    return customer


async def move(cells: RunningCells, account_id: str) -> None:
    """Move an account from the first cell to the second."""
    ends = [EndOfMove(load_settings(each.environment), each.database_url) for each in cells.services[:2]]
    said: list[str] = []
    await trio.to_thread.run_sync(lambda: move_account(account_id, *ends, say=said.append))
    assert said[-1] == f"{account_id} is in cell 2"


def path_of(link: str) -> str:
    """Return the path of a link, with its query."""
    return httpx2.URL(link).raw_path.decode()


async def succeed(request_id: str, provider: QuietProvider, at: httpx2.AsyncClient) -> None:
    """Have the provider deliver a task's picture to a cell."""
    body = provider.success(request_id, event_id="evt_1", sequence=1)
    ok(await at.post("/v2/callback", content=body, headers=signed(body)))


async def hosted(customer: Customer, request_id: str) -> str:
    """Wait until a task's picture is stored, and return the path of its link."""

    async def found() -> str | None:
        output = (await customer.task(request_id))["output"]
        return output[0]["url"] if output else None

    return path_of(await until(found))


async def archived(customer: Customer) -> str:
    """Have an archive of the account made, and return the path of its link."""

    async def is_made() -> str | None:
        url: str | None = ok(await customer.as_session("GET", "/v2/control/archive"))["url"]
        return url

    ok(await customer.as_session("POST", "/v2/control/archive"))
    return path_of(await until(is_made))


async def test_results_files_and_archives_are_served_at_every_cell(
    cells: RunningCells, doors: Doors, ada: Customer, provider: QuietProvider
) -> None:
    task = ok(await ada.create())["request_id"]
    await ada.submitted(task)
    await succeed(task, provider, doors[2])
    file = ok(await ada.as_key("POST", "/v2/files", files={"file": ("note.txt", b"0123456789")}))
    links = [await hosted(ada, task), path_of(file["url"]), await archived(ada)]
    contents = [(await ada.http.get(link)).content for link in links]
    for has_moved in (False, True):
        if has_moved:
            await move(cells, ada.account_id)
        for door in doors:
            for link, content in zip(links, contents, strict=True):
                whole = await door.get(link)
                assert (whole.status_code, whole.content) == (200, content), whole.text
                part = await door.get(link, headers={"Range": "bytes=2-4"})
                assert (part.status_code, part.content) == (206, content[2:5])
                assert part.headers["Content-Range"] == f"bytes 2-4/{len(content)}"
                head = await door.head(link)
                assert (head.status_code, head.headers["Content-Length"]) == (200, str(len(content)))
                cached = await door.get(link, headers={"If-None-Match": whole.headers["ETag"]})
                assert (cached.status_code, cached.content) == (304, b"")
                beyond = await door.get(link, headers={"Range": "bytes=9999999-"})
                refused(beyond, 416, "range_not_satisfiable")
    # What is uploaded now is in the new cell, and what is deleted is nowhere.
    for door in doors:
        at = replace(ada, http=door)
        for sent in ({"files": {"file": ("b.txt", b"b" * 300_000)}}, {"content": b"b" * 300_000}):
            added = ok(await at.as_key("POST", "/v2/files", **sent))
            assert {(await each.get(path_of(added["url"]))).content for each in doors} == {b"b" * 300_000}
            ok(await at.as_key("DELETE", f"/v2/files/{added['file_id']}"))
            for each in doors:
                refused(await each.get(path_of(added["url"])), 410, "asset_expired")
