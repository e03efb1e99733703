"""Lists as CSV files: complete, filtered, safe for spreadsheets, and read only while a client reads."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import httpx2
import msgspec
import pytest
import sqlalchemy
import trio
from hypothesis import given
from hypothesis import strategies as st
from tests.clients import refused

from holdfast.http.endpoints.tasks.usage_log import COLUMNS
from holdfast.http.kit.listing import CSV_PAGE_ROWS, FORMULA_STARTS, csv_lines
from holdfast.persistence.server.database_faults import DatabaseAway

if TYPE_CHECKING:
    from tests.http.api import Api

T = TypeVar("T")

PATH = "/v2/usage/logs?format=csv"
FORMULA = '=HYPERLINK("http://evil.test","click")'


async def add_many(api: Api, count: int, *, error: str | None = None) -> None:
    """Write ``count`` lines, three at each microsecond before noon."""
    await api.write(
        sqlalchemy.text(
            "insert into usage_entries (account_id, request_id, ts, model, modality, api_key_id, status, "
            "billable_units, tokens_in, tokens_out, latency_ms, cost_micro, error, operation_id, status_history) "
            "select :account, 'task_' || lpad(n::text, 6, '0'), :noon - make_interval(secs => (n / 3) * 1e-6), "
            "'studio/image-1', 'image', 'key_1', 'succeeded', 1, 0, 0, n, n, :error, 'op_' || n, '[]' "
            "from generate_series(1, :count) n"
        ).bindparams(account=api.account_id, noon=api.now, count=count, error=error)
    )


async def lines(api: Api, query: str = "") -> list[dict[str, str]]:
    response = await api.as_session("GET", PATH + query)
    text = response.text
    assert response.status_code == 200, text
    assert response.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert response.headers["Content-Disposition"] == 'attachment; filename="usage.csv"'
    assert text.endswith("\r\n")
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


async def test_ten_thousand_lines_are_sent_in_short_reads(api: Api) -> None:
    count = 10_500
    await add_many(api, count)
    reads = api.rows.reads
    async with api.serving() as base, httpx2.AsyncClient(base_url=base) as client:
        text = (await client.get(PATH, headers={"Authorization": f"Bearer {api.session}"})).text
    found = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    # The session is looked up with the first page.
    assert api.rows.reads - reads == count // CSV_PAGE_ROWS + 1
    assert len({each["request_id"] for each in found}) == len(found) == count
    order = [(each["ts"], each["request_id"]) for each in found]
    # Times have milliseconds, so within one only the ids show the order.
    assert [at for at, _ in order] == sorted((at for at, _ in order), reverse=True)
    assert sum(int(each["latency_ms"]) for each in found) == count * (count + 1) // 2
    assert found[0]["cost_credits"].startswith("0.00")


async def test_a_line_has_every_column_as_text(api: Api) -> None:
    entry = api.usage_of(api.task("task_a"))
    await api.add_usage(msgspec.structs.replace(entry, cost_micro=12_000, latency_ms=7, tokens_out=3))
    assert await lines(api) == [
        {
            "request_id": "task_a",
            "ts": "2026-11-20T12:00:00.000Z",
            "model": "studio/image-1",
            "modality": "image",
            "status": "queued",
            "api_key_id": api.key_id,
            "billable_units": "0",
            "tokens_in": "0",
            "tokens_out": "3",
            "latency_ms": "7",
            "cost_credits": "0.012",
            "operation_id": "",
            "error": "",
            "end_user": "",
        }
    ]


async def test_an_empty_log_is_a_file_with_a_header(api: Api) -> None:
    response = await api.as_session("GET", PATH)
    assert response.text == ",".join(COLUMNS) + "\r\n"


@pytest.mark.parametrize(
    "evil",
    [
        FORMULA,
        "+1+1",
        "-2+3",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "\n=1",
        "\uff1d1+1",
        "\uff0b1",
        "\uff0d1",
        "\uff20SUM(A1)",
        '"quoted", with\r\nlines',
        "=\u00fc\u4e16\U0001f600",
    ],
)
async def test_no_cell_is_taken_for_a_formula(api: Api, evil: str) -> None:
    entry = api.usage_of(api.task("task_a"))
    await api.add_usage(msgspec.structs.replace(entry, error=evil, model=evil, api_key_id=evil))
    [line] = await lines(api)
    cell = evil if evil.startswith('"') else f"'{evil}"
    assert (line["error"], line["model"], line["api_key_id"]) == (cell, cell, cell)


@given(st.lists(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), min_size=2, max_size=4)))
def test_every_cell_is_read_back_and_starts_no_formula(table: list[list[str]]) -> None:
    raw = csv_lines(table).decode()
    found = list(csv.reader(io.StringIO(raw, newline=""), strict=True))
    assert [[cell.removeprefix("'") for cell in row] for row in found] == [
        [cell.removeprefix("'") for cell in row] for row in table
    ]
    assert not any(cell.startswith(FORMULA_STARTS) and not is_number(cell) for row in found for cell in row)


def is_number(cell: str) -> bool:
    """Whether a spreadsheet reads a cell as a number: of those that may start a formula, only one below zero."""
    return cell.startswith("-") and cell[1:].replace(".", "", 1).isdecimal()


def test_an_amount_below_zero_stays_a_number() -> None:
    assert csv_lines([["-1.50", "-2", "-2+3", "--1", "-1.5.0"]]) == b"-1.50,-2,'-2+3,'--1,'-1.5.0\r\n"


@pytest.mark.parametrize("form", ["", "&format=csv"])
async def test_every_filter_applies_to_pages_and_files(api: Api, form: str) -> None:
    entry = api.usage_of(api.task("task_0"))
    different: tuple[dict[str, Any], ...] = (
        {"status": "failed"},
        {"model": "studio/tone-1", "modality": "audio"},
        {"api_key_id": "key_other"},
        {"ts": api.now + timedelta(hours=1)},
    )
    for number, fields in enumerate(different):
        await api.add_usage(msgspec.structs.replace(entry, request_id=f"task_{number}", **fields))

    async def ids(query: str) -> list[str]:
        path = f"/v2/usage/logs?{query}{form}"
        response = await api.as_session("GET", path)
        assert response.status_code == 200
        if not form:
            return [each["request_id"] for each in (response.json())["data"]]
        text = response.text
        return [each["request_id"] for each in csv.DictReader(io.StringIO(text, newline=""))]

    assert await ids("") == ["task_3", "task_2", "task_1", "task_0"]
    assert await ids("status=failed") == ["task_0"]
    assert await ids("modality=audio") == await ids("model=studio/tone-1") == ["task_1"]
    assert await ids("api_key_id=key_other") == ["task_2"]
    assert await ids("from=2026-11-20T13:00:00Z") == ["task_3"]
    assert await ids("to=2026-11-20T13:00:00Z&status=queued") == ["task_2", "task_1"]
    assert await ids("api_key_id=key_other&modality=audio") == []
    assert await ids("limit=2") == ["task_3", "task_2"]


@pytest.mark.parametrize(
    ("query", "code", "param"),
    [
        ("status=done", "invalid_parameter", "status"),
        ("modality=smell", "invalid_parameter", "modality"),
        ("api_key_id=" + "k" * 513, "invalid_parameter", "api_key_id"),
        ("format=xml", "invalid_parameter", "format"),
        ("format=csv&format=csv", "invalid_parameter", "format"),
        ("format=", "invalid_parameter", "format"),
        ("format=csv&limit=0", "invalid_parameter", "limit"),
        ("format=csv&cursor=abc", "invalid_cursor", "cursor"),
        ("from=2026-11-20&to=2026-11-20", "invalid_parameter", "from"),
    ],
)
async def test_invalid_queries_are_refused_before_the_file_starts(
    api: Api, query: str, code: str, param: str
) -> None:
    error = refused(await api.as_session("GET", f"/v2/usage/logs?{query}"), 400, code)
    assert error["param"] == param


async def test_a_file_starts_after_a_cursor(api: Api) -> None:
    await add_many(api, 30)
    page = (await api.as_session("GET", "/v2/usage/logs?limit=10")).json()
    rest = await lines(api, f"&cursor={page['next_cursor']}")
    some = await lines(api, f"&cursor={page['next_cursor']}&limit=5")
    assert len(rest) == 20
    assert some == rest[:5]
    shown = {each["request_id"] for each in page["data"]}
    assert shown.isdisjoint(each["request_id"] for each in rest)


async def test_head_does_not_create_the_file(api: Api) -> None:
    response = await api.as_session("HEAD", PATH)
    assert (response.status_code, response.headers["Content-Type"]) == (200, "text/csv; charset=utf-8")
    assert response.content == b""


async def test_reading_stops_after_a_disconnect(api: Api) -> None:
    pages = 40
    await add_many(api, pages * CSV_PAGE_ROWS, error="x" * 500)
    async with api.serving() as base:
        host, port = base.removeprefix("http://").split(":")
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            head = f"GET {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.session}\r\n\r\n"
            await stream.send_all(head.encode())
            assert (await stream.receive_some(1000)).startswith(b"HTTP/1.1 200")
        seen = -1
        while seen != api.rows.reads:
            seen = api.rows.reads
            await trio.sleep(0.3)
    assert api.rows.reads < pages


class FailingRows:
    """Real rows, until they are away."""

    def __init__(self, api: Api, good: int) -> None:
        self._database = api.database
        self.good = good

    async def read(self, query: Callable[[sqlalchemy.Connection], T], /) -> T:
        if self.good == 0:
            raise DatabaseAway("the server is gone")
        self.good -= 1
        return await self._database.read(query)


async def test_an_incomplete_file_breaks_the_connection(api: Api) -> None:
    await add_many(api, 2 * CSV_PAGE_ROWS)
    rows = FailingRows(api, 2)
    api.change(database=rows)
    async with api.serving() as base, httpx2.AsyncClient(base_url=base) as client:
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.get(PATH, headers={"Authorization": f"Bearer {api.session}"})
        rows.good = 100
        whole = await client.get(PATH, headers={"Authorization": f"Bearer {api.session}"})
        assert whole.text.count("\r\n") == 2 * CSV_PAGE_ROWS + 1
