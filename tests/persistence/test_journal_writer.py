"""The batch writer on a real server: fences, idempotency probes, and units that it rejects."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import sql

from holdfast.ledger.credit.operations import Operation
from holdfast.ledger.values import utc_now
from holdfast.persistence.journal.units import (
    AlreadyReplied,
    Broken,
    Committed,
    Fence,
    NotWritten,
    Stale,
    Unit,
    UnitResult,
    Unless,
)
from holdfast.persistence.journal.writer import BatchWriter
from holdfast.persistence.queries.loading import load_account
from holdfast.persistence.records.key_rows import ApiKeyRevokedRow
from holdfast.persistence.records.rows import AccountHead, IdempotencyProbe, NewTaskRow, SignInRow, StoredReply
from holdfast.persistence.server.connections import KeptConnection
from holdfast.persistence.server.database import Database

from .values import make_task
from .written_units import AT, POISONS, AccountUnits, all_committed, count, head, kinds, opened

# ---------------------------------------------------------------------------------------------------------- fences


def test_a_chain_of_decisions_is_written_in_one_batch(writer: BatchWriter, rows: psycopg.Connection[Any]) -> None:
    [account] = opened(writer)
    units = [
        account.credit(1000),
        account.hold("h1", 300),
        account.hold("h2", 200),
        account.release("h1"),
        account.credit(5),
    ]
    assert all_committed(writer.write(units))
    assert head(rows, account.account_id) == (5, 1005, 5)
    assert rows.execute("select hold_id, settled_number from holds order by hold_id").fetchall() == [
        ("h1", 4),
        ("h2", None),
    ]


@pytest.mark.parametrize("lots", [40, pytest.param(16_500, marks=pytest.mark.slow)])
async def test_a_hold_over_very_many_lots_is_read_as_it_was_written(
    writer: BatchWriter, rows: psycopg.Connection[Any], database: Database, lots: int
) -> None:
    """Only payments may be so many."""
    [account] = opened(writer)
    given = [account.credit(1) for _ in range(lots)]
    operations = tuple(row for unit in given for row in unit.rows if isinstance(row, Operation))
    last = given[-1].rows[0]
    assert isinstance(last, AccountHead)
    head_row = msgspec.structs.replace(last, version=1)
    account.state.version = 1
    assert all_committed(writer.write([Unit(fences=given[0].fences, rows=(head_row, *operations))]))
    assert all_committed(writer.write([account.hold("h1", lots)]))
    loaded = (await database.read(load_account, account.account_id)).state
    assert loaded.reservations == account.state.reservations
    assert len(loaded.reservations["h1"]) == lots
    account.state = loaded
    assert all_committed(writer.write([account.release("h1")]))
    assert head(rows, account.account_id) == (3, lots, lots + 2)
    sums = "select sum(amount_micro), max(line) from postings group by number order by max(line) desc limit 2"
    assert rows.execute(sums).fetchall() == [(0, 2 * lots)] * 2


def test_a_stale_unit_voids_its_followers_and_no_other_account(
    writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    ours, neighbour = opened(writer, 2)
    rows.execute("update accounts set version = version + 7 where id = %s", (ours.account_id,))
    batch = [ours.credit(), neighbour.credit(), ours.credit(), neighbour.credit(), ours.credit()]
    assert kinds(writer.write(batch)) == ["Stale", "Committed", "Stale", "Committed", "Stale"]
    assert head(rows, ours.account_id) == (7, 0, 0)
    assert head(rows, neighbour.account_id) == (2, 200, 2)


@pytest.mark.parametrize("moved_by", [1, 2, 3])
def test_a_follower_is_void_even_if_another_process_has_its_version(
    writer: BatchWriter, rows: psycopg.Connection[Any], moved_by: int
) -> None:
    [account] = opened(writer)
    rows.execute("update accounts set version = version + %s where id = %s", (moved_by, account.account_id))
    assert (
        kinds(writer.write([account.credit(), account.credit(), account.credit(), account.credit()]))
        == ["Stale"] * 4
    )
    assert head(rows, account.account_id) == (moved_by, 0, 0)
    assert count(rows, "operations") == 0


@pytest.mark.parametrize("kind", ["account", "task", "sign_in"])
def test_a_fence_on_a_row_that_is_not_there_is_stale(
    writer: BatchWriter, rows: psycopg.Connection[Any], kind: Any
) -> None:
    fence = Fence(kind, "missing", 0 if kind != "sign_in" else 3)
    assert writer.write([Unit(fences=(fence,), rows=(ApiKeyRevokedRow("a", "k", AT),))]) == [Stale((fence,))]
    assert count(rows, "journal_batches") == 0


def test_a_unit_needs_both_its_fences_and_names_the_stale_one(
    writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    [account] = opened(writer)
    task = make_task(account.account_id, "task_1", AT, version=4)
    assert all_committed(writer.write([Unit(rows=(NewTaskRow(task),))]))
    unit = account.credit()
    joint = fenced_as(unit, fences=(*unit.fences, Fence("task", "task_1", 3)))
    assert writer.write([joint, account.credit()]) == [
        Stale((Fence("task", "task_1", 3),)),
        Stale((Fence("account", account.account_id, 1),)),
    ]
    assert head(rows, account.account_id) == (0, 0, 0)


def fenced_as(unit: Unit, *, fences: tuple[Fence, ...]) -> Unit:
    return Unit(fences=fences, rows=unit.rows, probe=unit.probe)


def test_the_first_sign_in_of_a_key_needs_no_row(writer: BatchWriter, rows: psycopg.Connection[Any]) -> None:
    def step(version: int) -> Unit:
        row = SignInRow("email:a@x", version + 1, AT, {})
        return Unit(fences=(Fence("sign_in", "email:a@x", version),), rows=(row,))

    assert kinds(writer.write([step(0), step(1), step(1)])) == ["Committed", "Committed", "Stale"]
    assert kinds(writer.write([step(0)])) == ["Stale"]
    assert rows.execute("select version from sign_ins").fetchall() == [(2,)]


def test_checking_a_fence_writes_nothing_and_moves_nothing(
    writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    [account] = opened(writer)
    asked = [Unit(fences=(Fence("account", account.account_id, version),), advances=False) for version in (0, 0, 1)]
    assert kinds(writer.write(asked)) == ["Committed", "Committed", "Stale"]
    batches = count(rows, "journal_batches")
    first = account.credit()
    after_it = Unit(fences=(Fence("account", account.account_id, 1),), advances=False)
    assert all_committed(writer.write([first, after_it, account.credit()]))
    assert head(rows, account.account_id) == (2, 200, 2)
    assert count(rows, "journal_batches") == batches + 1


# ---------------------------------------------------------------------------------------------- idempotency probes


def probe_of(account: AccountUnits, key: str) -> IdempotencyProbe:
    return IdempotencyProbe(account.account_id, "POST /x", key)


def test_used_keys_return_their_replies_and_void_the_followers(
    writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    [account] = opened(writer)
    assert all_committed(writer.write([account.credit(key="k"), account.credit(key="l")]))
    results = writer.write([account.credit(key="k"), account.credit(key="other"), account.credit(key="l")])
    assert results[0] == AlreadyReplied(probe_of(account, "k"), StoredReply(b"print", b"reply to k"))
    assert isinstance(results[1], Stale)
    assert results[2] == AlreadyReplied(probe_of(account, "l"), StoredReply(b"print", b"reply to l"))
    assert head(rows, account.account_id) == (2, 200, 2)


def test_a_key_used_twice_within_a_batch_is_written_once(
    writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    [account] = opened(writer)
    results = writer.write([account.credit(key="k"), account.credit(key="k"), account.credit()])
    assert kinds(results) == ["Committed", "NotWritten", "Stale"]
    assert head(rows, account.account_id) == (1, 100, 1)


def test_a_refusal_leaves_its_key_to_a_later_unit_of_its_batch(
    writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    """It stores no reply, so its sender may repeat the call under the same key and have it accepted."""
    [account] = opened(writer)
    refusal = account.refusal(key="k")
    assert kinds(writer.write([refusal, account.credit(key="k"), account.credit()])) == ["Committed"] * 3
    assert head(rows, account.account_id) == (2, 200, 2)
    # Once the key is used, before it or in the same batch, a refusal decided without that is void.
    assert kinds(writer.write([account.refusal(key="k")])) == ["AlreadyReplied"]
    assert kinds(writer.write([account.credit(key="l"), account.refusal(key="l")])) == ["Committed", "NotWritten"]


def test_a_reply_that_a_unit_names_voids_it_unless_it_is_known(
    writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    [account] = opened(writer)

    def unless(unit: Unit, known: bytes) -> Unit:
        return msgspec.structs.replace(unit, unless=Unless(probe_of(account, "named"), known))

    # Nothing is stored under the name, and nothing comes to be by these units: many of a batch may have one name.
    assert all_committed(writer.write([unless(account.credit(key=key), b"") for key in "abc"]))
    assert all_committed(writer.write([account.credit(key="named")]))
    stored = AlreadyReplied(probe_of(account, "named"), StoredReply(b"print", b"reply to named"))
    assert writer.write([unless(account.refusal(key="d"), known) for known in (b"", b"pr")]) == [stored] * 2
    assert all_committed(writer.write([unless(account.credit(key="d"), b"print")]))
    # The reply to its own key comes first.
    own = AlreadyReplied(probe_of(account, "d"), StoredReply(b"print", b"reply to d"))
    assert writer.write([unless(account.refusal(key="d"), b"")]) == [own]
    assert head(rows, account.account_id) == (5, 500, 5)


def test_two_accounts_may_use_the_same_key(writer: BatchWriter, rows: psycopg.Connection[Any]) -> None:
    one, two = opened(writer, 2)
    assert all_committed(writer.write([one.credit(key="k"), two.credit(key="k")]))
    assert count(rows, "idempotency_records") == 2


@pytest.mark.parametrize("name", POISONS)
def test_a_rejected_unit_voids_only_its_followers(
    writer: BatchWriter, rows: psycopg.Connection[Any], name: str
) -> None:
    neighbour, broken, other = opened(writer, 3)
    poison = broken.unit(extra=(POISONS[name],))
    batch = [neighbour.credit(), poison, broken.credit(), other.credit(), neighbour.credit()]
    results = writer.write(batch)
    assert kinds(results) == ["Committed", "Broken", "Stale", "Committed", "Committed"]
    assert head(rows, neighbour.account_id) == (2, 200, 2)
    assert head(rows, broken.account_id) == (0, 0, 0)
    assert isinstance(results[1], Broken)
    # The connection can be used for the next batch.
    assert all_committed(writer.write([other.credit()]))


def test_a_follower_is_void_when_units_are_written_one_by_one(
    writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    broken, poisoned = opened(writer, 2)
    first, follower = broken.credit(), broken.credit()
    rows.execute("update accounts set version = version + 1 where id = %s", (broken.account_id,))
    results = writer.write([poisoned.unit(extra=(POISONS["NUL"],)), first, follower])
    assert kinds(results) == ["Broken", "Stale", "Stale"]
    assert head(rows, broken.account_id) == (1, 0, 0)


# ----------------------------------------------------------------------------------------------------- two writers


def test_two_writers_over_the_same_accounts_never_deadlock(
    database_url: str, writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    account_ids = [account.account_id for account in opened(writer, 12)]
    outcomes: list[str] = []

    def work(order: int) -> None:
        with (
            closing(BatchWriter(Database(database_url).keep_writer(), now=utc_now)) as mine,
            closing(psycopg.connect(database_url, autocommit=True)) as reader,
        ):
            for _ in range(25):
                seen: dict[str, int] = dict(reader.execute("select id, version from accounts").fetchall())
                units = []
                for account_id in account_ids[::order]:
                    account = AccountUnits(account_id)
                    account.state.version = seen[account_id]
                    sign_in = SignInRow(f"email:{account_id}", 1, AT, {})
                    units.append(account.unit())
                    units.append(Unit(fences=(Fence("sign_in", sign_in.key, 0),), rows=(sign_in,)))
                outcomes.extend(kinds(mine.write(units)))

    threads = [threading.Thread(target=work, args=(order,)) for order in (1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(outcomes) == 2 * 25 * 24
    assert set(outcomes) <= {"Committed", "Stale"}
    moved = rows.execute("select sum(version) from accounts").fetchone()
    assert moved is not None
    assert moved[0] + 12 == outcomes.count("Committed")


@pytest.fixture
def impatient(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection for a writer that soon gives up waiting for a lock."""
    with closing(psycopg.connect(database_url)) as connection:
        connection.execute("set lock_timeout = 50")
        connection.commit()
        yield connection


