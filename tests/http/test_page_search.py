"""Search on the operators' pages: an id, an address or a part of one leads to its page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.persistence.records import tables

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.page_reader import PageReader


async def found(browser: PageReader, sought: str) -> str | int:
    """The page to which a search leads, or the status of its own."""
    response = await browser.get("/ops/find", q=sought)
    return str(response.headers["Location"]) if response.status_code == 303 else response.status_code


@pytest.mark.parametrize(
    ("sought", "page"),
    [
        ("acct_1", "/ops/accounts/acct_1"),
        ("task_1/../x?y", "/ops/tasks/task_1%2F..%2Fx%3Fy"),
        ("rev_1", "/ops/reviews/rev_1"),
        ("proc_1", "/ops/tree#proc_1"),
        ("req_" + "4" * 32, "/ops/reports?trace_id=" + "4" * 32 + "&level="),
        ("4" * 32, "/ops/reports?trace_id=" + "4" * 32 + "&level="),
    ],
)
async def test_an_id_leads_to_its_page(browser: PageReader, sought: str, page: str) -> None:
    assert await found(browser, sought) == page


async def test_an_address_or_a_key_leads_to_its_account(api: Api, browser: PageReader) -> None:
    for sought in (f" {api.account_id}@Example.com ", api.minted.prefix, api.key):
        assert await found(browser, sought) == f"/ops/accounts/{api.account_id}"
    for unknown in ("unknown@example.com", "<script>", "hk_test_none"):
        assert await found(browser, unknown) == 404


async def test_a_part_of_an_address_lists_the_accounts_that_begin_so(api: Api, browser: PageReader) -> None:
    for name in ("anna_lee", "anna%lee", "annabel", "bert"):
        await api.add_account(name)
    text = (await browser.read("/ops/find?q=Anna")).text
    assert [f"{name}@" in text for name in ("anna_lee", "anna%lee", "annabel", "bert")] == [True] * 3 + [False]
    assert await found(browser, "ber") == "/ops/accounts/bert"
    # What LIKE takes for a pattern is text.
    assert await found(browser, "anna%") == "/ops/accounts/anna%lee"
    assert await found(browser, "nnabel") == 404


async def test_an_operation_leads_to_what_it_is_about(api: Api, browser: PageReader) -> None:
    pages = {"task_1": "/ops/tasks/task_1", "ord_1": "/ops/payments/ord_1"}
    pages["a gift"] = f"/ops/accounts/{api.account_id}"
    usual = {
        "kind": "credit",
        "amount_micro": 1,
        "balance_after_micro": 1,
        "held_after_micro": 0,
        "chain_hash": b"",
    }
    for number, (reference, page) in enumerate(pages.items(), 1):
        about = {"account_id": api.account_id, "number": number, "operation_id": f"op_{number}", "at": api.now}
        await api.write(tables.operations.insert().values(reference=reference, reason="why", **about, **usual))
        assert await found(browser, f"op_{number}") == page
    assert await found(browser, "op_9") == 404
