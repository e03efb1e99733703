"""The migration that puts the credit of accounts in lots, on rows that the release before it wrote."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text
from tests.fresh_databases import drop_tables

from holdfast.persistence.audit.audit import run_audit
from holdfast.persistence.audit.rules import BrokenRule
from holdfast.persistence.queries.credentials import live_api_keys
from holdfast.persistence.queries.loading import load_account
from holdfast.persistence.server import migrate as migrate_module
from holdfast.persistence.server.connections import APPLICATION_NAME, connected
from holdfast.persistence.server.migrate import MigrationBlocked, migrate, pending
from holdfast.persistence.server.revisions import installed_revisions
from holdfast.persistence.server.upgrade import upgrade

from .account_history import AccountHistory
from .tampered_rows import LOT_OPENED, SHAPES, tamper

PENDING = installed_revisions()[1:]
BOOKS = Path(__file__).with_name("books_of_0100.sql")
MORE_ROWS = """
insert into api_keys (account_id, key_id, name, prefix, scopes, created_at, secret_sha256)
    values ('acct_bob', 'key_bob', 'bob', 'hf_1234', '{tasks:write}', now(), '\\x00');
insert into silent_receivers (account_id, since) values ('acct_ada', now());
update tasks set request = (request::jsonb || '{"metadata": {"end_user": "ann"}}')::json
    where request_id = 'task_done';
update tasks set request = (request::jsonb || '{"metadata": {"end_user": ""}}')::json
    where request_id = 'task_gone';