def test_a_batch_is_written_without_the_units_of_a_locked_row(
    rows: psycopg.Connection[Any], impatient: psycopg.Connection[Any]
) -> None:
    writer = BatchWriter(KeptConnection(lambda: impatient), now=utc_now)
    held, free = opened(writer, 2)
    first, follower = held.credit(), held.credit()
    with rows.transaction():
        rows.execute("select 1 from accounts where id = %s for update", (held.account_id,))
        results = writer.write([first, free.credit(), follower, free.credit()])
        # The follower was decided on top of what was not written; its actor must not count it as a conflict.
        assert kinds(results) == ["NotWritten", "Committed", "NotWritten", "Committed"]
        assert not any(isinstance(result, NotWritten) and result.timed_out for result in results)
        # From now on nothing waits for that row: a wait would last until the statement is cancelled, and void all.
        impatient.execute("set lock_timeout = 0; set statement_timeout = '30s'")
        impatient.commit()
        missing = Unit(fences=(Fence("task", "task_missing", 1),))
        results = writer.write([first, follower, free.credit(), missing])
        assert kinds(results) == ["NotWritten", "NotWritten", "Committed", "Stale"]
    assert all_committed(writer.write([first, follower, free.credit()]))
    assert head(rows, held.account_id) == (2, 200, 2)
    assert head(rows, free.account_id) == (4, 400, 4)


