"""An account's totals at a time, from the journal."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, text, update
from tests.clients import ok, refused
from tests.made_statements import START, made_history
from tests.persistence.read_costs import Reads

from holdfast.ledger.values import format_amount, format_time
from holdfast.persistence.queries.ledger import totals_at
from holdfast.persistence.records import tables

from .api import Api
from .identities import ACCOUNT, OTHER_ACCOUNT
from .test_signed_statements import add_history

COUNT, PART = 100_000, 50_000
PATH = "/v2/control/account"


@pytest.fixture
async def aged(api: Api) -> Api:
    """The API, whose accounts are as old as made histories."""
    await api.write(update(tables.accounts).values(created_at=START))
    return api


async def at(api: Api, time: datetime | str) -> dict[str, Any]:
    sent = time if isinstance(time, str) else format_time(time)
    return ok(await api.as_session("GET", f"{PATH}?at={sent}"))


async def test_the_totals_at_a_time_are_those_after_its_last_operation(aged: Api) -> None:
    history = made_history(300, seed=3, account_id=ACCOUNT)
    await add_history(aged, history)
    await add_history(aged, made_history(50, seed=4, account_id=OTHER_ACCOUNT))
    chance = random.Random(1)
    times = [each.at + timedelta(milliseconds=chance.choice((-1, 0, 1))) for each in chance.sample(history, 40)]
    for time in [START, *times, aged.now]:
        before = [each for each in history if each.at <= time]
        balance, held = (before[-1].balance_after_micro, before[-1].held_after_micro) if before else (0, 0)
        assert await at(aged, time) == {
            "account_id": ACCOUNT,
            "balance": format_amount(balance),
            "held_total": format_amount(held),
            "available_balance": format_amount(balance - held),
            "tier": {},
        }
    # The totals of the last operations of one instant, and a date is its midnight.
    assert await at(aged, "2026-02-01") == await at(aged, "2026-02-01T00:00:00Z")
    assert await at(aged, "2026-02-01T02:00:00%2B02:00") == await at(aged, "2026-02-01")


async def test_a_time_without_totals_is_refused(aged: Api) -> None:
    later, earlier = aged.now + timedelta(milliseconds=1), START - timedelta(milliseconds=1)
    for sent in (format_time(later), format_time(earlier), "soon", "", "1767225600", "2026-01-02T00:00:00"):
        assert refused(await aged.as_session("GET", f"{PATH}?at={sent}"), 400, "invalid_parameter")["param"] == "at"
    twice = await aged.as_session("GET", f"{PATH}?at=2026-02-01&at=2026-02-02")
    refused(twice, 400, "invalid_parameter")
    refused(await aged.call("GET", f"{PATH}?at=2026-02-01", credential="hst_" + "x" * 43), 401, "invalid_session")


async def test_totals_at_a_time_have_a_tag(aged: Api) -> None:
    await add_history(aged, made_history(20, account_id=ACCOUNT))
    path = f"{PATH}?at={format_time(aged.now)}"
    tag = (await aged.as_session("GET", path)).headers["ETag"]
    assert (await aged.as_session("GET", path, headers={"If-None-Match": tag})).status_code == 304
    first = await aged.as_session("GET", f"{PATH}?at={format_time(START)}", headers={"If-None-Match": tag})
    assert ok(first)["balance"] == "0.00"


async def test_however_many_operations_there_are_few_are_read(aged: Api) -> None:
    def fill(rows: Connection, first: int) -> None:
        rows.execute(
            text(
                "insert into operations (operation_id, account_id, number, kind, amount_micro, "
                "balance_after_micro, held_after_micro, reference, reason, at, chain_hash) "
                "select 'op_' || n, :account_id, n, 'credit', 1, n, 0, 'r', 'r', "
                ":start + make_interval(secs => n), '' from generate_series(:first, :last) n"
            ),
            {"account_id": ACCOUNT, "start": START, "first": first, "last": first + PART - 1},
        )

    def read(rows: Connection) -> None:
        found = totals_at(rows, ACCOUNT, START + timedelta(seconds=COUNT // 3))
        assert found is not None
        assert found.balance_micro == COUNT // 3

    for first in range(1, COUNT + 1, PART):
        await aged.database.work(fill, first)
    buffers, plans = await aged.database.read(lambda rows: Reads(rows).cost(read, of=("operations",)))
    assert "Seq Scan" not in plans, plans
    # Each of the numbers that are tried is found by the index, from its root.
    assert buffers < 6 * COUNT.bit_length(), plans