"""


@pytest.fixture
def old_url(database_url: str) -> str:
    """A database of the release before lots, with its rows."""
    drop_tables(database_url)
    with connected(database_url) as rows:
        upgrade(rows, "0100")
    with psycopg.connect(database_url) as connection:
        connection.execute(BOOKS.read_bytes())
        connection.execute(MORE_ROWS.encode())
    return database_url


def test_what_an_account_has_becomes_one_lot_of_paid_credit(old_url: str) -> None:
    assert migrate(old_url).applied == PENDING
    with connected(old_url) as rows:
        assert run_audit(rows) == {}
        lots = rows.execute(
            text(
                "select l.account_id, l.kind, l.amount_micro, l.expires_at, l.closed_number is null as is_open, "
                "a.balance_micro, a.held_micro, a.lots "
                "from credit_lots l join accounts a on (a.id, a.operation_count) = (l.account_id, l.number)"
            )
        ).all()
    assert {row.account_id: tuple(row)[1:] for row in lots} == {
        # It owes 2.40, and 1.00 of its credit is held.
        "acct_ada": ("paid", 1_000_000, None, True, -1_400_000, 1_000_000, None),
        "acct_bob": ("paid", 5_000_000, None, True, 5_000_000, 0, None),
        "acct_cho": ("paid", 16_000_000, None, True, 16_000_000, 0, None),
        "acct_dan": ("paid", 1_500_000, None, True, 1_500_000, 0, None),
        "acct_eve": ("paid", 2_500_000, None, True, 1_000_000, 2_500_000, None),
        "acct_fay": ("paid", 0, None, False, 0, 0, None),
        "acct_gus": ("paid", 4_000_000, None, True, 4_000_000, 4_000_000, None),
    }


def test_holds_from_before_lots_end_as_any_other(old_url: str) -> None:
    migrate(old_url)
    with connected(old_url) as rows:
        ada, eve, fay, gus = (
            AccountHistory(rows, account_id, load_account(rows, account_id).state)
            for account_id in ("acct_ada", "acct_eve", "acct_fay", "acct_gus")
        )
        ada.end("open", "succeeded", 250_000)
        ada.credit(10_000_000)
        eve.end("eve1", "succeeded", 1_500_000)
        eve.credit(3_000_000)
        eve.end("eve2", "failed", None)
        fay.credit(1_000_000)
        fay.task("fay2", 700_000)
        gus.end("gus1", "succeeded", 1_000_000)
        gus.credit(500_000)
        gus.task("gus2", 3_200_000)
        gus.end("gus2", "succeeded", 3_100_000)
        rows.commit()
        assert run_audit(rows) == {}
        balances = [each.state.balance_micro for each in (ada, eve, fay, gus)]
        # The second lot of gus has been used, too: 3.00 were left of the first.
        assert [(lot.number, lot.remaining_micro) for lot in gus.state.lots] == [(5, 400_000)]
    assert balances == [8_350_000, 2_500_000, 1_000_000, 400_000]


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ("update postings set lot = null where account_id = 'acct_gus' and lot is not null", SHAPES),
        ("delete from postings where account_id = 'acct_gus' and number = 3", SHAPES),
        ("update credit_lots set amount_micro = 1 where account_id = 'acct_gus'", LOT_OPENED),
        ("update credit_lots set source = 'order' where account_id = 'acct_gus'", LOT_OPENED),
    ],
)
def test_the_audit_checks_opening_balances(old_url: str, change: str, rule: str) -> None:
    migrate(old_url)
    tamper(old_url, change)
    with connected(old_url) as rows:
        assert BrokenRule("acct_gus", rule) in run_audit(rows)


def test_rows_of_before_have_what_the_tables_have_now(old_url: str) -> None:
    with psycopg.connect(old_url) as connection:
        [claimed] = connection.execute("select claimed_at from contents").fetchone() or ()
    migrate(old_url)
    with psycopg.connect(old_url) as connection:
        one = connection.execute(
            "select (select count(*) from outbox where receiver = account_id and webhook_id is null), "
            "(select array_agg(receiver) from silent_receivers), (select array_agg(distinct origin) from orders), "
            "(select extract(epoch from claimed_until - %s) from contents)",
            (claimed,),
        ).fetchone()
        assert one == (3, ["acct_ada"], ["customer"], 3 * 3600)
        totals = connection.execute(
            "select end_user_by, model, status, end_user, count, cost_micro from usage_totals "
            "where account_id = 'acct_ada' and span_s = 86400 order by 1, 2, 3, 4"
        ).fetchall()
    assert totals == [
        ("", "studio/still", "canceled", "", 1, 0),
        ("", "studio/still", "succeeded", "", 2, 2_500_000),
        ("api_key_id", "", "", "ann", 1, 2_500_000),
        ("model", "studio/still", "", "ann", 1, 2_500_000),
        ("status", "", "succeeded", "ann", 1, 2_500_000),
    ]
    with connected(old_url) as rows:
        [key] = live_api_keys(rows, "acct_bob")
    assert (key.terms.is_paused, key.terms.models, key.limit_micro, key.captured_micro) == (False, (), None, 0)


def test_a_process_of_the_earlier_release_writes_nothing_afterwards(old_url: str) -> None:
    """One that had no connection when the migration looked: each of its batches begins with this row."""
    migrate(old_url)
    with psycopg.connect(old_url) as connection, pytest.raises(psycopg.errors.UndefinedColumn, match="units"):
        connection.execute(
            "insert into journal_batches (batch_id, units, committed, at) values ('b', 1, true, now())"
        )


def test_it_is_refused_while_a_table_is_read(old_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate_module, "DDL_LOCK_S", 0.05)
    with psycopg.connect(old_url) as backup:
        backup.execute("select from accounts")
        with pytest.raises(MigrationBlocked, match="such as a backup"):
            migrate(old_url)
    assert pending(old_url) == PENDING


def test_an_opening_balance_has_the_services_time(old_url: str) -> None:
    with psycopg.connect(old_url) as connection:
        connection.execute("insert into service_clock values (1, 3600, 'p', now(), now())")
    migrate(old_url)
    with connected(old_url) as rows:
        assert run_audit(rows) == {}
        found = rows.execute(
            text(
                "select distinct at > now() + interval '59 minutes' from operations where kind = 'opening_balance'"
            )
        )
        assert found.scalars().all() == [True]


def test_it_is_refused_while_an_earlier_release_serves(old_url: str) -> None:
    with psycopg.connect(old_url, application_name=APPLICATION_NAME):
        with pytest.raises(MigrationBlocked, match="stop all of them"):
            migrate(old_url)
        assert pending(old_url) == PENDING
    assert migrate(old_url).applied == PENDING
