"""Reads of payment orders, their list, and the account's statement."""

from __future__ import annotations

import csv
import io
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy
from tests.clients import refused

from holdfast.ledger.credit.account import (
    AccountState,
    decide_capture,
    decide_credit,
    decide_hold,
    decide_release,
    decide_reversal,
)
from holdfast.ledger.credit.operations import Operation
from holdfast.persistence.records import tables

if TYPE_CHECKING:
    from tests.http.api import Api

PAYMENTS, LEDGER = "/v2/control/payments", "/v2/control/ledger"


def order_id(number: int) -> str:
    return f"ord_{number:032d}"


async def read(api: Api, path: str) -> dict[str, Any]:
    response = await api.as_session("GET", path)
    assert response.status_code == 200, response.content
    body: dict[str, Any] = response.json()
    return body


async def pages(api: Api, path: str) -> list[list[dict[str, Any]]]:
    found, cursor = [], ""
    while True:
        page = await read(api, f"{path}{cursor}")
        found.append(page["data"])
        if page["next_cursor"] is None:
            return found
        cursor = f"&cursor={page['next_cursor']}"


async def add_orders(api: Api, count: int) -> None:
    for number in range(count):
        await api.add_order(api.order(order_id(number), at=api.now + timedelta(minutes=number // 2)))


async def test_an_order_is_one_read_beside_that_of_the_credential(api: Api) -> None:
    await api.add_order(api.order(order_id(1)))
    api.rows.reads = 0
    body = await read(api, f"{PAYMENTS}/{order_id(1)}")
    assert (body["order_id"], body["status"], body["provider"]) == (order_id(1), "pending", "cardprovider")
    assert body["expires_at"] == "2026-11-21T12:00:00.000Z"
    assert body["refunded_at"] is None
    assert api.rows.reads == 2


async def test_foreign_and_unknown_orders_are_both_not_found(api: Api) -> None:
    await api.add_order(api.order(order_id(1), account_id=api.other_account_id))
    for name in (order_id(1), order_id(2), "ord_1", "x" * 100, "'", "%F0%9F%92%B3"):
        refused(await api.as_session("GET", f"{PAYMENTS}/{name}"), 404, "payment_order_not_found")


@pytest.mark.parametrize("path", ["/sandbox", "/cardprovider", "/sandbox/callback", "/cardprovider/webhook"])
async def test_the_name_of_a_post_route_is_not_an_order(api: Api, path: str) -> None:
    response = await api.as_session("GET", f"{PAYMENTS}{path}")
    refused(response, 405, "method_not_allowed")
    assert "POST" in response.headers["Allow"]


async def test_the_list_is_newest_first_over_pages_without_gap_or_repetition(api: Api) -> None:
    await add_orders(api, 7)
    await api.add_order(api.order(order_id(99), account_id=api.other_account_id))
    found = await pages(api, f"{PAYMENTS}?limit=3")
    assert [len(page) for page in found] == [3, 3, 1]
    assert [each["order_id"] for page in found for each in page] == [order_id(n) for n in reversed(range(7))]


async def test_the_list_filters_by_status_provider_and_time(api: Api) -> None:
    await add_orders(api, 4)
    sandbox = api.order(order_id(50), provider="sandbox", sandbox_event_id="evt_1", signed_at=0)
    await api.add_order(sandbox)
    await api.write(tables.orders.update().where(tables.orders.c.order_id == order_id(0)).values(status="credited"))
    for query, wanted in (
        ("status=credited", [0]),
        ("provider=sandbox", [50]),
        ("provider=cardprovider&status=pending", [3, 2, 1]),
        ("from=2026-11-20T12:01:00Z", [3, 2]),
        ("to=2026-11-20T12:01:00Z&provider=cardprovider", [1, 0]),
    ):
        body = await read(api, f"{PAYMENTS}?{query}")
        assert [each["order_id"] for each in body["data"]] == [order_id(number) for number in wanted], query


@pytest.mark.parametrize(
    ("path", "param"),
    [
        (f"{PAYMENTS}?status=paid", "status"), (f"{PAYMENTS}?provider=stripe", "provider"),
        (f"{PAYMENTS}?limit=0", "limit"), (f"{PAYMENTS}?from=yesterday", "from"), (f"{LEDGER}?kind=gift", "kind"),
        (f"{LEDGER}?limit=101", "limit"),
    ],
)  # fmt: skip
async def test_invalid_filters_are_refused(api: Api, path: str, param: str) -> None:
    error = refused(await api.as_session("GET", path), 400, "invalid_parameter")
    assert error["param"] == param


async def add_operations(api: Api) -> AccountState:
    """A credit, a hold that is charged in part, one that is released, and a charge-back below zero."""
    state = AccountState(api.account_id)
    at = api.now

    async def add(operation: Any) -> None:
        nonlocal at
        assert isinstance(operation, Operation)
        state.apply(operation)
        columns = {column.name: getattr(operation, column.name) for column in tables.operations.columns}
        await api.write(tables.operations.insert().values(**columns))
        for line, posting in enumerate(operation.postings):
            await api.write(
                tables.postings.insert().values(
                    account_id=api.account_id, number=operation.number, line=line, **posting._asdict()
                )
            )
        at += timedelta(minutes=1)

    await add(decide_credit(
        state, operation_id="op_1", amount_micro=10_000_000, source="cardprovider", reference="ord_1",
        reason="payment_succeeded", at=at,
    ))  # fmt: skip
    for number, hold_id in ((2, "hold_1"), (3, "hold_2")):
        await add(decide_hold(
            state, operation_id=f"op_{number}", hold_id=hold_id, amount_micro=240_000, reference="task_1", at=at
        ))  # fmt: skip
    await add(decide_capture(
        state, operation_id="op_4", hold_id="hold_1", charge_micro=200_000, reference="task_1",
        reason="task succeeded", at=at,
    ))  # fmt: skip
    await add(decide_release(
        state, operation_id="op_5", hold_id="hold_2", reference="task_1", reason="task canceled", at=at
    ))  # fmt: skip
    await add(decide_reversal(
        state, operation_id="op_6", amount_micro=10_000_000, source="cardprovider", reference="ord_1",
        reason="dispute_lost", at=at,
    ))  # fmt: skip
    return state


async def test_the_statement_lists_every_operation_and_the_totals_after_it(api: Api) -> None:
    await add_operations(api)
    api.rows.reads = 0
    data = (await read(api, LEDGER))["data"]
    assert api.rows.reads == 2
    assert [
        (each["kind"], each["amount"], each["balance_change"], each["balance"], each["held_total"],
         each["available_balance"])
        for each in reversed(data)
    ] == [
        ("credit", "10.00", "10.00", "10.00", "0.00", "10.00"),
        ("hold", "0.24", "0.00", "10.00", "0.24", "9.76"),
        ("hold", "0.24", "0.00", "10.00", "0.48", "9.52"),
        ("capture", "0.20", "-0.20", "9.80", "0.24", "9.56"),
        ("release", "0.24", "0.00", "9.80", "0.00", "9.80"),
        ("reversal", "10.00", "-10.00", "-0.20", "0.00", "-0.20"),
    ]  # fmt: skip
    assert data[0] == {
        "operation_id": "op_6",
        "number": 6,
        "kind": "reversal",
        "amount": "10.00",
        "balance_change": "-10.00",
        "balance": "-0.20",
        "held_total": "0.00",
        "available_balance": "-0.20",
        "reference": "ord_1",
        "reason": "dispute_lost",
        "at": "2026-11-20T12:05:00.000Z",
        "postings": [
            {"ledger_account": "available", "amount": "-9.80", "lot": 1},
            {"ledger_account": "available", "amount": "-0.20", "lot": None},
            {"ledger_account": "cash:cardprovider", "amount": "10.00", "lot": None},
        ],
    }


async def test_the_statement_pages_by_number_and_filters_by_kind_and_time(api: Api) -> None:
    await add_operations(api)
    found = await pages(api, f"{LEDGER}?limit=4")
    assert [[each["number"] for each in page] for page in found] == [[6, 5, 4, 3], [2, 1]]
    for query, wanted in (
        ("kind=hold", [3, 2]),
        ("from=2026-11-20T12:04:00Z", [6, 5]),
        ("to=2026-11-20T12:01:00Z", [1]),
    ):
        body = await read(api, f"{LEDGER}?{query}")
        assert [each["number"] for each in body["data"]] == wanted


async def test_the_statement_is_exported_as_a_file_with_the_same_filters(api: Api) -> None:
    await add_operations(api)
    response = await api.as_session("GET", f"{LEDGER}?format=csv")
    text = response.text
    assert response.status_code == 200, text
    assert response.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert response.headers["Content-Disposition"] == 'attachment; filename="statement.csv"'
    lines = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    shown = (await read(api, LEDGER))["data"]
    assert lines == [{name: str(value) for name, value in entry.items() if name != "postings"} for entry in shown]
    assert lines[0]["balance_change"] == "-10.00"
    for query, numbers in (("kind=hold", ["3", "2"]), ("limit=2", ["6", "5"]), ("to=2026-11-20T12:01:00Z", ["1"])):
        response = await api.as_session("GET", f"{LEDGER}?format=csv&{query}")
        text = response.text
        assert [each["number"] for each in csv.DictReader(io.StringIO(text, newline=""))] == numbers
    refused(await api.as_session("GET", f"{LEDGER}?format=xml"), 400, "invalid_parameter")
    refused(await api.as_session("GET", f"{LEDGER}?format=csv&cursor=abc"), 400, "invalid_cursor")


async def test_a_long_statement_is_a_file_of_several_reads(api: Api) -> None:
    await add_operations(api)
    await api.write(
        sqlalchemy.text(
            "insert into operations (account_id, number, operation_id, kind, amount_micro, balance_after_micro, "
            "held_after_micro, hold_id, reference, reason, at, chain_hash) "
            "select :account, n, 'op_' || n, 'credit', n, n, 0, null, 'ord_1', 'paid', :at, '' "
            "from generate_series(7, 600) n"
        ).bindparams(account=api.account_id, at=api.now + timedelta(hours=1))
    )
    api.rows.reads = 0
    response = await api.as_session("GET", f"{LEDGER}?format=csv")
    text = response.text
    found = [int(each["number"]) for each in csv.DictReader(io.StringIO(text, newline=""))]
    assert found == list(range(600, 0, -1))
    assert api.rows.reads == 1 + 3


async def test_another_accounts_statement_is_not_readable(api: Api) -> None:
    await add_operations(api)
    token = "hst_" + "B" * 43
    await api.add_session(api.other_account_id, "ses_2", token)
    response = await api.call("GET", LEDGER, credential=token)
    assert response.json() == {"data": [], "next_cursor": None}
