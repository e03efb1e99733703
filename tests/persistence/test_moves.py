"""Moves of accounts between the databases of two cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import psycopg
import pytest
from sqlalchemy import JSON, Connection, select, text
from tests.fresh_databases import FreshDatabases

from holdfast.ledger.cells import Cell
from holdfast.ledger.cells import Cells as AllCells
from holdfast.ledger.values import PLACES, place_of, utc_now
from holdfast.persistence.audit import audit
from holdfast.persistence.audit.audit import AccountsCheck, run_audit
from holdfast.persistence.audit.moves import MOVE_RULES, differences_between
from holdfast.persistence.claims.contents import claim_contents
from holdfast.persistence.journal.units import Committed, Fence, Stale, Unit
from holdfast.persistence.journal.writer import BatchWriter
from holdfast.persistence.operators.moves import (
    COPIED,
    LEAVING,
    OF_THE_CELL,
    MoveRefused,
    Unfinished,
    arrive,
    complete,
    contents_of,
    depart,
    find_move,
    undo,
)
from holdfast.persistence.operators.overrides import find_overrides, write_override
from holdfast.persistence.queries.books import revenue, trial_balance
from holdfast.persistence.queries.loading import load_account
from holdfast.persistence.queries.moves import (
    Away,
    find_moves_of_email,
    find_moves_of_place,
    find_unreachable,
    has_departed_since,
    is_email_elsewhere,
)
from holdfast.persistence.records.move_tables import AccountMove
from holdfast.persistence.records.operator_tables import Override
from holdfast.persistence.records.tables import metadata
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.database import Database

from .tampered_rows import tamper

SOURCE, TARGET = 1, 2
BOTH = AllCells(SOURCE, [Cell(number, (), (), "", "") for number in (SOURCE, TARGET)])
ALL_TIME = {"since": datetime(2020, 1, 1, tzinfo=UTC), "until": datetime(2100, 1, 1, tzinfo=UTC)}


class Cells(NamedTuple):
    """Two cells: their databases, and a connection to each."""

    source_url: str
    target_url: str
    source: Connection
    target: Connection

    def move(self, account_id: str) -> None:
        """Take every step."""
        move = self.depart(account_id)
        arrive(self.source, self.target, move, cell=SOURCE)
        complete(self.source, move)

    def move_back(self, account_id: str) -> None:
        """Take every step of the way back."""
        move = depart(self.target, account_id, to=SOURCE)
        assert isinstance(move, AccountMove)
        arrive(self.target, self.source, move, cell=TARGET)
        complete(self.target, move)

    def depart(self, account_id: str) -> AccountMove:
        with closing(psycopg.connect(self.target_url, autocommit=True)) as rows:
            claim_contents(
                rows,
                contents_of(self.source, account_id, archive_type="application/zip"),
                datetime(2100, 1, 1, tzinfo=UTC),
            )
        move = depart(self.source, account_id, to=TARGET)
        assert isinstance(move, AccountMove)
        return move

    def balanced(self) -> dict[str, Decimal]:
        """The trial balances of both cells, which each must balance, added up."""
        total: dict[str, Decimal] = {}
        for rows in (self.source, self.target):
            with rows.begin():
                found = trial_balance(rows)
            assert found.is_balanced, found
            for each in found.ledger_accounts:
                total[each.ledger_account] = total.get(each.ledger_account, Decimal()) + Decimal(each.balance)
        return {name: amount for name, amount in total.items() if amount}

    def differences(self) -> list[str]:
        with connected(self.source_url) as source, connected(self.target_url) as target:
            return list(differences_between({"one": source, "two": target}))

    def captured(self) -> dict[str, Decimal]:
        total: dict[str, Decimal] = {}
        for rows in (self.source, self.target):
            with rows.begin():
                for line in revenue(rows, "day", **ALL_TIME).data:
                    total[line.day] = total.get(line.day, Decimal()) + Decimal(line.amount)
        return total

    def audits(self) -> None:
        """Each cell breaks no rule, nor do both together."""
        assert self.differences() == []
        for url in (self.source_url, self.target_url):
            with connected(url) as rows:
                assert run_audit(rows) == {}


@pytest.fixture
def cells(books_url: str, fresh_databases: FreshDatabases) -> Iterator[Cells]:
    """A cell with accounts, and an empty one."""
    target_url = fresh_databases.take()
    with ExitStack() as stack:
        opened = [stack.enter_context(connected(url)) for url in (books_url, target_url)]
        yield Cells(books_url, target_url, *opened)
    fresh_databases.drop(target_url)


def rows_of(rows: Connection, account_id: str) -> dict[str, list[str]]:
    """Every row of an account, as PostgreSQL writes it."""
    found = {}
    with rows.begin():
        for table in {**LEAVING, **COPIED}:
            where = COPIED.get(table, f"{LEAVING.get(table)} = :account_id")
            query = text(f"select cast(t as text) from {table} t where {where} order by 1")
            found[table] = [*rows.execute(query, {"account_id": account_id}).scalars()]
    return found


def where_is(rows: Connection, account_id: str) -> tuple[Away | None, bool]:
    with rows.begin():
        by_email = find_moves_of_email(rows, f"{account_id}@example.com").away
        return find_moves_of_place(rows, place_of(account_id)).away, by_email is not None


def accounts_of(rows: Connection) -> list[str]:
    with rows.begin():
        return [*rows.execute(text("select id from accounts order by id")).scalars()]


def open_account(rows: Connection, account_id: str, email: str) -> None:
    """Insert an account to which nothing has happened."""
    rows.execute(
        text(
            "insert into accounts (id, email, role, brand_id, created_at, version, operation_count, balance_micro,"
            " held_micro, chain_head) values (:id, :email, 'User', 'holdfast', now(), 0, 0, 0, 0, :chain_head)"
        ),
        {"id": account_id, "email": email, "chain_head": bytes(32)},
    )


def test_something_is_decided_about_every_table() -> None:
    assert sorted([*LEAVING, *COPIED, *OF_THE_CELL]) == sorted(metadata.tables)


def test_every_table_that_names_accounts_moves() -> None:
    owned = {name for name, table in metadata.tables.items() if "account_id" in table.columns}
    stays = {"account_moves", "moving_rows", "audit_differences", "reports"}
    assert owned - stays <= {*LEAVING, *COPIED}


@pytest.mark.parametrize("account_id", ["acct_ada", "acct_bob", "acct_dan", "acct_eva", "acct_new"])
def test_an_account_moves_with_all_its_rows(cells: Cells, account_id: str) -> None:
    before, balances, captured = rows_of(cells.source, account_id), cells.balanced(), cells.captured()
    cells.move(account_id)
    assert rows_of(cells.target, account_id) == before
    left = {table: found for table, found in rows_of(cells.source, account_id).items() if found}
    assert left == {table: before[table] for table in COPIED if before[table]}
    assert cells.balanced() == balances
    assert cells.captured() == captured
    cells.audits()


def test_an_account_that_departs_while_it_is_audited_breaks_no_rule(cells: Cells) -> None:
    with connected(cells.source_url) as rows:
        rows.execution_options(isolation_level="AUTOCOMMIT")
        check = AccountsCheck({"acct_ada": 1})
        for number, (_, slice_) in enumerate(check.slices()):
            slice_(rows)
            if number == 0:
                cells.move("acct_ada")
        assert check.found == {}


def test_no_checkpoint_follows_a_difference_that_a_departure_hides(
    cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "OPERATIONS_MAX", 1)
    tamper(cells.source_url, "update operations set reason = 'a gift' where account_id = 'acct_ada' and number = 9")
    with connected(cells.source_url) as rows:
        rows.execution_options(isolation_level="AUTOCOMMIT")
        check = AccountsCheck({"acct_ada": 1})
        for number, (_, slice_) in enumerate(check.slices()):
            slice_(rows)
            if number == 0:
                cells.depart("acct_ada")
        assert check.found == {}
        # The move may be undone, and later checks would begin at the checkpoint.
        count = text("select count(*) from checkpoints")
        before = rows.execute(count).scalar_one()
        check.write_checkpoints(rows)
        assert rows.execute(count).scalar_one() == before


def test_receipts_keep_their_numbers_in_the_series_of_their_cell(cells: Cells) -> None:
    with cells.source.begin():
        query = text("select sequence, number from receipts where account_id = 'acct_cho' order by 1")
        before = cells.source.execute(query).all()
    assert before
    cells.move("acct_cho")
    with cells.target.begin():
        assert cells.target.execute(query).all() == [(10**12 + sequence, number) for sequence, number in before]
    cells.audits()


def test_an_account_can_come_back_and_leave_again(cells: Cells) -> None:
    balances = cells.balanced()
    cells.move("acct_cho")
    cells.move_back("acct_cho")
    assert find_move(cells.source, "acct_cho") is None
    assert where_is(cells.source, "acct_cho") == (None, False)
    assert where_is(cells.target, "acct_cho") == (Away(SOURCE, is_closed=False), True)
    assert cells.balanced() == balances
    cells.audits()
    cells.move("acct_cho")
    assert cells.balanced() == balances
    cells.audits()


def test_an_account_comes_back_before_its_move_was_completed(cells: Cells) -> None:
    balances = cells.balanced()
    move = cells.depart("acct_ada")
    arrive(cells.source, cells.target, move, cell=SOURCE)
    before = rows_of(cells.target, "acct_ada")
    returning = depart(cells.target, "acct_ada", to=SOURCE)
    assert isinstance(returning, AccountMove)
    arrive(cells.target, cells.source, returning, cell=TARGET)
    for _ in range(2):
        assert find_move(cells.source, "acct_ada") is None
        assert where_is(cells.source, "acct_ada") == (None, False)
        assert rows_of(cells.source, "acct_ada") == before
        # The command of the first move goes on.
        complete(cells.source, move)
    complete(cells.target, returning)
    assert cells.balanced() == balances
    cells.audits()
    cells.move("acct_ada")
    assert rows_of(cells.target, "acct_ada") == before
    cells.audits()


def set_creates(rows: Connection, number: float, *, ends_at: datetime) -> None:
    """Set the creates a second of an account, as an operator does."""
    at = utc_now()
    override = Override(
        "account_creates", "acct_ada", number, None, "why", None, "eve@example.com", "act_1", at, ends_at, 1
    )
    with rows.begin():
        write_override(rows, override)


def test_what_operators_set_for_an_account_comes_back_with_it(cells: Cells) -> None:
    def seen(rows: Connection) -> tuple[int, dict[float | None, bool]]:
        with rows.begin():
            found = find_overrides(rows)
        return sum(each.version for each in found), {each.number: each.ends_at > utc_now() for each in found}

    long = datetime(2100, 1, 1, tzinfo=UTC)
    set_creates(cells.source, 1.0, ends_at=long)
    cells.move("acct_ada")
    assert seen(cells.target) == (1, {1.0: True})
    set_creates(cells.target, 2.0, ends_at=long)
    versions, _ = seen(cells.source)
    cells.move_back("acct_ada")
    # The processes here have read the versions of before.
    (later, known) = seen(cells.source)
    assert (later > versions, known) == (True, {2.0: True})
    cells.move("acct_ada")
    with cells.target.begin():
        cells.target.execute(text("delete from overrides"))
    cells.move_back("acct_ada")
    (last, known) = seen(cells.source)
    assert (last > later, known) == (True, {2.0: False})


def test_the_balance_goes_from_the_books_of_one_cell_to_the_others(cells: Cells) -> None:
    cells.move("acct_bob")
    with cells.target.begin():
        found = {each.ledger_account: each.balance for each in trial_balance(cells.target).ledger_accounts}
        assert found == {"available": "5.00", "held": "0.00", "cells": "-5.00"}
        assert load_account(cells.target, "acct_bob").state.balance_micro == 5_000_000
    with cells.source.begin():
        found = {each.ledger_account: each.balance for each in trial_balance(cells.source).ledger_accounts}
    assert found["cells"] == "5.00"


# Where a command may end, and what it does when it is repeated.
STEPS: list[Callable[[Cells, AccountMove], None]] = [
    lambda cells, move: None,
    lambda cells, move: arrive(cells.source, cells.target, move, cell=SOURCE),
    lambda cells, move: complete(cells.source, move),
]


@pytest.mark.parametrize("done", [0, 1, 2, 3])
def test_a_move_goes_on_after_each_step_that_was_its_last(cells: Cells, done: int) -> None:
    before, balances = rows_of(cells.source, "acct_ada"), cells.balanced()
    move = cells.depart("acct_ada")
    for step in STEPS[:done]:
        step(cells, move)
    cells.audits()
    found = find_move(cells.source, "acct_ada")
    assert found is not None
    assert where_is(cells.source, "acct_ada") == (Away(TARGET, is_closed=done < 3), True)
    assert found.state == ("moved" if done == 3 else "closed")
    assert accounts_of(cells.source).count("acct_ada") == 0
    arrive(cells.source, cells.target, move, cell=SOURCE)
    complete(cells.source, move)
    assert rows_of(cells.target, "acct_ada") == before
    assert cells.balanced() == balances
    cells.audits()


def test_a_move_is_undone_as_if_nothing_had_happened(cells: Cells) -> None:
    before, balances = rows_of(cells.source, "acct_ada"), cells.balanced()
    move = cells.depart("acct_ada")
    undo(cells.source, cells.target, move, cell=SOURCE)
    undo(cells.source, cells.target, move, cell=SOURCE)
    assert rows_of(cells.source, "acct_ada") == before
    assert cells.balanced() == balances
    with pytest.raises(MoveRefused, match="was undone"):
        arrive(cells.source, cells.target, move, cell=SOURCE)
    complete(cells.source, move)
    assert accounts_of(cells.target) == []
    cells.audits()
    cells.move("acct_ada")
    assert rows_of(cells.target, "acct_ada") == before
    cells.audits()


def test_a_move_that_has_arrived_cannot_be_undone(cells: Cells) -> None:
    move = cells.depart("acct_ada")
    arrive(cells.source, cells.target, move, cell=SOURCE)
    with pytest.raises(MoveRefused, match="has arrived"):
        undo(cells.source, cells.target, move, cell=SOURCE)
    complete(cells.source, move)
    cells.audits()


def test_rows_that_break_a_rule_do_not_arrive(cells: Cells) -> None:
    move = cells.depart("acct_ada")
    with cells.source.begin():
        cells.source.execute(text("delete from moving_rows where table_name = 'holds'"))
    with pytest.raises(MoveRefused, match="break a rule"):
        arrive(cells.source, cells.target, move, cell=SOURCE)
    assert accounts_of(cells.target) == []


@pytest.mark.parametrize("fence", [Fence("account", "acct_ada", 12), Fence("task", "task_open", 1)])
def test_what_was_decided_before_a_departure_is_stale(cells: Cells, fence: Fence) -> None:
    confirm = Unit(fences=(fence,), advances=False)
    with cells.source.begin():
        table, key = ("accounts", "id") if fence.kind == "account" else ("tasks", "request_id")
        query = text(f"select version from {table} where {key} = :key")
        fence = fence._replace(expected=cells.source.execute(query, {"key": fence.key}).scalar_one())
    confirm = Unit(fences=(fence,), advances=False)
    with closing(BatchWriter(Database(cells.source_url).keep_writer(), now=utc_now)) as writer:
        assert writer.write([confirm]) == [Committed()]
        cells.depart("acct_ada")
        assert writer.write([confirm]) == [Stale((fence,))]


UNFENCED = (
    "archives", "coupon_tries", "coupon_uses", "file_uses", "files", "outbox", "sessions", "webhook_secrets",
)  # fmt: skip


@pytest.mark.parametrize("table", UNFENCED)
def test_nothing_is_added_without_the_fence_after_a_departure(cells: Cells, table: str) -> None:
    values: dict[str, Any] = {}
    for column in metadata.tables[table].columns:
        kind = dict if isinstance(column.type, JSON) else column.type.python_type
        values[column.name] = {str: "x", int: 1, bytes: b"x", dict: {}, datetime: datetime.now(UTC)}[kind]
    values |= {"account_id": "acct_ada"} | ({"kind": "webhook.test"} if table == "outbox" else {})
    added = metadata.tables[table].insert().values(values)
    with cells.source.begin() as change:
        cells.source.execute(added)
        change.rollback()
    cells.depart("acct_ada")
    with pytest.raises(Exception, match="account acct_ada is in another cell"), cells.source.begin():
        cells.source.execute(added)


def test_an_account_departs_once_its_receipts_are_issued(cells: Cells) -> None:
    with cells.source.begin():
        cells.source.execute(text("alter table receipts disable trigger receipts_are_immutable"))
        cells.source.execute(text("delete from receipts where account_id = 'acct_cho'"))
    assert isinstance(found := depart(cells.source, "acct_cho", to=TARGET), Unfinished)
    assert found.receipts > 0
    assert "acct_cho" in accounts_of(cells.source)


def test_all_moved_accounts_of_a_place_are_in_one_cell(cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.persistence.operators.moves.place_of", lambda _: 7)
    cells.depart("acct_ada")
    with pytest.raises(MoveRefused, match="of the same place is in cell 2"):
        depart(cells.source, "acct_bob", to=3)
    with pytest.raises(MoveRefused, match="is not in this cell"):
        depart(cells.source, "acct_none", to=3)


@pytest.mark.parametrize(
    ("find", "index"),
    [
        (lambda rows: find_moves_of_place(rows, 7), "ix_account_moves_place"),
        (lambda rows: find_moves_of_email(rows, "ada@example.com"), "ix_account_moves_email"),
        (lambda rows: rows.execute(select(is_email_elsewhere("ada@example.com"))), "ix_account_moves_email"),
    ],
    ids=["place", "email", "sign-in"],
)
def test_moves_are_found_by_an_index(cells: Cells, find: Callable[[Connection], object], index: str) -> None:
    with connected(cells.source_url) as rows, rows.begin():
        for _ in range(8):  # then the driver has prepared it
            find(rows)
        prepared = "select name, cardinality(parameter_types) from pg_prepared_statements where statement ~ 'moves'"
        [(name, many)] = rows.execute(text(prepared)).all()
        # A small table would be read whole, and with few values each execution is planned for them.
        rows.execute(text("set local enable_seqscan = off"))
        rows.execute(text("set local plan_cache_mode = force_generic_plan"))
        plan = "\n".join(rows.execute(text(f"explain execute {name}({', '.join(['null'] * many)})")).scalars())
    assert index in plan, plan


def test_an_account_that_its_owner_has_closed_does_not_move(cells: Cells) -> None:
    with cells.source.begin():
        cells.source.execute(text("update accounts set closed_at = now() where id = 'acct_new'"))
    with pytest.raises(MoveRefused, match="acct_new was closed by its owner"):
        depart(cells.source, "acct_new", to=TARGET)


def test_a_move_is_remembered_from_its_departure_until_after_its_end(cells: Cells) -> None:
    def is_recent() -> bool:
        with cells.source.begin():
            return has_departed_since(cells.source, timedelta(minutes=1), BOTH)

    def grow_old() -> None:
        with cells.source.begin():
            cells.source.execute(text("update account_moves set at = now() - interval '1 hour'"))

    assert not is_recent()
    move = cells.depart("acct_ada")
    grow_old()
    assert is_recent()
    arrive(cells.source, cells.target, move, cell=SOURCE)
    complete(cells.source, move)
    assert is_recent()
    grow_old()
    assert not is_recent()
    with cells.target.begin():
        assert not has_departed_since(cells.target, timedelta(minutes=1), BOTH)
    with cells.source.begin():
        # By the list of before, the order of a card event may be in the cell that it does not name.
        assert has_departed_since(cells.source, timedelta(minutes=1), AllCells(SOURCE, BOTH.all[:1]))


def test_a_new_account_of_a_closed_ones_address_is_found(cells: Cells) -> None:
    cells.move("acct_ada")
    close(cells.target, "acct_ada")
    with cells.target.begin():
        open_account(cells.target, "acct_a", "acct_ada@example.com")
        open_account(cells.target, "acct_b", "acct_b@example.com")
    every, none = (range(PLACES),), ()
    one = Cell(SOURCE, none, every, "http://one", "http://one")
    two = Cell(TARGET, every, none, "http://two", "http://two")
    with cells.target.begin():
        assert find_unreachable(cells.target, AllCells(TARGET, [one, two])) == ["acct_b"]


def close(rows: Connection, account_id: str) -> None:
    """Write what is left of an account that its owner has closed."""
    with rows.begin():
        rows.execute(
            text("update accounts set email = 'closed:' || id, closed_at = now() where id = :id"),
            {"id": account_id},
        )


def test_an_address_whose_newest_account_came_back_is_not_away(cells: Cells) -> None:
    email = "acct_ada@example.com"

    def seen(rows: Connection) -> tuple[Away | None, bool]:
        with rows.begin():
            is_elsewhere = rows.scalar(select(is_email_elsewhere(email)))
            return find_moves_of_email(rows, email).away, bool(is_elsewhere)

    cells.move("acct_ada")
    close(cells.target, "acct_ada")
    with cells.target.begin():
        open_account(cells.target, "acct_ada2", email)
    assert seen(cells.source) == (Away(TARGET, is_closed=False), True)
    cells.move_back("acct_ada2")
    close(cells.source, "acct_ada2")
    assert seen(cells.source) == (None, False)
    assert seen(cells.target) == (Away(SOURCE, is_closed=False), True)
    with cells.source.begin():
        open_account(cells.source, "acct_ada3", email)
    cells.move("acct_ada3")
    assert seen(cells.source) == (Away(TARGET, is_closed=False), True)


def test_what_does_not_cancel_between_cells_is_found(cells: Cells) -> None:
    move = cells.depart("acct_ada")
    arrive(cells.source, cells.target, move, cell=SOURCE)
    with cells.target.begin():
        cells.target.execute(text("update account_moves set balance_micro = balance_micro + 1"))
        open_account(cells.target, "acct_bob", "b@example.com")
    assert cells.differences() == [
        "account acct_bob is in one and in two",
        f"move {move.move_id} of account acct_ada differs between its cells",
    ]
    with cells.target.begin():
        cells.target.execute(text("delete from account_moves"))
    complete(cells.source, move)
    assert cells.differences()[1].startswith("account acct_ada was moved to cell 2 at ")
    assert cells.differences()[1].endswith(", which does not know of it: the database there may be older than that")
    with cells.target.begin():
        assert not find_moves_of_place(cells.target, move.place).has_arrived
    with cells.source.begin():
        cells.source.execute(text("update account_moves set direction = 'in', state = 'arrived'"))
        assert find_moves_of_place(cells.source, move.place) == (None, True)
        assert find_moves_of_email(cells.source, "acct_ada@example.com").has_arrived
        assert not find_moves_of_email(cells.source, "acct_bob@example.com").has_arrived
    assert cells.differences()[1].startswith("account acct_ada came from cell 2 at ")


MOVE_RULES_BROKEN = [
    (
        "insert into account_moves values ('acct_new', 'mov_x', 'in', 'arrived', 2, 0, now(), 0, 0, 7, 0, '', '')",
        "each move names the last operation",
    ),
    ("update account_moves set number = number - 1", "each move names the last operation"),
    ("update account_moves set number_before = 0", "follows what this cell had"),
    ("insert into group_keys (account_id, key_id) values ('acct_ada', 'key_x')", "has left its journal"),
]


@pytest.mark.parametrize(("statement", "rule"), MOVE_RULES_BROKEN)
def test_what_a_moved_account_has_left_is_audited(cells: Cells, statement: str, rule: str) -> None:
    cells.move("acct_ada")
    with cells.source.begin():
        cells.source.execute(text(statement))
    with connected(cells.source_url) as rows:
        found = run_audit(rows)
    assert any(rule in each.rule for each in found)


@pytest.mark.parametrize("number_before", [1, 2, 3, 4])
def test_where_the_history_of_a_move_begins_is_audited(cells: Cells, number_before: int) -> None:
    cells.move("acct_bob")
    cells.move_back("acct_bob")
    cells.move("acct_bob")
    cells.audits()
    with cells.target.begin():
        query = "update account_moves set number_before = :before where state = 'arrived' and number_before = 0"
        assert cells.target.execute(text(query), {"before": number_before}).rowcount == 1
    with connected(cells.target_url) as rows:
        found = run_audit(rows)
    assert [each.rule for each in found] == [MOVE_RULES[1].name]
