"""Operators' lists of everything over HTTP: filters, totals, pages and CSV files; and the database's state."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text
from tests.clients import ok, refused

from holdfast.persistence.queries import newest

from .page_reader import PageReader
from .test_operated_accounts import WHY, operator

if TYPE_CHECKING:
    from tests.http.api import Api


async def read(api: Api, path: str) -> Any:
    return ok(await api.call("GET", f"/ops/api/{path}", headers=operator(api)))


async def table(api: Api, path: str) -> list[dict[str, str]]:
    text = (await api.call("GET", f"/ops/api/{path}format=csv", headers=operator(api))).text
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


async def test_accounts_are_listed_with_totals_and_as_a_file(api: Api) -> None:
    found = await read(api, "all-accounts?limit=1")
    assert found["totals"] == [{"name": "open", "count": 2, "amount": "10.00", "currency": "USD"}]
    second = await read(api, f"all-accounts?limit=1&cursor={found['next_cursor']}")
    ids = {each["account_id"] for each in (*found["data"], *second["data"])}
    assert ids == {api.account_id, api.other_account_id}
    assert (second["totals"], second["next_cursor"]) == ([], None)
    part = api.other_account_id[-6:].upper()
    sought = await read(api, f"all-accounts?email={part}%40exam&state=open")
    assert [each["account_id"] for each in sought["data"]] == [api.other_account_id]
    assert sought["totals"][0]["count"] == 1
    largest = await read(api, "all-accounts?order=balance&limit=1")
    assert (largest["data"][0]["balance"], largest["next_cursor"]) == ("10.00", None)
    assert (await read(api, "all-accounts?order=spent&days=30"))["data"] == []
    lines = await table(api, "all-accounts?")
    assert {line["account_id"] for line in lines} == ids
    assert lines[0].keys() == found["data"][0].keys()
    wrong = await api.call("GET", "/ops/api/all-accounts?order=name", headers=operator(api))
    refused(wrong, 400, "invalid_parameter")


@pytest.mark.parametrize("listed", ["accounts", "tasks"])
async def test_a_time_that_cannot_be_read_is_named_by_its_list(api: Api, listed: str) -> None:
    await api.add_task(api.task("task_1"))
    await api.add_task(api.task("task_2"))
    row_id = {"accounts": api.other_account_id, "tasks": "task_1"}[listed]
    column = {"accounts": "id", "tasks": "request_id"}[listed]
    await api.write(text(f"update {listed} set created_at = 'infinity' where {column} = '{row_id}'"))
    for order in ("", "?order=balance") if listed == "accounts" else ("",):
        found = await read(api, f"all-{listed}{order}")
        assert (found["unreadable"], len(found["data"])) == ([row_id], 1)


POISON = (
    "insert into poison_messages (poison_id, group_name, key, message_type, body_mac, state, first_at, last_at, "
    "crashes, reason_type, reason, incarnation, replays) select 'poi_' || n, 'accounts', 'acct_1', 'Ask', "
    "decode(to_hex(n + 16), 'hex'), 'kept', now(), now(), 1, 'ValueError', 'no', 1, 0 from generate_series(1, 2) n"
)
SPENT = (
    "insert into operations select 'op_' || id, id, 90, 'capture', 1000000, 0, 0, null, 'task_1', 'captured', "
    "now(), '\\x00' from accounts"
)
CHANGES = (
    "insert into account_changes (account_id, at, what, change_id) select id, now(), 'limits_set', 'chg_' || n "
    "from accounts, generate_series(1, 2) n"
)


CLOSING = "update accounts set closes_at = now()"


@pytest.mark.parametrize("value", ["infinity", "-infinity"])
@pytest.mark.parametrize(
    "listed",
    [
        ("poison", POISON, "poison_messages set first_at = '{}' where poison_id = 'poi_1'", "poi_1"),
        ("closing-accounts", CLOSING, "accounts set closes_at = '{}' where id = '{id}'", "{id}"),
        ("all-accounts?order=spent&days=30", SPENT, "accounts set created_at = '{}' where id = '{id}'", "{id}"),
    ],
    ids=["poison", "closings", "spend"],
)
async def test_a_time_that_cannot_be_read_closes_no_list_of_operators(
    api: Api, listed: tuple[str, str, str, str], value: str
) -> None:
    path, planted, damage, unreadable = listed
    await api.write(text(planted))
    await api.write(text(f"update {damage.format(value, id=api.other_account_id)}"))
    found = await read(api, path)
    assert (found["unreadable"], len(found["data"])) == ([unreadable.format(id=api.other_account_id)], 1)


@pytest.mark.parametrize("value", ["infinity", "-infinity"])
async def test_a_time_that_cannot_be_read_closes_no_history(api: Api, value: str) -> None:
    await api.write(text(CHANGES))
    await api.write(text(f"update account_changes set at = '{value}' where change_id = 'chg_1'"))
    found = ok(await api.as_session("GET", "/v2/control/history"))
    assert (found["unreadable"], len(found["data"])) == (["chg_1"], 1)


async def test_tasks_of_every_status_are_listed(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        await api.add_task(api.task(f"task_{number}"))
    found = await read(api, "all-tasks?limit=2")
    assert [each["task"]["request_id"] for each in found["data"]] == ["task_2", "task_1"]
    status = found["data"][0]["task"]["status"]
    assert found["totals"] == [{"name": status, "count": 3, "amount": None, "currency": None}]
    assert [line["request_id"] for line in await table(api, "all-tasks?provider=studio&")] == [
        "task_2", "task_1", "task_0",
    ]  # fmt: skip
    # A page that has read as many as it may goes on where it ended; a file does so by itself.
    monkeypatch.setitem(newest._LISTS, "tasks", newest._LISTS["tasks"]._replace(scanned_max=2))
    none = await read(api, "all-tasks?model=none")
    assert none["data"] == []
    assert (await read(api, f"all-tasks?model=none&cursor={none['next_cursor']}"))["next_cursor"] is None
    assert len(await table(api, "all-tasks?provider=studio&")) == 3


async def test_coupons_are_listed_by_their_state(api: Api, browser: PageReader) -> None:
    for code in ("FIRST-CODE", "SECOND-CODE"):
        made = await api.call(
            "POST", "/ops/api/coupons", json={"amount": "5.00", "code": code, **WHY}, headers=operator(api)
        )
    ended = f"/ops/api/coupons/{ok(made)['coupon_id']}/end"
    ok(await api.call("POST", ended, json=WHY, headers=operator(api)))
    found = await read(api, "coupons?state=open")
    assert [each["code_prefix"] for each in found["data"]] == ["FIR"]
    assert found["totals"] == [{"name": "open", "count": 1, "amount": "0.00", "currency": "USD"}]
    assert [line["code_prefix"] for line in await table(api, "coupons?")] == ["SEC", "FIR"]
    page = await browser.read("/ops/coupons?state=ended")
    assert "SEC…" in page.text
    assert "FIR…" not in page.text
    assert "/ops/api/coupons?state=ended&from=&to=&format=csv" in page.links


async def test_orders_of_every_status_are_listed(api: Api) -> None:
    found = await read(api, "all-orders?status=credited&origin=customer")
    assert (found["data"], found["totals"], found["are_totals_cut"]) == ([], [], False)
    assert await table(api, "all-orders?") == []


@pytest.mark.parametrize(
    ("path", "title", "section"),
    [
        ("/ops/accounts", "Accounts", "/ops/accounts"),
        ("/ops/accounts/{account_id}", "{account_id}@example.com · Account", "/ops/accounts"),
        ("/ops/tasks", "Unfinished tasks", "/ops/tasks"),
        ("/ops/tasks/task_1", "task_1 · Task", "/ops/all-tasks"),
    ],
)
async def test_title_and_mark_say_where_one_is(
    api: Api, browser: PageReader, path: str, title: str, section: str
) -> None:
    await api.add_task(api.task("task_1"))
    text = (await browser.get(path.format(account_id=api.account_id))).text
    assert f"<title>{title.format(account_id=api.account_id)} · Holdfast</title>" in text
    assert text.count('aria-current="page"') == 1
    assert f'<a href="{section}" aria-current="page">' in text


async def test_the_state_of_the_database_has_a_page(api: Api, browser: PageReader) -> None:
    # One table is larger than all others, which are nearly empty and of which only twenty are listed.
    await api.write(text(CHANGES.replace("(1, 2)", "(1, 20000)")))
    found = await read(api, "database")
    assert "statements" in found["missing"]
    sizes = [each["total_bytes"] for each in found["tables"]]
    assert (len(sizes), sizes) == (20, sorted(sizes, reverse=True))
    assert found["tables"][0]["table"] == "account_changes"
    page = (await browser.read("/ops/database")).text
    for words in (
        "Not shown: the extension pg_stat_statements",
        "No statement waits for a lock",
        "account_changes",
    ):
        assert words in page, words
