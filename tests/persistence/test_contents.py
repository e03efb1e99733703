"""Contents of the asset store: claims, marks for deletion, and how they exclude each other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, event, text
from tests.content_claims import claim_content, driver_connection

from holdfast.persistence.claims.contents import (
    LEASE_S,
    RESULT_CLAIM_S,
    START,
    Content,
    ContentClaims,
    claim_contents,
    delete_marked,
    mark_contents,
    tasks_with_expired_assets,
)
from holdfast.persistence.claims.tasks import FIRST_EXPIRED, Expired
from holdfast.persistence.records import tables
from holdfast.persistence.server.connections import KeptConnection, connected
from holdfast.persistence.server.database_faults import DatabaseAway

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=30)
CLAIM_OVER = NOW - timedelta(seconds=RESULT_CLAIM_S + 1)


def content(letter: str) -> Content:
    return Content(letter * 64, "image/png")


@pytest.fixture
def rows(database_url: str) -> Iterator[Connection]:
    with connected(database_url) as connection:
        yield connection


def refer(rows: Connection, to: Content, request_id: str = "task_1", **columns: Any) -> None:
    """Write an asset that refers to a content."""
    values = {
        "account_id": "acct_1", "request_id": request_id, "position": 0, "asset_id": f"asset_{request_id}",
        "sha256": to.sha256, "bytes": 1, "content_type": to.content_type, "created_at": LONG_AGO,
        "expires_at": NOW + timedelta(days=1),
    }  # fmt: skip
    rows.execute(tables.assets.insert().values(**(values | columns)))


def marked(rows: Connection, at: datetime = NOW) -> list[Content]:
    return mark_contents(rows, at, after=START, page_max=100).contents


def test_an_unreferenced_content_is_marked_once_its_claim_has_expired(rows: Connection) -> None:
    assert claim_content(rows, content("a"), CLAIM_OVER)
    assert claim_content(rows, content("b"), NOW - timedelta(seconds=RESULT_CLAIM_S - 1))
    assert marked(rows) == [content("a")]
    assert marked(rows) == []


def test_a_content_is_retained_while_any_asset_refers_to_it(rows: Connection) -> None:
    claim_content(rows, content("a"), LONG_AGO)
    refer(rows, content("a"), "task_1")
    refer(rows, content("a"), "task_2")
    assert marked(rows) == []
    rows.execute(text("delete from assets where request_id = 'task_1'"))
    assert marked(rows) == []
    rows.execute(text("delete from assets"))
    assert marked(rows) == [content("a")]


def test_an_asset_protects_only_the_content_of_its_own_type(rows: Connection) -> None:
    other = content("a")._replace(content_type="image/gif")
    claim_content(rows, content("a"), LONG_AGO)
    claim_content(rows, other, LONG_AGO)
    refer(rows, other)
    assert marked(rows) == [content("a")]


def test_a_new_claim_protects_and_an_older_one_shortens_nothing(rows: Connection) -> None:
    claim_content(rows, content("a"), LONG_AGO)
    assert claim_content(rows, content("a"), NOW)
    assert claim_content(rows, content("a"), LONG_AGO)
    assert marked(rows) == []


def test_contents_claimed_together_are_claimed_but_for_marked_ones(rows: Connection) -> None:
    claim_content(rows, content("a"), LONG_AGO)
    assert marked(rows) == [content("a")]
    connection = driver_connection(rows)
    letters = {content(letter) for letter in "cab"}
    assert claim_contents(connection, letters, NOW) == {content("b"), content("c")}
    assert claim_contents(connection, set(), NOW) == set()


def test_a_marked_content_cannot_be_claimed_until_its_row_is_deleted(rows: Connection) -> None:
    claim_content(rows, content("a"), LONG_AGO)
    found = mark_contents(rows, NOW, after=START, page_max=100)
    assert not claim_content(rows, content("a"), NOW)
    delete_marked(rows, {content("a"): found.at})
    assert claim_content(rows, content("a"), NOW)


def test_an_unfinished_delete_is_repeated_and_a_late_one_deletes_no_row(rows: Connection) -> None:
    claim_content(rows, content("a"), LONG_AGO)
    assert marked(rows, NOW) == [content("a")]
    assert marked(rows, NOW + timedelta(seconds=LEASE_S)) == []
    later = NOW + timedelta(seconds=LEASE_S + 1)
    assert marked(rows, later) == [content("a")]
    delete_marked(rows, {content("a"): NOW})
    assert not claim_content(rows, content("a"), later)
    delete_marked(rows, {content("a"): later})
    assert claim_content(rows, content("a"), later)


def test_contents_are_deleted_together_whose_mark_is_that_of_the_removal(rows: Connection) -> None:
    """By one statement: a thousand in one transaction would each wait for the busy event loop."""
    for letter in "abc":
        claim_content(rows, content(letter), LONG_AGO)
    other_type = content("a")._replace(content_type="image/gif")
    claim_content(rows, other_type, LONG_AGO)
    assert len(marked(rows)) == 4
    statements: list[str] = []
    event.listen(rows, "before_cursor_execute", lambda _connection, _cursor, sql, *_: statements.append(sql))
    delete_marked(rows, {content("a"): NOW, content("b"): NOW, content("c"): LONG_AGO})
    assert len(statements) == 1
    left = rows.execute(text("select sha256, content_type from contents order by 1, 2")).all()
    assert [Content(*row) for row in left] == [other_type, content("c")]


def test_pages_cover_all_contents_and_start_again(rows: Connection) -> None:
    for letter in "0a9f":
        claim_content(rows, content(letter), LONG_AGO)
    claim_content(rows, content("a")._replace(content_type="video/mp4"), LONG_AGO)
    found, after = [], START
    for _ in range(3):
        page = mark_contents(rows, NOW, after=after, page_max=2)
        found.append([one.sha256[0] for one in page.contents])
        after = page.next_after
    assert found == [["0", "9"], ["a", "a"], ["f"]]
    assert after == START


def test_of_a_concurrent_claim_and_mark_only_one_succeeds(database_url: str) -> None:
    for number in range(20):
        one = Content(f"{number:064x}", "image/png")
        with connected(database_url) as rows:
            claim_content(rows, one, LONG_AGO)
            rows.commit()
        start = threading.Barrier(2)
        outcome: dict[str, bool] = {}

        def storing(
            one: Content = one, start: threading.Barrier = start, outcome: dict[str, bool] = outcome
        ) -> None:
            with connected(database_url) as rows:
                start.wait()
                outcome["claimed"] = claim_content(rows, one, NOW)
                rows.commit()

        thread = threading.Thread(target=storing)
        thread.start()
        with connected(database_url) as rows:
            start.wait()
            outcome["marked"] = one in marked(rows)
            rows.commit()
        thread.join()
        assert outcome["claimed"] != outcome["marked"]


def test_claims_of_threads_are_made_together(database_url: str) -> None:
    connections: list[CountingConnection] = []

    def connect() -> CountingConnection:
        connections.append(CountingConnection.connect(database_url))
        return connections[-1]

    with connected(database_url) as rows:
        claim_content(rows, content("d"), LONG_AGO)
        assert marked(rows) == [content("d")]
        rows.commit()
    claims = ContentClaims(KeptConnection(connect))
    letters = "abcd" * 10
    with ThreadPoolExecutor(len(letters)) as threads:
        made = list(threads.map(lambda letter: claims.claim(content(letter), NOW), letters))
    assert made == [letter != "d" for letter in letters]
    # A statement that takes a moment is followed by one for all claims that arrived meanwhile.
    [connection] = connections
    assert connection.executed < len(letters) / 2
    connection.close()


def test_a_lost_connection_fails_its_claims_and_is_replaced(database_url: str) -> None:
    connections: list[psycopg.Connection[Any]] = []

    def connect() -> psycopg.Connection[Any]:
        kind = psycopg.Connection[Any] if connections else EndedConnection
        connections.append(kind.connect(database_url))
        return connections[-1]

    claims = ContentClaims(KeptConnection(connect))
    with pytest.raises(DatabaseAway):
        claims.claim(content("b"), NOW)
    assert claims.claim(content("b"), NOW)
    assert [connection.closed for connection in connections] == [True, False]
    connections[1].close()


class EndedConnection(psycopg.Connection[Any]):
    """Is ended by the server when it is used."""

    def execute(self, *_args: Any, **_options: Any) -> psycopg.Cursor[Any]:
        return super().execute("select pg_terminate_backend(pg_backend_pid(), 5000)")


class CountingConnection(psycopg.Connection[Any]):
    """Counts its statements, each of which takes a moment."""

    executed = 0

    def execute(self, *args: Any, **options: Any) -> psycopg.Cursor[Any]:
        self.executed += 1
        super().execute("select pg_sleep(0.02)")
        return super().execute(*args, **options)


def test_an_uncommitted_claim_prevents_marking(database_url: str) -> None:
    with connected(database_url) as storing, connected(database_url) as sweeping:
        claim_content(storing, content("a"), LONG_AGO)
        storing.commit()
        claim_content(storing, content("a"), NOW)
        assert marked(sweeping) == []
        sweeping.commit()
        storing.commit()
        assert marked(sweeping) == []


def test_ended_tasks_are_found_once_all_their_assets_have_expired(rows: Connection) -> None:
    times = {"task_whole": (-5, -1), "task_part": (-5, 1), "task_review": (-5, -5), "task_first": (-9, -9)}
    for name, ends in times.items():
        status = "review" if name == "task_review" else "succeeded"
        values = {
            "account_id": "acct_1", "request_id": name, "version": 1, "status": status, "model": "m",
            "provider": "p", "created_at": NOW, "updated_at": NOW, "wake_at": None,
            "dispatched": False, "request": {}, "input": {}, "state": {},
            "overall_deadline_at": NOW, "dispatch_s": 60, "run_s": 900,
        }  # fmt: skip
        rows.execute(tables.tasks.insert().values(**values))
        for position, end in enumerate(ends):
            expires_at = NOW + timedelta(seconds=end)
            asset_id = f"{name}{position}"
            refer(rows, content("a"), name, position=position, asset_id=asset_id, expires_at=expires_at)

    def found(after: Expired, most: int) -> list[Expired]:
        return tasks_with_expired_assets(rows, NOW, after=after, most=most)

    def expired(name: str, end: int) -> Expired:
        return Expired(NOW + timedelta(seconds=end), name)

    first, *whole = expired("task_first", -9), expired("task_whole", -5), expired("task_whole", -1)
    assert found(FIRST_EXPIRED, 10) == [first, first, *whole]
    assert found(FIRST_EXPIRED, 1) == [first]
    assert found(first, 10) == whole
