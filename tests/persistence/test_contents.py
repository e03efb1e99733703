"""Who may store a content and who may remove it: claims, dooms, and what they make of each other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, text

from holdfast.persistence.claims.contents import (
    CLAIM_S,
    LEASE_S,
    START,
    Content,
    claim_content,
    delete_marked,
    mark_contents,
    tasks_with_expired_assets,
)
from holdfast.persistence.records import tables
from holdfast.persistence.server.connections import connected

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=30)
CLAIM_OVER = NOW - timedelta(seconds=CLAIM_S + 1)


def content(letter: str) -> Content:
    return Content(letter * 64, "image/png")


@pytest.fixture
def rows(database_url: str) -> Iterator[Connection]:
    with connected(database_url) as connection:
        yield connection


def refer(rows: Connection, to: Content, request_id: str = "task_1", **columns: Any) -> None:
    """An asset that refers to a content."""
    values = {
        "account_id": "acct_1", "request_id": request_id, "position": 0, "asset_id": f"asset_{request_id}",
        "sha256": to.sha256, "bytes": 1, "content_type": to.content_type, "created_at": LONG_AGO,
        "expires_at": NOW + timedelta(days=1),
    }  # fmt: skip
    rows.execute(tables.assets.insert().values(**(values | columns)))


def doomed(rows: Connection, at: datetime = NOW) -> list[Content]:
    return mark_contents(rows, at, after=START, page_max=100).contents


def test_what_nothing_refers_to_is_doomed_once_its_claim_is_over(rows: Connection) -> None:
    assert claim_content(rows, content("a"), CLAIM_OVER)
    assert claim_content(rows, content("b"), NOW - timedelta(seconds=CLAIM_S - 1))
    assert doomed(rows) == [content("a")]
    assert doomed(rows) == []


def test_what_an_asset_refers_to_stays_until_the_last_one_goes(rows: Connection) -> None:
    claim_content(rows, content("a"), LONG_AGO)
    refer(rows, content("a"), "task_1")
    refer(rows, content("a"), "task_2")
    assert doomed(rows) == []
    rows.execute(text("delete from assets where request_id = 'task_1'"))
    assert doomed(rows) == []
    rows.execute(text("delete from assets"))
    assert doomed(rows) == [content("a")]


def test_an_asset_of_another_type_keeps_only_its_own_file(rows: Connection) -> None:
    other = content("a")._replace(content_type="image/gif")
    claim_content(rows, content("a"), LONG_AGO)
    claim_content(rows, other, LONG_AGO)
    refer(rows, other)
    assert doomed(rows) == [content("a")]


def test_a_new_claim_saves_an_old_content_and_an_old_one_takes_nothing_back(rows: Connection) -> None:
    claim_content(rows, content("a"), LONG_AGO)
    assert claim_content(rows, content("a"), NOW)
    assert claim_content(rows, content("a"), LONG_AGO)
    assert doomed(rows) == []


def test_what_is_being_removed_cannot_be_claimed_until_it_is_forgotten(rows: Connection) -> None:
    claim_content(rows, content("a"), LONG_AGO)
    found = mark_contents(rows, NOW, after=START, page_max=100)
    assert not claim_content(rows, content("a"), NOW)
    delete_marked(rows, {content("a"): found.at})
    assert claim_content(rows, content("a"), NOW)


def test_a_removal_never_finished_is_taken_up_and_the_late_one_forgets_nothing(rows: Connection) -> None:
    claim_content(rows, content("a"), LONG_AGO)
    assert doomed(rows, NOW) == [content("a")]
    assert doomed(rows, NOW + timedelta(seconds=LEASE_S)) == []
    later = NOW + timedelta(seconds=LEASE_S + 1)
    assert doomed(rows, later) == [content("a")]
    delete_marked(rows, {content("a"): NOW})
    assert not claim_content(rows, content("a"), later)
    delete_marked(rows, {content("a"): later})
    assert claim_content(rows, content("a"), later)


def test_pages_pass_everything_and_begin_again(rows: Connection) -> None:
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


def test_a_claim_and_a_doom_at_the_same_moment_never_both_stand(database_url: str) -> None:
    for number in range(20):
        one = Content(f"{number:064x}", "image/png")
        with connected(database_url) as rows:
            claim_content(rows, one, LONG_AGO)
            rows.commit()
        start = threading.Barrier(2)
        said: dict[str, bool] = {}

        def storing(one: Content = one, start: threading.Barrier = start, said: dict[str, bool] = said) -> None:
            with connected(database_url) as rows:
                start.wait()
                said["claimed"] = claim_content(rows, one, NOW)
                rows.commit()

        thread = threading.Thread(target=storing)
        thread.start()
        with connected(database_url) as rows:
            start.wait()
            said["doomed"] = one in doomed(rows)
            rows.commit()
        thread.join()
        assert said["claimed"] != said["doomed"]


def test_an_uncommitted_claim_is_not_overtaken(database_url: str) -> None:
    with connected(database_url) as storing, connected(database_url) as sweeping:
        claim_content(storing, content("a"), LONG_AGO)
        storing.commit()
        claim_content(storing, content("a"), NOW)
        assert doomed(sweeping) == []
        sweeping.commit()
        storing.commit()
        assert doomed(sweeping) == []


def test_tasks_are_due_when_they_have_ended_and_all_their_assets_are_past_their_time(rows: Connection) -> None:
    times = {"task_whole": (-5, -1), "task_part": (-5, 1), "task_review": (-5, -5), "task_first": (-9, -9)}
    for name, ends in times.items():
        status = "review" if name == "task_review" else "succeeded"
        values = {
            "account_id": "acct_1", "request_id": name, "version": 1, "status": status, "model": "m",
            "provider": "p", "created_at": NOW, "updated_at": NOW, "wake_at": None,
            "dispatched": False, "request": {}, "state": {},
        }  # fmt: skip
        rows.execute(tables.tasks.insert().values(**values))
        for position, end in enumerate(ends):
            expires_at = NOW + timedelta(seconds=end)
            asset_id = f"{name}{position}"
            refer(rows, content("a"), name, position=position, asset_id=asset_id, expires_at=expires_at)
    assert tasks_with_expired_assets(rows, NOW, most=10) == ["task_first", "task_whole"]
    assert tasks_with_expired_assets(rows, NOW, most=1) == ["task_first"]
