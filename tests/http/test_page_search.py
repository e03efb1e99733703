"""Search on the operators' pages: an id, an address or a part of one leads to its page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from uuid_utils import uuid7

from holdfast.persistence.queries.finding import CLOCKS_APART_MS, Found, made_by_request
from holdfast.persistence.records import tables
from holdfast.supervision.control.messages import ListRefusedRequests, RefusedRequestList
from holdfast.telemetry.refused_requests import RefusedRequest

from .fake_rows import AwayRows
from .page_reader import PageReader
from .test_control_calls import PROCESS, controls_of

if TYPE_CHECKING:
    from tests.http.api import Api


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


async def test_the_id_of_a_request_leads_to_what_it_created(api: Api, browser: PageReader) -> None:
    digits, callers_trace = uuid7().hex, "a" * 32
    traced = [
        ("task_" + uuid7().hex, f"00-{digits}-{digits[16:]}-00", None),
        ("task_" + uuid7().hex, f"00-{callers_trace}-{'b' * 16}-01", "req_" + uuid7().hex),
        ("task_" + uuid7().hex, f"00-{callers_trace}-{'c' * 16}-01", "req_" + uuid7().hex),
    ]
    for task_id, trace, request_id in traced:
        task = api.task(task_id)
        request = msgspec.structs.replace(task.request, traceparent=trace, http_request_id=request_id)
        await api.add_task(msgspec.structs.replace(task, request=request))
    await api.add_task(api.task("task_" + uuid7().hex))
    for sought in (digits, f"req_{digits}"):
        assert await found(browser, sought) == f"/ops/tasks/{traced[0][0]}"
    for task_id, _, request_id in traced[1:]:
        assert request_id is not None
        assert await found(browser, request_id) == f"/ops/tasks/{task_id}"
    listed = (await browser.read(f"/ops/find?q={callers_trace}")).links
    assert [f"/ops/tasks/{task_id}" in listed for task_id, *_ in traced] == [False, True, True]
    page = (await browser.read(f"/ops/tasks/{traced[1][0]}")).text
    assert str(traced[1][2]) in page
    assert callers_trace in page
    assert f"req_{digits}" in (await browser.read(f"/ops/tasks/{traced[0][0]}")).text

    order_digits = uuid7().hex
    order = api.order("ord_" + uuid7().hex)
    ordered = msgspec.structs.replace(order.request, traceparent=f"00-{order_digits}-{order_digits[16:]}-00")
    await api.add_order(msgspec.structs.replace(order, request=ordered))
    assert await found(browser, f"req_{order_digits}") == f"/ops/payments/{order.order_id}"


async def test_a_task_made_long_after_a_request_is_not_searched_for_it(api: Api) -> None:
    """What is read is bounded by the time in the id, and not by the number of tasks."""
    before, task_id = f"{int(uuid7().hex[:12], 16) - 2 * CLOCKS_APART_MS:012x}", "task_" + uuid7().hex
    digits = uuid7().hex
    for made in ("task_" + before + uuid7().hex[12:], task_id):
        task = api.task(made)
        request = msgspec.structs.replace(task.request, traceparent=f"00-{digits}-{digits[16:]}-00")
        await api.add_task(msgspec.structs.replace(task, request=request))
    made_by = await api.database.read(lambda rows: made_by_request(rows, digits, 10))
    assert made_by == [Found(api.account_id, reference=task_id)]


async def test_a_callers_trace_that_looks_like_our_ids_is_found(api: Api) -> None:
    trace = f"4bf92f3577b3{uuid7().hex[12:]}"
    task = api.task("task_" + uuid7().hex)
    request = msgspec.structs.replace(task.request, traceparent=f"00-{trace}-{'c' * 16}-01")
    await api.add_task(msgspec.structs.replace(task, request=request))
    made_by = await api.database.read(lambda rows: made_by_request(rows, trace, 10))
    assert made_by == [Found(api.account_id, reference=task.request_id)]


async def test_a_refused_request_leads_to_its_refusal(api: Api, browser: PageReader) -> None:
    refused = RefusedRequest(
        at="2026-11-22T03:00:00.000Z",
        member_id="proc_1",
        status=402,
        code="insufficient_credit",
        route="POST /v2/task/create",
        request_id="req_" + uuid7().hex,
        trace_id="4" * 32,
        caller=api.account_id,
        key_prefix=None,
        origin="192.0.2.1",
    )

    def answer(command: object) -> object:
        if not isinstance(command, ListRefusedRequests):
            return PROCESS
        is_sought = command.sought is not None and refused.is_about(command.sought)
        return RefusedRequestList([refused] if is_sought else [], [])

    controls_of(api).answer = answer
    assert await found(browser, refused.request_id) == f"/ops/refused-requests?about={refused.request_id}"
    api.change(database=AwayRows())
    token = PageReader(api, {"Authorization": f"Bearer {api.deps.settings.operator_token}"})
    assert await found(token, refused.request_id) == f"/ops/refused-requests?about={refused.request_id}"
    assert str(await found(token, "req_" + "5" * 32)).startswith("/ops/reports?")


async def test_ids_of_the_card_company_events_and_webhooks_lead_to_their_pages(
    api: Api, browser: PageReader
) -> None:
    await api.add_order(api.order("ord_1"))
    about = {"account_id": api.account_id, "order_id": "ord_1", "provider": "cardprovider"}
    for name in ("pi_3MtwBwLkdIwHu7ix", "ch_3MtwBwLkdIwHu7ix"):
        await api.write(tables.order_payments.insert().values(provider_object_id=name, **about))
    await api.write(
        tables.payment_events.insert().values(
            event_id="evt_1NG8Du2eZvKYlo2C", type="x", received_at=api.now, verdict="applied", body=b"", **about
        )
    )
    for name in ("pi_3MtwBwLkdIwHu7ix", "ch_3MtwBwLkdIwHu7ix", "evt_1NG8Du2eZvKYlo2C"):
        assert await found(browser, name) == "/ops/payments/ord_1"
    event = {
        "account_id": api.account_id,
        "receiver": "wh_1",
        "kind": "task.succeeded",
        "url": "https://example.com",
        "created_at": api.now,
        "status": "pending",
        "attempts": 0,
        "round_at": api.now,
        "tries": 0,
        "snapshot": {},
    }
    await api.write(tables.outbox.insert().values(event_id="evt_1", request_id="task_1", **event))
    await api.write(tables.outbox.insert().values(event_id="evt_2", request_id=None, **event))
    assert await found(browser, "evt_1") == "/ops/tasks/task_1"
    assert await found(browser, "evt_2") == f"/ops/accounts/{api.account_id}"
    await api.write(
        tables.webhooks.insert().values(
            account_id=api.account_id,
            webhook_id="wh_1",
            url="https://example.com",
            created_at=api.now,
            updated_at=api.now,
            events=[],
            enabled=True,
        )
    )
    assert await found(browser, "wh_1") == f"/ops/accounts/{api.account_id}"
    for unknown in ("pi_none", "evt_none", "wh_none"):
        assert await found(browser, unknown) == 404