def test_a_lock_is_waited_for_again_once_its_row_was_free(
    database_url: str, rows: psycopg.Connection[Any], impatient: psycopg.Connection[Any]
) -> None:
    writer = BatchWriter(KeptConnection(lambda: impatient), now=utc_now)
    [account] = opened(writer)
    unit = account.credit()
    with rows.transaction():
        rows.execute("select 1 from accounts for update")
        assert kinds(writer.write([unit])) == ["NotWritten"]
    assert all_committed(writer.write([unit]))
    impatient.execute("set lock_timeout = '60s'")
    impatient.commit()
    results: list[UnitResult] = []
    with closing(psycopg.connect(database_url)) as holder:
        holder.execute("select 1 from accounts for update")
        thread = threading.Thread(target=lambda: results.extend(writer.write([account.credit()])))
        thread.start()
        waiting = "select 1 from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
        limit = time.monotonic() + 60
        while rows.execute(waiting, (impatient.info.backend_pid,)).fetchone() is None:
            assert time.monotonic() < limit
            time.sleep(0.005)
        holder.rollback()
        thread.join(60)
    assert all_committed(results)
    assert len(results) == 1


def test_a_batch_that_waits_too_long_for_a_table_can_be_repeated(
    rows: psycopg.Connection[Any], impatient: psycopg.Connection[Any]
) -> None:
    writer = BatchWriter(KeptConnection(lambda: impatient), now=utc_now)
    [account] = opened(writer)
    unit = account.credit()
    with rows.transaction():
        rows.execute("lock table accounts in access exclusive mode")
        [refused] = writer.write([unit])
    assert isinstance(refused, NotWritten)
    assert refused.timed_out
    assert "LockNotAvailable" in refused.reason
    assert all_committed(writer.write([unit]))


