"""The books over all accounts, over HTTP."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.clients import refused

from holdfast.persistence.records import tables

if TYPE_CHECKING:
    import httpx2
    from tests.http.api import Api


async def ask(api: Api, path: str) -> httpx2.Response:
    return await api.call(
        "GET",
        f"/ops/api/books/{path}",
        credential=api.deps.settings.operator_token,
    )


async def capture(api: Api, number: int, amount_micro: int, days: int) -> None:
    values: dict[str, Any] = {"account_id": api.account_id, "number": number}
    operation = {
        "operation_id": f"op_{number}", "kind": "capture", "amount_micro": amount_micro, "balance_after_micro": 0,
        "held_after_micro": 0, "hold_id": f"hold_{number}", "reference": f"task_{number}", "reason": "done",
        "at": api.now - timedelta(days=days), "chain_hash": bytes(32),
    }  # fmt: skip
    await api.write(tables.operations.insert().values(values | operation))
    for line, (account, amount) in enumerate((("held", -amount_micro), ("revenue", amount_micro))):
        posting = {"line": line, "ledger_account": account, "amount_micro": amount}
        await api.write(tables.postings.insert().values(values | posting))
    await api.add_task(api.task(f"task_{number}", at=api.now - timedelta(days=days)))


async def test_the_trial_balance_says_whether_it_is_balanced(api: Api) -> None:
    await capture(api, 1, 250_000, 0)
    body = (await ask(api, "trial-balance")).json()
    assert body.pop("at").endswith("Z")
    assert body == {
        "currency": "USD",
        "ledger_accounts": [
            {"ledger_account": "held", "balance": "-0.25", "postings": 1},
            {"ledger_account": "revenue", "balance": "0.25", "postings": 1},
        ],
        "total": "0.00",
        "stored_balance": "10.00",
        "stored_held": "0.24",
        "is_balanced": False,
    }
    await api.write(tables.accounts.update().values(balance_micro=-250_000, held_micro=-250_000))
    await api.write(
        tables.accounts.update()
        .where(tables.accounts.c.id == api.other_account_id)
        .values(balance_micro=0, held_micro=0)
    )
    assert (await ask(api, "trial-balance")).json()["is_balanced"]


async def test_liabilities_are_shown_as_amounts(api: Api) -> None:
    body = (await ask(api, "liabilities")).json()
    assert body.pop("at").endswith("Z")
    assert body == {
        "currency": "USD",
        "accounts": 2,
        "accounts_with_credit": 1,
        "accounts_overdrawn": 0,
        "credit": "10.00",
        "overdrawn": "0.00",
        "held": "0.24",
        "holds_open": 0,
        "holds_open_total": "0.00",
    }


async def test_revenue_is_listed_by_day_and_name(api: Api) -> None:
    for number, (amount_micro, days) in enumerate(((1_000_000, 0), (2_000_000, 0), (500_000, 1), (9_000_000, 40))):
        await capture(api, number, amount_micro, days)
    body = (await ask(api, "revenue")).json()
    # Until now, so that what is captured at this moment is not part of it.
    assert (body["since"], body["until"]) == ("2026-10-21T00:00:00.000Z", "2026-11-20T12:00:00.000Z")
    assert body["data"] == [{"day": "2026-11-19", "name": "", "captures": 1, "amount": "0.50"}]
    body = (await ask(api, "revenue?by=provider&from=2026-01-01&to=2026-11-21")).json()
    assert [tuple(line.values()) for line in body["data"]] == [
        ("2026-10-11", "studio", 1, "9.00"),
        ("2026-11-19", "studio", 1, "0.50"),
        ("2026-11-20", "studio", 2, "3.00"),
    ]
    assert (body["captures"], body["total"]) == (4, "12.50")


@pytest.mark.parametrize(
    "query", ["by=week", "from=2020-01-01&to=2026-01-01", "from=x", "from=2027-01-01", "to=0001-01-01"]
)
async def test_an_invalid_time_of_revenue_is_refused(api: Api, query: str) -> None:
    refused(await ask(api, f"revenue?{query}"), 400, "invalid_parameter")
