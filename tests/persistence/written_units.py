"""Units of work for tests of the batch writer, and reads of what it wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from holdfast.ledger.api_keys import KeyTerms
from holdfast.ledger.credit.account import AccountState, decide_credit, decide_hold, decide_release
from holdfast.ledger.credit.operations import Operation
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import new_id, utc_now
from holdfast.persistence.journal.units import (
    Committed,
    Fence,
    Unit,
    UnitResult,
)
from holdfast.persistence.journal.writer import BatchWriter
from holdfast.persistence.records.key_rows import ApiKeyRecord, ApiKeyRevokedRow, ApiKeyRow
from holdfast.persistence.records.rows import (
    AccountHead,
    AccountRow,
    IdempotencyProbe,
    IdempotencyRow,
    Row,
    SignInRow,
    StoredReply,
)

AT = datetime(2026, 11, 20, 12, 0, 0, 123000, tzinfo=UTC)
BEYOND_ASCII = "\u00e9\u4f60\U0001f980"


@dataclass
class AccountUnits:
    """Decides units for one account as its actor would, on a state of its own."""

    account_id: str = field(default_factory=lambda: new_id("acct"))

    def __post_init__(self) -> None:
        self.state = AccountState(self.account_id)

    def opening(self) -> Unit:
        email = f"{self.account_id}@example.com"
        return Unit(rows=(AccountRow(AccountHead(self.account_id), email, "User", "b", AT),))

    def credit(self, amount_micro: int = 100, **more: Any) -> Unit:
        decided = decide_credit(
            self.state,
            operation_id=new_id("op"),
            amount_micro=amount_micro,
            source="sandbox",
            reference="r",
            reason=BEYOND_ASCII,
            at=AT,
        )
        return self.unit(decided, **more)

    def hold(self, hold_id: str, amount_micro: int = 30) -> Unit:
        decided = decide_hold(
            self.state,
            operation_id=new_id("op"),
            hold_id=hold_id,
            amount_micro=amount_micro,
            reference="r",
            at=AT,
        )
        return self.unit(decided)

    def release(self, hold_id: str) -> Unit:
        decided = decide_release(
            self.state, operation_id=new_id("op"), hold_id=hold_id, reference="r", reason=BEYOND_ASCII, at=AT
        )
        return self.unit(decided)

    def refusal(self, *, key: str) -> Unit:
        """The unit of a refusal that is not stored: it checks its fence, and that the key is unused."""
        fence = Fence("account", self.account_id, self.state.version)
        return Unit(fences=(fence,), probe=IdempotencyProbe(self.account_id, "POST /x", key), advances=False)

    def unit(
        self,
        operation: Operation | Refusal | None = None,
        *,
        key: str | None = None,
        extra: tuple[Row, ...] = (),
        fences: tuple[Fence, ...] = (),
    ) -> Unit:
        state = self.state
        assert not isinstance(operation, Refusal)
        if operation is not None:
            state.apply(operation)
        fence = Fence("account", self.account_id, state.version)
        state.version += 1
        head = AccountHead(
            self.account_id,
            state.version,
            state.number,
            state.balance_micro,
            state.held_micro,
            state.chain_head,
            state.lots.encoded(),
        )
        probe = None
        if key is not None:
            probe = IdempotencyProbe(self.account_id, "POST /x", key)
            reply = StoredReply(b"print", f"reply to {key}".encode("utf-8", "replace"))
            extra = (*extra, IdempotencyRow(probe, reply, utc_now()))
        operations = () if operation is None else (operation,)
        return Unit(fences=(fence, *fences), rows=(head, *operations, *extra), probe=probe)


def opened(writer: BatchWriter, how_many: int = 1) -> list[AccountUnits]:
    accounts = [AccountUnits() for _ in range(how_many)]
    assert all_committed(writer.write([account.opening() for account in accounts]))
    return accounts


def all_committed(results: Sequence[UnitResult]) -> bool:
    return all(isinstance(verdict, Committed) for verdict in results)


def kinds(results: Sequence[UnitResult]) -> list[str]:
    return [type(verdict).__name__ for verdict in results]


def head(rows: psycopg.Connection[Any], account_id: str) -> tuple[int, int, int]:
    found = rows.execute(
        "select version, balance_micro, operation_count from accounts where id = %s", (account_id,)
    ).fetchone()
    assert found is not None
    return found[0], found[1], found[2]


def count(rows: psycopg.Connection[Any], table: str) -> int:
    found = rows.execute(sql.SQL("select count(*) from {}").format(sql.Identifier(table))).fetchone()
    assert found is not None
    return int(found[0])


WRONG: Any = 5


NULL: Any = None


POISONS: dict[str, Row] = {
    "NUL": ApiKeyRevokedRow("a", "a\x00b", AT),
    "lone surrogate": ApiKeyRevokedRow("a", "\ud800", AT),
    "too large": AccountHead("a", 2**70),
    "not JSON": SignInRow("k", 1, AT, msgspec.Raw(b"{")),
    "wrong type": ApiKeyRevokedRow("a", "k", WRONG),
    "NULL": ApiKeyRow(ApiKeyRecord("a", "k", "p", KeyTerms(NULL, ()), AT), b""),
}