# ---------------------------------------------------------------------------------------------- prepared statements


def test_statements_that_are_outdated_break_no_unit(database_url: str, rows: psycopg.Connection[Any]) -> None:
    kept = Database(database_url).keep_writer()
    with closing(BatchWriter(kept, now=utc_now)) as writer:
        [account] = opened(writer)
        for _ in range(3):
            assert all_committed(writer.write([account.credit(key=str(account.state.version))]))
            kept.get().execute("deallocate all")
            kept.get().commit()
    assert head(rows, account.account_id) == (3, 300, 3)


# ---------------------------------------------------------------------------------------------- the immutable past


@pytest.mark.parametrize("table", ["operations", "postings"])
@pytest.mark.parametrize("statement", ["update {} set amount_micro = 1", "delete from {}", "truncate {}"])
def test_operations_and_postings_cannot_be_changed(
    writer: BatchWriter, rows: psycopg.Connection[Any], table: str, statement: str
) -> None:
    [account] = opened(writer)
    assert all_committed(writer.write([account.credit()]))
    before = count(rows, table)
    with pytest.raises(psycopg.errors.Error, match=table):
        rows.execute(sql.SQL(statement).format(sql.Identifier(table)))
    assert count(rows, table) == before


def test_statements_larger_than_the_buffers_of_the_connection_are_sent(
    writer: BatchWriter, rows: psycopg.Connection[Any]
) -> None:
    fence = Fence("sign_in", "email:a", 0)
    units = [Unit(fences=(fence,), rows=(SignInRow("email:a", 1, AT, {"text": "x" * 16_000_000}),))]
    results: list[UnitResult] = []
    sender = threading.Thread(target=lambda: results.extend(writer.write(units)), daemon=True)
    sender.start()
    sender.join(60)
    assert results == [Committed()]
    assert rows.execute("select version from sign_ins").fetchall() == [(1,)]
