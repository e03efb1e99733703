"""Rows of files: limits, claims by tasks, and deletion once no task needs them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Connection, text

from holdfast.persistence.claims.files import (
    CLAIM_S,
    FIRST_USE,
    UPLOAD_S,
    ExpiredFile,
    FilesTotal,
    FileUse,
    add_file,
    claim_files,
    delete_file,
    drop_file,
    files_total,
    keep_file,
    release_claims,
    sweep_files,
    sweep_uses,
)
from holdfast.persistence.queries.files import file_by_id
from holdfast.persistence.records import tables
from holdfast.persistence.records.rows import FileRow
from holdfast.persistence.server.connections import connected

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
LATER = NOW + timedelta(seconds=CLAIM_S + 1)
STORED = NOW + timedelta(seconds=UPLOAD_S)
"""When a file that was added now may be deleted."""
ADA, EVE = "acct_ada", "acct_eve"
FIRST = ExpiredFile(datetime.min.replace(tzinfo=UTC), "")


@pytest.fixture
def rows(database_url: str) -> Iterator[Connection]:
    with connected(database_url) as connection:
        yield connection


def file_id(number: int) -> str:
    return f"file_{number:032x}"


def add(rows: Connection, number: int, account_id: str = ADA, *, size: int = 10, for_s: int = 3600) -> str:
    file = FileRow(
        account_id=account_id,
        file_id=file_id(number),
        filename="a.png",
        content_type="image/png",
        bytes=size,
        sha256=f"{number:064x}",
        created_at=NOW,
        expires_at=NOW,
    )
    assert add_file(rows, file, count_max=100, bytes_max=10_000) is None
    assert keep_file(rows, file._replace(expires_at=NOW + timedelta(seconds=for_s)))
    return file.file_id


def claim(rows: Connection, *file_ids: str, hold_id: str = "hold_1", at: datetime = NOW) -> frozenset[str]:
    return claim_files(rows, ADA, file_ids, hold_id=hold_id, at=at)


def hold(rows: Connection, hold_id: str = "hold_1", settled_number: int | None = None) -> None:
    """Write the hold of a task, or settle it."""
    rows.execute(text("delete from holds where hold_id = :hold_id"), {"hold_id": hold_id})
    values = {"account_id": ADA, "hold_id": hold_id, "amount_micro": 1, "reference": "task_1", "opened_number": 1}
    rows.execute(tables.holds.insert().values(**values, settled_number=settled_number))


def swept(rows: Connection, at: datetime) -> int:
    return sweep_files(rows, at, after=FIRST, most=100).deleted


def uses(rows: Connection) -> int:
    return int(rows.execute(text("select count(*) from file_uses")).scalar_one())


def test_a_file_beyond_the_limits_is_not_added(rows: Connection) -> None:
    one = file_by_id(rows, add(rows, 1, size=60))
    assert one is not None
    other = one._replace(file_id=file_id(2), bytes=41, expires_at=NOW)
    assert add_file(rows, other, count_max=9, bytes_max=100) == FilesTotal(1, 60)
    assert add_file(rows, other, count_max=1, bytes_max=1000) == FilesTotal(1, 60)
    assert add_file(rows, other._replace(bytes=40), count_max=2, bytes_max=100) is None
    assert files_total(rows, ADA) == FilesTotal(2, 100)
    assert files_total(rows, EVE) == FilesTotal(0, 0)


def test_own_files_that_have_not_expired_are_claimed_all_or_none(rows: Connection) -> None:
    mine, theirs, expired = add(rows, 1), add(rows, 2, EVE), add(rows, 3, for_s=-1)
    assert claim(rows, mine, theirs, expired, file_id(4)) == {theirs, expired, file_id(4)}
    assert uses(rows) == 0
    assert claim(rows, mine) == frozenset()
    assert uses(rows) == 1


def test_a_file_without_a_task_is_deleted_at_once_and_only_by_its_owner(rows: Connection) -> None:
    one = add(rows, 1)
    assert not delete_file(rows, EVE, one, STORED)
    assert delete_file(rows, ADA, one, STORED)
    assert file_by_id(rows, one) is None
    assert not delete_file(rows, ADA, one, STORED)


def test_a_file_that_is_deleted_soon_counts_while_its_content_is_claimed(rows: Connection) -> None:
    one = add(rows, 1, size=60)
    assert delete_file(rows, ADA, one, NOW)
    assert not delete_file(rows, ADA, one, NOW)
    assert claim(rows, one) == {one}
    left = file_by_id(rows, one)
    assert left is not None
    assert left.expires_at == left.created_at, "no link to it works"
    assert swept(rows, STORED - timedelta(seconds=1)) == 0
    assert files_total(rows, ADA) == FilesTotal(1, 60)
    assert swept(rows, STORED) == 1
    assert files_total(rows, ADA) == FilesTotal(0, 0)


def test_a_file_is_no_ones_before_its_content_is_stored(rows: Connection) -> None:
    """What a process leaves that is killed between the two counts, and is swept."""
    [one, two] = [file_by_id(rows, add(rows, number)) for number in (1, 2)]
    assert one is not None
    assert two is not None
    for each in (one, two):
        drop_file(rows, each)
        assert not keep_file(rows, each)
        assert add_file(rows, each._replace(expires_at=NOW), count_max=100, bytes_max=10_000) is None
        assert claim(rows, each.file_id) == {each.file_id}
        assert not delete_file(rows, ADA, each.file_id, NOW)
    assert keep_file(rows, one)
    assert claim(rows, one.file_id) == frozenset()
    assert files_total(rows, ADA).files == 2
    assert swept(rows, STORED) == 1
    assert not keep_file(rows, two)


@pytest.mark.parametrize("how", ["deleted", "expired"])
def test_a_file_stays_while_a_task_needs_it(rows: Connection, how: str) -> None:
    one = add(rows, 1)
    assert claim(rows, one) == frozenset()
    at = NOW + timedelta(hours=2) if how == "expired" else STORED
    hold(rows)
    if how == "deleted":
        assert delete_file(rows, ADA, one, NOW)
    assert claim(rows, one, hold_id="hold_2", at=at) == {one}
    assert swept(rows, LATER + timedelta(days=30)) == 0
    assert file_by_id(rows, one) is not None
    assert files_total(rows, ADA).files == 1
    hold(rows, settled_number=2)
    assert swept(rows, at) == 1
    assert (file_by_id(rows, one), uses(rows)) == (None, 0)


def test_a_claim_without_a_task_protects_for_a_time(rows: Connection) -> None:
    one = add(rows, 1)
    claim(rows, one)
    delete_file(rows, ADA, one, NOW)
    assert swept(rows, LATER - timedelta(seconds=2)) == 0
    assert swept(rows, LATER) == 1


def test_a_claim_that_is_taken_back_protects_nothing(rows: Connection) -> None:
    one, two = add(rows, 1), add(rows, 2)
    claim(rows, one, two)
    claim(rows, two, hold_id="hold_2")
    release_claims(rows, ADA, [one, two], hold_id="hold_1")
    delete_file(rows, ADA, one, STORED)
    delete_file(rows, ADA, two, STORED)
    assert (file_by_id(rows, one), uses(rows)) == (None, 1)
    assert file_by_id(rows, two) is not None


def test_uses_are_deleted_page_by_page_once_their_holds_are_settled(rows: Connection) -> None:
    ids = [add(rows, number) for number in range(5)]
    for number, each in enumerate(ids):
        claim(rows, each, hold_id=f"hold_{number}")
        hold(rows, f"hold_{number}", settled_number=2 if number % 2 else None)
    after = sweep_uses(rows, NOW, after=FIRST_USE, most=2)
    assert after == FileUse(ADA, ids[1], "hold_1")
    after = sweep_uses(rows, NOW, after=after, most=2)
    assert sweep_uses(rows, NOW, after=after, most=2) == FIRST_USE
    assert uses(rows) == 3
    assert sweep_uses(rows, LATER, after=FIRST_USE, most=100) == FIRST_USE
    assert uses(rows) == 3


def test_files_are_swept_page_by_page_and_needed_ones_are_passed(rows: Connection) -> None:
    ids = [add(rows, number, for_s=-10 + number) for number in range(3)]
    rows.execute(text("update files set expires_at = expires_at + interval '1 hour'"))
    claim(rows, ids[0])
    hold(rows)
    at = NOW + timedelta(hours=1)
    first = sweep_files(rows, at, after=FIRST, most=2)
    assert first.deleted == 1
    assert first.next_after is not None
    assert sweep_files(rows, at, after=first.next_after, most=2) == (1, None)
    assert [file_by_id(rows, each) is None for each in ids] == [False, True, True]


@pytest.mark.parametrize("first", ["claim", "delete", "sweep"])
def test_a_claim_and_a_deletion_wait_for_each_other(database_url: str, first: str) -> None:
    at = NOW + timedelta(hours=1)
    with connected(database_url) as rows:
        one = add(rows, 1, for_s=3600 if first == "sweep" else 7200)
        rows.commit()

        def do(what: str, connection: Connection) -> object:
            if what == "claim":
                return claim_files(connection, ADA, [one], hold_id="hold_1", at=at)
            if what == "sweep":
                return swept(connection, at)
            return delete_file(connection, ADA, one, at)

        second = "delete" if first == "claim" else "claim"
        found: list[object] = []

        def run() -> None:
            with connected(database_url) as other:
                found.append(do(second, other))
                other.commit()

        result = do(first, rows)
        thread = threading.Thread(target=run)
        thread.start()
        with connected(database_url) as watching:
            waiting = text("select count(*) from pg_locks where not granted")
            while thread.is_alive() and not watching.execute(waiting).scalar_one():
                watching.rollback()
        rows.commit()
        thread.join(60)
        assert not thread.is_alive()
        exists = file_by_id(rows, one) is not None
        assert (result, found, exists) == {
            "claim": (frozenset(), [True], True),
            "delete": (True, [frozenset({one})], False),
            "sweep": (1, [frozenset({one})], False),
        }[first]
