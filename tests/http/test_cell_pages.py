"""The operators' view over all cells: what each says, one that is away, and what belongs to another one."""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
import trio
from sqlalchemy import update

from holdfast.http.endpoints.operators import cells as cells_module
from holdfast.http.kit.forwarding import ANSWER_BYTES_MAX
from holdfast.ledger.cells import Cell, Cells
from holdfast.ledger.values import PLACES, new_id_at, place_of
from holdfast.persistence.records import tables

from .cell_stages import AWAY, HALVES, email_in, write_move
from .page_reader import PageReader

if TYPE_CHECKING:
    from tests.http.api import Api


def has_cells(api: Api, browser: PageReader, *urls: str) -> Cells:
    """Let the API be the first cell, and pages have links to all."""
    listed = [
        Cell(number, places, places, AWAY, url)
        for number, (places, url) in enumerate(zip(HALVES, urls, strict=True), 1)
    ]
    cells = Cells(1, listed)
    api.change(cells=cells)
    browser.ours = re.compile("|".join([PageReader.ours.pattern, *map(re.escape, urls)]))  # type: ignore[misc]
    return cells


async def test_each_cell_says_what_it_has_and_one_that_is_away_is_shown(
    api: Api, browser: PageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells_module, "ANSWER_S", 0.5)
    await api.write(update(tables.accounts).values(balance_micro=7_000_000, held_micro=2_500_000))
    async with api.serving() as url:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            for away in (AWAY, f"http://127.0.0.1:{silent.getsockname()[1]}"):
                has_cells(api, browser, url, away)
                listed = (
                    await api.call("GET", "/ops/api/cells", credential=api.deps.settings.operator_token)
                ).json()
                here, there = listed["data"]
                assert here == {
                    "number": 1,
                    "is_this": True,
                    "is_reached": True,
                    "places": "000-7ff",
                    "operators_url": url,
                    "members": 1,
                    "accounts": 2,
                    "held": "5.00",
                    "holds_open": 0,
                }
                assert (there["number"], there["is_reached"], there["places"]) == (2, False, "800-fff")
                assert [there[name] for name in ("members", "accounts", "held", "holds_open")] == [None] * 4
                page = await browser.read("/ops/cells")
                assert "away" in page.text
                assert f"{away}/ops" in page.links
                assert "/ops/cells" in page.links


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b'{"a":"\xff"}', b'{"a":' * 100_000, b" " * (ANSWER_BYTES_MAX + 1)]
)
async def test_a_cell_that_answers_nonsense_is_shown_as_away(
    api: Api, browser: PageReader, nursery: trio.Nursery, body: bytes
) -> None:
    async def answer_badly(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            with suppress(trio.BrokenResourceError):
                await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    [listener] = await nursery.start(partial(trio.serve_tcp, answer_badly, 0, host="127.0.0.1"))
    async with api.serving() as url:
        has_cells(api, browser, url, f"http://127.0.0.1:{listener.socket.getsockname()[1]}")
        listed = await api.call("GET", "/ops/api/cells", credential=api.deps.settings.operator_token)
        assert [each["is_reached"] for each in listed.json()["data"]] == [True, False]


async def test_an_installation_with_one_database_has_no_cells(api: Api, browser: PageReader) -> None:
    page = await browser.read("/ops/cells")
    assert "no cells" in page.text
    assert "/ops/cells" not in page.links


async def test_what_belongs_to_another_cell_leads_to_it(api: Api, browser: PageReader) -> None:
    there = "http://10.0.2.2:9000"
    has_cells(api, browser, "http://10.0.1.2:9000", there)
    in_second = next(each for each in (f"acct_{n}" for n in range(100)) if place_of(each) in HALVES[1][0])
    for sought in (in_second, new_id_at("task", PLACES - 1), new_id_at("ord", PLACES - 1), email_in(2)):
        page = await browser.read(f"/ops/find?q={sought}")
        [link] = [each for each in page.links if each.startswith(there)]
        assert link == f"{there}/ops/find?q={quote(sought)}"
        assert link in (await browser.read(f"/ops/follow?id={quote(sought)}")).links
    # Of what carries no place each cell knows its own alone.
    for sought in ("unknown", "R-999999", "hk_test_unknown"):
        page = await browser.read(f"/ops/find?q={sought}")
        assert [each for each in page.links if each.startswith("http")] == [f"{there}/ops/find?q={sought}"]
    # What came from there is here, and what went there is not.
    await api.add_account(in_second)
    assert (await browser.get("/ops/find", q=in_second)).headers["Location"] == f"/ops/accounts/{in_second}"
    in_first = next(each for each in (f"acct_{n}" for n in range(100)) if place_of(each) in HALVES[0][0])
    assert (await browser.get("/ops/find", q=in_first)).headers["Location"] == f"/ops/accounts/{in_first}"
    await write_move(api, in_first, "moved")
    assert there in " ".join((await browser.read(f"/ops/find?q={in_first}")).links)
