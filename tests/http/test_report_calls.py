"""Reports over HTTP: the list and its filters, and the stream as its readers see it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
import pytest
import sqlalchemy
import trio
import trio.lowlevel
from tests.clients import refused
from tests.event_streams import STREAM, StreamReader, reading
from trio.testing import MockClock

from holdfast.http.endpoints.operators import reports as endpoint
from holdfast.http.endpoints.operators.reports import event_stream
from holdfast.http.kit.calls import Call
from holdfast.http.kit.operator_access import begin_session, end_session
from holdfast.http.kit.operators import OPERATOR_COOKIE
from holdfast.http.kit.requests import HoldfastRequest
from holdfast.http.kit.waiting import STREAM_S
from holdfast.ledger.values import utc_now
from holdfast.persistence.claims.reports import write_reports
from holdfast.persistence.queries.reports import reports_after
from holdfast.persistence.records import tables
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.telemetry.reports import feed as feed_module
from holdfast.telemetry.reports.feed import ReportFeed
from holdfast.telemetry.reports.report import Report
from holdfast.wiring.parts import ReportTable
from holdfast_console.views import route_of

from .fake_rows import AwayRows, CountingRows

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.stage import Stage

T = TypeVar("T")

OPERATOR = "operator-token-of-these-tests"
PROOF = {"Authorization": f"Bearer {OPERATOR}"}
LIST = "/ops/api/reports"
SECRET = "whsec_MfKQ9r8GKYqrTwjU"


def emit(stage: Stage, key: str = "acct_1", **fields: Any) -> Report:
    reporter = stage.reporter
    reporter.report(Report(**{"kind": "crash", "at": utc_now(), "path": "holdfast/accounts", "key": key, **fields}))
    return reporter.recent(1)[0]


async def until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not holds():  # noqa: ASYNC110 - the service's own state, which nothing announces
            await trio.sleep(0.005)


@asynccontextmanager
async def serving(api: Api) -> AsyncIterator[str]:
    """Serve with a feed of the real table."""
    api.configure(operator_token=OPERATOR)
    feed = ReportFeed(api.reporter, ReportTable(api.database), poll_s=0.02)
    api.change(reports=feed)
    async with trio.open_nursery() as nursery, api.serving() as base:
        await nursery.start(lambda *, task_status: feed.run(task_status=task_status))
        yield base
        nursery.cancel_scope.cancel()


async def store(api: Api, *reports: Report) -> None:
    assert await api.database.work(write_reports, reports)


async def positions(api: Api) -> list[int]:
    found = await api.database.read(reports_after, 0, limit=99)
    return [stored.position for stored in found.found]


# ------------------------------------------------------------------------------------------------ the list


@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ("", ["acct_3", "task_2", "acct_1"]),
        ("limit=2", ["acct_3", "task_2"]),
        ("kind=restart", ["task_2"]),
        ("level=error", ["acct_3", "acct_1"]),
        ("path=holdfast", ["acct_3", "task_2", "acct_1"]),
        ("path=holdfast/task", []),
        ("account_id=acct_1", ["acct_1"]),
        ("from=2026-11-20T12:02:00Z&to=2026-11-20T12:03:00Z", ["task_2"]),
    ],
)
async def test_in_an_outage_the_list_is_from_memory(stage: Stage, query: str, keys: list[str]) -> None:
    stage.configure(operator_token=OPERATOR)
    stage.change(database=AwayRows())
    emit(stage, "acct_1", at=stage.now + timedelta(minutes=1))
    emit(stage, "acct_3", at=stage.now + timedelta(minutes=3))
    emit(stage, "task_2", at=stage.now + timedelta(minutes=2), path="holdfast/tasks", kind="restart")
    body = (await stage.call("GET", f"{LIST}?{query}", headers=PROOF)).json()
    assert [each["key"] for each in body["data"]] == keys
    assert (body["position"], body["from_memory"]) == (None, True)
    if body["next_cursor"] is not None:
        rest = await stage.call("GET", f"{LIST}?cursor={body['next_cursor']}", headers=PROOF)
        assert [each["key"] for each in (rest.json())["data"]] == ["acct_1"]


async def test_the_list_is_newest_first_in_pages(api: Api) -> None:
    api.configure(operator_token=OPERATOR)
    await store(api, *(emit(api, f"acct_{number}") for number in range(5)))
    found: list[str] = []
    cursor = ""
    for _ in range(3):
        page = (await api.call("GET", f"{LIST}?limit=2{cursor}", headers=PROOF)).json()
        found += [each["key"] for each in page["data"]]
        cursor = f"&cursor={page['next_cursor']}"
    assert found == ["acct_4", "acct_3", "acct_2", "acct_1", "acct_0"]
    assert page["next_cursor"] is None
    assert page["position"] == (await positions(api))[-1]


async def test_an_entry_says_what_happened_in_words(api: Api) -> None:
    api.configure(operator_token=OPERATOR)
    await store(api, emit(api, reason_type="ValueError", reason=f"no {SECRET}", decision="backoff", delay_s=2.0))
    response = await api.call("GET", LIST, headers=PROOF)
    text = response.text
    assert SECRET[6:] not in text
    (entry,) = msgspec.json.decode(text)["data"]
    assert (entry["kind"], entry["level"], entry["account_id"]) == ("crash", "error", "acct_1")
    assert entry["text"] == "crashed: ValueError: no whsec_***; restarts in 2 s; look at what was deployed last"
    assert entry["provider"] is None


@pytest.mark.parametrize(
    ("query", "keys"),
    [
        ("kind=crash", ["acct_1"]),
        ("level=warning", ["task_2", "acct_1"]),
        ("path=holdfast", ["task_2", "acct_1", "acct_0"]),
        ("path=holdfast/acc", []),
        ("key=task_2", ["task_2"]),
        ("account_id=acct_1&kind=crash", ["acct_1"]),
        ("task_id=task_2", ["task_2"]),
        (f"trace_id={'1' * 32}", ["task_2"]),
        (f"trace_id=req_{'1' * 32}", ["task_2"]),
        ("member_id=proc_none", []),
        ("from=2999-01-01", []),
        ("to=2999-01-01&limit=1", ["task_2"]),
    ],
)
async def test_the_list_is_filtered(api: Api, query: str, keys: list[str]) -> None:
    api.configure(operator_token=OPERATOR)
    await store(
        api,
        emit(api, "acct_0", kind="restart"),
        emit(api, "acct_1"),
        emit(api, "task_2", kind="quarantine", path="holdfast/tasks", trace_id="1" * 32),
    )
    page = (await api.call("GET", f"{LIST}?{query}", headers=PROOF)).json()
    assert [each["key"] for each in page["data"]] == keys


@pytest.mark.parametrize("query", ["kind=novel", "level=loud", "limit=0", "from=yesterday"])
async def test_an_invalid_filter_is_refused(stage: Stage, query: str) -> None:
    stage.configure(operator_token=OPERATOR)
    refused(await stage.call("GET", f"{LIST}?{query}", headers=PROOF), 400, "invalid_parameter")


# ---------------------------------------------------------------------------------------------- the stream


async def test_a_local_report_is_streamed_at_once(api: Api) -> None:
    async with serving(api) as base, reading(base, OPERATOR) as reader:
        assert "content-type: text/event-stream" in reader.head
        report = emit(api, reason=f"Bearer {SECRET}")
        event = await reader.next()
        assert event is not None
        assert event.fields["event"] == "crash"
        assert event.data["report_id"] == report.report_id
        assert SECRET[6:] not in event.fields["data"]


@pytest.mark.parametrize("by", ["header", "query"])
async def test_the_stream_resumes_from_a_position(api: Api, by: str) -> None:
    await store(api, *(emit(api, f"acct_{number}") for number in range(4)))
    _, second, *later = await positions(api)
    sent = {"Last_Event_ID": str(second)} if by == "header" else {}
    query = "" if by == "header" else f"?after={second}"
    async with serving(api) as base, reading(base, OPERATOR, query, status=200, **sent) as reader:
        events = [await reader.next(), await reader.next()]
        found = [(event.data["key"], int(event.fields["id"])) for event in events if event]
        assert found == list(zip(("acct_2", "acct_3"), later, strict=True))
        emit(api, "acct_new")
        assert await reader.keys(1) == ["acct_new"]


async def test_a_position_that_is_none_is_refused(stage: Stage) -> None:
    stage.configure(operator_token=OPERATOR)
    for headers, query in (({"Last-Event-ID": "x"}, ""), ({}, "?after=-1"), ({}, "?after=" + "9" * 19)):
        response = await stage.call("GET", STREAM + query, headers={**PROOF, **headers})
        error = refused(response, 400, "invalid_parameter")
        assert error["param"] in {"Last-Event-ID", "after"}


async def test_too_many_readers_are_refused_until_one_hangs_up(api: Api) -> None:
    async with serving(api) as base:
        feed = api.deps.operating.reports
        feed.readers_max = 2
        async with reading(base, OPERATOR), reading(base, OPERATOR), reading(base, OPERATOR, status=503) as refused:
            assert "retry-after: 1" in refused.head
        await until(lambda: not feed.is_full)
        async with reading(base, OPERATOR) as reader:
            emit(api)
            assert await reader.keys(1) == ["acct_1"]


async def test_a_reader_that_does_not_read_costs_bounded_memory(api: Api) -> None:
    async with serving(api) as base, reading(base, OPERATOR) as slow:
        report = emit(api, reason="word " * 400)
        # More than the sockets' buffers take; the reader reads none of it meanwhile.
        for number in range(20_000):
            api.reporter.accept(msgspec.structs.replace(report, report_id=f"rep_{number}"))
            if number % 1_000 == 0:
                await trio.lowlevel.checkpoint()
        emit(api, "acct_last")
        skipped, last = 0, ""
        while last != "acct_last":
            event = await slow.next()
            assert event is not None
            if event.fields["event"] == "skipped":
                skipped += event.data["count"]
            else:
                last = event.data["key"]
        assert skipped > 10_000


async def test_streams_end_in_order_when_the_server_stops(api: Api) -> None:
    api.configure(operator_token=OPERATOR)
    readers: list[StreamReader] = []
    keys: list[str] = []

    async def read(base: str, *, task_status: trio.TaskStatus[None]) -> None:
        async with reading(base, OPERATOR) as reader:
            readers.append(reader)
            task_status.started()
            keys.extend(await reader.keys(1))
            assert await reader.next() is None

    # The server would wait for an hour.
    async with trio.open_nursery() as nursery, api.serving(finish_requests_s=3600.0) as base:
        await nursery.start(read, base)
        emit(api, "acct_last")
    assert keys == ["acct_last"]
    assert readers[0].is_complete


async def test_silence_is_broken_by_comments(stage: Stage, autojump_clock: MockClock) -> None:
    stage.configure(operator_token=OPERATOR)
    request = cast(HoldfastRequest, stage.app.test_request_context(STREAM, headers=PROOF).request)
    call = Call(stage.deps, route_of(endpoint.stream_reports), request, {})
    assert await call.prepare() is None
    begun = trio.current_time()
    async with event_stream(call, None) as parts:
        assert await anext(parts) == b"retry: 1000\n\n"
        assert await anext(parts) == b": idle\n\n"
        assert trio.current_time() - begun == pytest.approx(endpoint.CHECK_S)
        assert len([part async for part in parts]) == STREAM_S / endpoint.CHECK_S - 1
    assert trio.current_time() - begun == pytest.approx(STREAM_S)
    assert not stage.deps.operating.reports._readers


@pytest.mark.parametrize("ends", ["signed out", "disabled", "expired"])
async def test_a_stream_ends_with_its_session(api: Api, monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    monkeypatch.setattr(endpoint, "CHECK_S", 0.02)
    email = f"{api.account_id}@example.com"
    api.configure(operator_readers=(email,))
    clock = [api.now]
    api.change(now=lambda: clock[0])
    async with AsyncExitStack() as stack:
        base = await stack.enter_async_context(serving(api))
        cookie, session = await begin_session(api.deps, email, "192.0.2.1")
        name = OPERATOR_COOKIE.name_for(api.deps.settings)
        reader = await stack.enter_async_context(reading(base, None, Cookie=f"{name}={cookie}"))
        emit(api)
        assert await reader.keys(1) == ["acct_1"]
        if ends == "signed out":
            await end_session(api.deps, cookie)
        elif ends == "disabled":
            await api.write(tables.accounts.update().values(disabled_at=api.now))
        else:
            clock[0] = session.expires_at
        assert await reader.next() is None
        assert reader.is_complete


class LeavingRows(CountingRows):
    """A database that goes away."""

    is_away = False

    async def read(self, query: Callable[[sqlalchemy.Connection], T], /) -> T:
        found = await super().read(query)
        if self.is_away:
            raise DatabaseAway("gone", retry_after_s=1.0)
        return found


async def test_an_outage_ends_no_stream(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "CHECK_S", 0.02)
    api.configure(operator_readers=(f"{api.account_id}@example.com",))
    rows = LeavingRows(api.database)
    api.change(database=rows)
    async with serving(api) as base, reading(base, api.session) as reader:
        rows.is_away = True
        read = rows.reads
        await until(lambda: rows.reads > read + 1)
        emit(api)
        assert await reader.keys(1) == ["acct_1"]


async def test_one_operator_leaves_streams_to_others(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "READERS_PER_OPERATOR_MAX", 2)
    api.configure(operator_readers=(f"{api.account_id}@example.com",))
    async with serving(api) as base:
        async with reading(base, OPERATOR), reading(base, OPERATOR):
            async with reading(base, OPERATOR, status=429) as refused:
                assert "retry-after: 1" in refused.head
            late = api.deps.operating.reports.open(operator="operator-token")
            assert await late.next() is None
            async with reading(base, api.session) as reader:
                emit(api)
                assert await reader.keys(1) == ["acct_1"]
        await until(lambda: not api.deps.operating.reports.is_full_for("operator-token"))
