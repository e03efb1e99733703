"""Totals of usage over HTTP: what is asked for, what is refused, and the file."""

from __future__ import annotations

import csv
import io
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import trio
from tests.clients import ok, refused

from holdfast.ledger.credit.operations import Operation, OperationKind, Posting
from holdfast.ledger.values import utc_now
from holdfast.persistence.journal.units import Committed, Unit
from holdfast.persistence.journal.writer import BatchWriter
from holdfast.persistence.queries import usage_totals as queries
from holdfast.persistence.records.resulting_rows import usage_counted_row
from holdfast.persistence.records.rows import NewTaskRow, Row, TaskChangedRow

if TYPE_CHECKING:
    import httpx2
    from tests.http.api import Api

PATH = "/v2/usage/totals"
FORMULA = '=HYPERLINK("http://evil.test")'


async def add_used(
    api: Api,
    name: str,
    at: datetime,
    *,
    status: str | None = "succeeded",
    cost_micro: int = 0,
    account_id: str | None = None,
    model: str | None = None,
    **request: Any,
) -> None:
    """Write a task that was created ``at``, and its end unless ``status`` is None."""
    task = api.task(name)
    task = msgspec.structs.replace(
        task,
        account_id=account_id or task.account_id,
        model=model or task.model,
        created_at=at,
        request=msgspec.structs.replace(task.request, hold_id=f"hold_{name}", **request),
    )
    hold = Operation(
        operation_id=f"op_{name}", account_id=task.account_id, number=int(name.rpartition("_")[2]),
        kind=OperationKind.HOLD, amount_micro=9, postings=(Posting("held", 9),), balance_after_micro=0,
        held_after_micro=0, hold_id=f"hold_{name}", reference=name, reason="", at=at, chain_hash=bytes(32),
    )  # fmt: skip
    rows: list[Row] = [NewTaskRow(task), hold]
    if status is not None:
        state = msgspec.structs.replace(task.state, cost_micro=cost_micro)
        ended = msgspec.structs.replace(task, version=2, status=status, wake_at=None, state=state)
        kind = OperationKind.CAPTURE if status == "succeeded" else OperationKind.RELEASE
        settled = msgspec.structs.replace(hold, operation_id=f"op_{name}_2", number=hold.number + 1000, kind=kind)
        rows += [TaskChangedRow(ended, "proc_1", has_new_usage=True), usage_counted_row(ended), settled]

    def write() -> None:
        with closing(BatchWriter(api.database.keep_writer(), now=utc_now)) as writer:
            assert writer.write([Unit(rows=tuple(rows))]) == [Committed()]

    await trio.to_thread.run_sync(write)


async def totals(api: Api, query: str = "") -> dict[str, Any]:
    found: dict[str, Any] = ok(await api.as_session("GET", f"{PATH}?{query}" if query else PATH))
    return found


async def as_operator(api: Api, path: str) -> httpx2.Response:
    return await api.call("GET", path, credential=api.deps.settings.operator_token)


