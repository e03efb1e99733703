"""Checkpoints of the audit: where they are written, what starts at them, and what they reveal."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy import insert, text

from holdfast.ledger.credit.account import AccountState, decide_credit
from holdfast.ledger.credit.operations import Operation
from holdfast.persistence.audit.audit import check_accounts
from holdfast.persistence.audit.history import CHAINS
from holdfast.persistence.records import tables
from holdfast.persistence.server.connections import connected

from .account_history import START, AccountHistory
from .tampered_rows import tamper

MATCHES = "each checkpoint matches the operation it names"


def audit(url: str, *, recent: bool = False, checkpoint: bool = False) -> tuple[set[str], int]:
    """Return the rules that are broken, and how many operations were hashed again."""
    names: set[str] = set()
    hashed = 0
    with connected(url) as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        for check in check_accounts(connection, recent=recent):
            if check.is_done:
                names |= {broken.rule for broken in check.found}
                hashed += check.operations
                if checkpoint:
                    check.write_checkpoints(connection)
    return names, hashed


def checkpoints(url: str) -> dict[str, list[int]]:
    """Return the numbers of each account's checkpoints."""
    found: dict[str, list[int]] = {}
    with psycopg.connect(url) as connection:
        for account_id, number in connection.execute("select account_id, number from checkpoints order by 1, 2"):
            found.setdefault(account_id, []).append(number)
    return found


def test_each_account_gets_a_checkpoint_at_its_newest_operation(books_url: str) -> None:
    assert checkpoints(books_url) == {"acct_ada": [4]}
    assert audit(books_url, checkpoint=True) == (set(), 32)
    written = {
        "acct_ada": [4, 10],
        "acct_bob": [3],
        "acct_cho": [3],
        "acct_dan": [2],
        "acct_eva": [7],
        "acct_gus": [7],
    }
    assert checkpoints(books_url) == written
    assert audit(books_url, checkpoint=True) == (set(), 32)
    assert checkpoints(books_url) == written


def test_a_recent_audit_begins_at_the_newest_checkpoints(books_url: str) -> None:
    assert audit(books_url, recent=True) == (set(), 28)
    assert audit(books_url, recent=True, checkpoint=True) == (set(), 28)
    assert audit(books_url, recent=True) == (set(), 0)
    with connected(books_url) as connection:
        newcomer = AccountHistory(connection, "acct_fay")
        newcomer.credit(1)
        newcomer.credit(2)
        connection.commit()
    assert audit(books_url, recent=True) == (set(), 2)
    assert audit(books_url) == (set(), 34)


def test_an_account_with_a_difference_gets_no_checkpoint(books_url: str) -> None:
    tamper(books_url, "update operations set reason = 'a gift' where account_id = 'acct_bob' and number = 2")
    assert audit(books_url, checkpoint=True)[0] == {CHAINS}
    assert checkpoints(books_url) == {
        "acct_ada": [4, 10],
        "acct_cho": [3],
        "acct_dan": [2],
        "acct_eva": [7],
        "acct_gus": [7],
    }


def test_a_change_after_the_checkpoint_is_found_by_a_recent_audit(books_url: str) -> None:
    tamper(books_url, "update operations set reason = 'a gift' where account_id = 'acct_ada' and number = 5")
    assert audit(books_url, recent=True)[0] == {CHAINS}


def test_a_change_before_the_checkpoint_is_found_by_the_whole_audit(books_url: str) -> None:
    tamper(books_url, "update operations set reason = 'a gift' where account_id = 'acct_ada' and number = 2")
    assert audit(books_url, recent=True)[0] == set()
    assert audit(books_url)[0] == {CHAINS}


@pytest.mark.parametrize("recent", [True, False])
def test_a_history_rewritten_with_its_hashes_does_not_match_its_checkpoint(database_url: str, recent: bool) -> None:
    with connected(database_url) as connection:
        AccountHistory(connection, "acct_eve").credit(5)
        connection.commit()
    assert audit(database_url, checkpoint=True) == (set(), 1)
    forged = decide_credit(
        AccountState("acct_eve"),
        operation_id="op_forged",
        amount_micro=5,
        source="sandbox",
        reference="forged",
        reason="forged",
        at=START,
    )
    assert isinstance(forged, Operation)
    tamper(database_url, "delete from operations where account_id = 'acct_eve'")
    with connected(database_url) as connection:
        row = {column.name: getattr(forged, column.name) for column in tables.operations.columns}
        connection.execute(insert(tables.operations).values(row))
        connection.execute(text("update accounts set chain_head = :head"), {"head": forged.chain_hash})
        connection.execute(text("update credit_lots set reference = 'forged'"))
        connection.commit()
    assert audit(database_url, recent=recent)[0] == {MATCHES}