def short(body: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return the values of each group, the count and the cost."""
    return [
        (*(each[name] for name in body["group_by"]), each["count"], each["cost_credits"]) for each in body["data"]
    ]


async def test_a_group_has_its_values_and_all_others_are_null(api: Api) -> None:
    await add_used(api, "task_1", api.now, cost_micro=48_000, metadata={"end_user": "ann"})
    await add_used(api, "task_2", api.now, cost_micro=2_000, metadata={"end_user": "ann", "more": "x"})
    await add_used(api, "task_3", api.now, status="failed")
    await add_used(api, "task_4", api.now, status=None, metadata={"end_user": ""})
    usual = {"day": None, "model": None, "api_key_id": None}
    assert await totals(api, "group_by=status,end_user") == {
        "group_by": ["status", "end_user"],
        "time_zone": "UTC",
        "from": "2026-10-21T00:00:00.000Z",
        "to": "2026-11-21T00:00:00.000Z",
        "data": [
            {**usual, "status": "failed", "end_user": None, "count": 1, "cost_credits": "0.00"},
            {**usual, "status": "queued", "end_user": None, "count": 1, "cost_credits": "0.00"},
            {**usual, "status": "succeeded", "end_user": "ann", "count": 2, "cost_credits": "0.05"},
        ],
        "count": 4,
        "cost_credits": "0.05",
    }
    assert (await totals(api, f"to={api.now.isoformat()[:19]}Z"))["count"] == 0
    assert short(await totals(api)) == [("2026-11-20", 4, "0.05")]
    assert short(await totals(api, "group_by=end_user,day")) == [
        (None, "2026-11-20", 2, "0.00"),
        ("ann", "2026-11-20", 2, "0.05"),
    ]
    assert short(await totals(api, "group_by=api_key_id")) == [(api.key_id, 4, "0.05")]


async def test_totals_are_of_what_filters_select_and_name_their_groups(api: Api) -> None:
    for number in range(6):
        end_user = ("ann", "bea", "")[number % 3]
        await add_used(
            api, f"task_{number}", api.now, cost_micro=10**number * 10_000,
            status="failed" if number == 5 else "succeeded",
            model=f"studio/{number % 2}", api_key_id=f"key_{number // 3}",
            metadata={"end_user": end_user, "project": f"p{number % 2}"},
        )  # fmt: skip
    assert short(await totals(api, "model=studio/0")) == [("2026-11-20", 3, "101.01")]
    assert short(await totals(api, "group_by=status&api_key_id=key_1")) == [
        ("failed", 1, "1000.00"),
        ("succeeded", 2, "110.00"),
    ]
    assert short(await totals(api, "group_by=model&end_user=ann")) == [
        ("studio/0", 1, "0.01"),
        ("studio/1", 1, "10.00"),
    ]
    assert short(await totals(api, "group_by=end_user&status=succeeded&model=studio/0")) == [
        (None, 1, "1.00"), ("ann", 1, "0.01"), ("bea", 1, "100.00"),
    ]  # fmt: skip
    body = await totals(api, "group_by=end_user,day&metadata[project]=p1")
    assert body["group_by"] == ["end_user", "day"]
    assert short(body) == [
        (None, "2026-11-20", 1, "1000.00"), ("ann", "2026-11-20", 1, "10.00"), ("bea", "2026-11-20", 1, "0.10"),
    ]  # fmt: skip
    assert (body["count"], body["cost_credits"]) == (3, "1010.10")
    assert (await totals(api, "end_user=none"))["data"] == []
    operators = f"/ops/api/accounts/{api.account_id}/usage/totals?model=studio/0"
    assert short(ok(await as_operator(api, operators))) == [("2026-11-20", 3, "101.01")]
    file = await api.as_session("GET", f"{PATH}?group_by=model&end_user=ann&format=csv")
    assert file.text.splitlines() == ["model,count,cost_credits", "studio/0,1,0.01", "studio/1,1,10.00"]


async def test_a_day_is_that_of_the_time_zone_and_a_date_its_midnight(api: Api) -> None:
    midnight = datetime(2026, 11, 17, 18, 15, tzinfo=UTC)
    for number, at in enumerate((midnight - timedelta(microseconds=1), midnight, midnight + timedelta(days=1))):
        await add_used(api, f"task_{number}", at, cost_micro=10**number * 10_000)
    nepal = "time_zone=Asia/Kathmandu"
    days = [("2026-11-17", 1, "0.01"), ("2026-11-18", 1, "0.10"), ("2026-11-19", 1, "1.00")]
    assert short(await totals(api, nepal)) == days
    assert short(await totals(api, f"{nepal}&from=2026-11-18&to=2026-11-19")) == days[1:2]
    assert short(await totals(api, f"{nepal}&from=2026-11-17T18:14:59.999999Z&to=2026-11-17T18:15:00Z")) == days[:1]
    assert short(await totals(api, f"{nepal}&from=2026-11-18&group_by=status")) == [("succeeded", 2, "1.10")]
    assert short(await totals(api, "from=2026-11-17&to=2026-11-18")) == [("2026-11-17", 2, "0.11")]
    body = await totals(api, f"{nepal}&from=2026-11-18&to=2026-11-19T00:00:00+05:45")
    assert (body["from"], body["to"]) == ("2026-11-17T18:15:00.000Z", "2026-11-18T18:15:00.000Z")


async def test_another_accounts_usage_is_not_counted(api: Api) -> None:
    await add_used(api, "task_1", api.now - timedelta(hours=1), account_id=api.other_account_id)
    await add_used(api, "task_2", api.now - timedelta(hours=1), account_id=api.other_account_id, status=None)
    assert (await totals(api))["count"] == 0
    path = f"/ops/api/accounts/{api.other_account_id}/usage/totals?group_by=status"
    assert short(ok(await as_operator(api, path))) == [("queued", 1, "0.00"), ("succeeded", 1, "0.00")]


@pytest.mark.parametrize(
    ("query", "param", "said"),
    [
        ("group_by=", "group_by", "must be of day, model, api_key_id, status, end_user, not ''"),
        ("group_by=hour", "group_by", "must be of day, model, api_key_id, status, end_user, not 'hour'"),
        ("group_by=day,", "group_by", "must be of"),
        ("group_by=day,%20model", "group_by", "not ' model'"),
        ("group_by=day,model,status", "group_by", "must name one or two groups, not 'day,model,status'"),
        ("group_by=model,model", "group_by", "must not name a group twice, not 'model,model'"),
        ("group_by=day&group_by=model", "group_by", "was sent 2 times"),
        ("time_zone=Mars/Olympus", "time_zone", "must be the IANA name of a time zone, not 'Mars/Olympus'"),
        ("time_zone=localtime", "time_zone", "must be the IANA name"),
        ("time_zone=Factory", "time_zone", "must be the IANA name"),
        ("time_zone=europe/berlin", "time_zone", "must be the IANA name"),
        ("time_zone=../../etc/passwd", "time_zone", "must be the IANA name"),
        ("time_zone=%2B02:00", "time_zone", "must be the IANA name"),
        ("time_zone=", "time_zone", "must be the IANA name"),
        ("time_zone=UTC&time_zone=UTC", "time_zone", "was sent 2 times"),
        ("from=2026-11-20&to=2026-11-19", "from", "must be earlier than to"),
        ("from=2026-11-20&to=2026-11-20", "from", "must be earlier than to"),
        ("from=2027-01-01", "from", "must be earlier than to"),
        ("from=2025-11-18&to=2026-11-20", "from", "must be at most 366 days before to"),
        ("from=yesterday", "from", "must be an RFC 3339 time"),
        ("from=0001-01-01", "from", "must be from 1972 to 9998"),
        ("to=0001-01-01&time_zone=Asia/Tokyo", "to", "must be an RFC 3339 time"),
        ("to=9999-12-31", "to", "must be from 1972 to 9998"),
        ("format=xml", "format", "must be one of json, csv"),
        ("limit=5", "limit", "does not exist here"),
    ],
)
async def test_what_cannot_be_summed_is_refused_by_name(api: Api, query: str, param: str, said: str) -> None:
    for path in (PATH, f"/ops/api/accounts/{api.account_id}/usage/totals"):
        asked = f"{path}?{query}"
        answer = await api.as_session("GET", asked) if path == PATH else await as_operator(api, asked)
        error = refused(answer, 400, "invalid_parameter")
        assert error["param"] == param
        assert said in error["message"] or param == "format"


async def test_a_leap_year_in_a_zone_with_two_offsets_is_not_too_long(api: Api) -> None:
    query = "from=2024-01-01&to=2025-01-01&time_zone=America/New_York"
    assert (await totals(api, query))["from"] == "2024-01-01T05:00:00.000Z"


async def test_more_groups_than_a_response_has_are_refused(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        metadata = {"end_user": f"user_{number}"}
        await add_used(api, f"task_{number}", api.now - timedelta(hours=1), metadata=metadata)
    monkeypatch.setattr(queries, "GROUPS_MAX", 2)
    error = refused(await api.as_session("GET", f"{PATH}?group_by=end_user"), 400, "invalid_parameter")
    assert (error["param"], "choose a shorter one" in error["message"]) == ("group_by", True)
    assert (await totals(api, "group_by=model"))["count"] == 3


async def test_the_file_has_the_groups_and_no_cell_is_a_formula(api: Api) -> None:
    at = api.now - timedelta(hours=1)
    await add_used(api, "task_1", at, cost_micro=12_000, metadata={"end_user": FORMULA})
    await add_used(api, "task_2", at, cost_micro=1, metadata={"end_user": 'a "b", c'})
    await add_used(api, "task_3", at, status="canceled")
    response = await api.as_session("GET", f"{PATH}?format=csv&group_by=day,end_user")
    assert response.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert response.headers["Content-Disposition"] == 'attachment; filename="usage-totals.csv"'
    assert list(csv.reader(io.StringIO(response.text, newline=""), strict=True)) == [
        ["day", "end_user", "count", "cost_credits"],
        ["2026-11-20", "", "1", "0.00"],
        ["2026-11-20", f"'{FORMULA}", "1", "0.012"],
        ["2026-11-20", 'a "b", c', "1", "0.000001"],
    ]
    assert (await api.as_session("GET", f"{PATH}?format=csv&to=2026-01-01")).text == "day,count,cost_credits\r\n"


async def test_the_log_names_the_end_user_and_is_filtered_by_it(api: Api) -> None:
    await add_used(api, "task_1", api.now - timedelta(hours=1), metadata={"end_user": "ann"})
    await add_used(api, "task_2", api.now - timedelta(hours=2), status=None)
    log = ok(await api.as_session("GET", "/v2/usage/logs"))["data"]
    assert [(each["request_id"], each["end_user"]) for each in log] == [("task_1", "ann"), ("task_2", None)]
    log = ok(await api.as_session("GET", "/v2/usage/logs?end_user=ann"))["data"]
    assert [each["request_id"] for each in log] == ["task_1"]


async def test_an_operator_asks_for_an_account_that_exists(api: Api) -> None:
    refused(await as_operator(api, "/ops/api/accounts/acct_none/usage/totals"), 404, "account_not_found")
