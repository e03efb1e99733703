"""Move an account from one cell's database to another's. No transaction spans both.

1. **Departure**, one transaction of the source: the rows of the account become JSON in ``moving_rows`` and are
   deleted, all but its journal, which is immutable and stays. So its fences are gone: whatever a process has still
   decided for it is stale, and no worker finds it.
2. **Arrival**, one transaction of the target: the rows are inserted, with a copy of the journal, counted, and
   checked by every rule of the audit.
3. **Completion** at the source: the account is marked as moved, and the JSON is deleted.

The account is in one of the databases at each moment, or closed. After a crash the same steps go on where it
stopped. Until the arrival a move can be undone: the target first records that it refuses this move, which waits for
an arrival that is being committed and prevents a later one; so a command that was frozen brings no second copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final, NamedTuple

from sqlalchemy import Connection, func, insert, select, text, update
from sqlalchemy.dialects.postgresql import insert as upsert

from holdfast.ledger.values import new_id, place_of
from holdfast.persistence.audit.audit import AccountsCheck
from holdfast.persistence.claims.contents import Content
from holdfast.persistence.queries.moves import sha256_of_email
from holdfast.persistence.records.move_tables import (
    RECEIPTS_OF_CELL,
    AccountMove,
    account_moves,
    moving_rows,
)
from holdfast.persistence.records.operator_tables import Override
from holdfast.persistence.records.tables import accounts, metadata, operations

LEAVING: Final[dict[str, str]] = {
    # No unit of work passes without the account's row or the task's, so those go first and last: what another
    # session wrote before it waited for either is found, and none is written after.
    "tasks": "account_id",
    **dict.fromkeys(
        (
            "account_changes", "account_limits", "alerts", "api_keys", "archives", "assets", "auto_top_ups",
            "coupon_tries", "coupon_uses", "credit_lots", "file_uses", "files", "group_keys", "holds",
            "idempotency_records", "key_groups", "order_payments", "orders", "outbox", "outbox_attempts",
            "payment_events", "sessions", "task_events", "usage_entries", "usage_totals", "webhook_secrets",
            "webhooks",
        ),
        "account_id",
    ),
    "accounts": "id",
}  # fmt: skip
"""The tables whose rows leave with an account, with the column that names it, in the order of their deletion."""

COPIED: Final[dict[str, str]] = {
    "operations": "account_id = :account_id",
    "postings": "account_id = :account_id",
    "checkpoints": "account_id = :account_id",
    "receipts": "account_id = :account_id",
    "operator_actions": "account_id = :account_id",
    "overrides": "kind = 'account_creates' and subject = :account_id",
}
"""The tables whose rows are copied and stay: the journal, which is immutable, and what operators did."""

OF_THE_CELL: Final = frozenset(
    {
        # Codes and guesses of some minutes, by address and by origin.
        "sign_ins",
        # A coupon is of one cell; its uses leave with their accounts.
        "coupons",
        # Content is copied with its store, before its rows.
        "contents",
        "account_moves", "audit_differences", "audit_progress", "check_callbacks", "given_emails",
        "journal_batches", "moving_rows", "operator_sessions",
        "poison_messages", "processes", "receipt_series", "reports", "service_clock",
        "silent_receivers", "singletons", "statement_keys",
    }
)  # fmt: skip
"""The tables of which nothing moves."""

LOCK_MS: Final = 10_000
CHUNK_BYTES: Final = 1 << 20
"""How much JSON is inserted at once, unless a row alone has more."""


class MoveRefused(Exception):
    """The move cannot be made, or not now; nothing was changed. The text says why."""


class Unfinished(NamedTuple):
    """What the account waits for at its cell before it can depart."""

    receipts: int
    coupons: int


_IS_AWAY = account_moves.c.state.in_(("closed", "moved"))
_HEAD = text(
    "select operation_count, balance_micro, held_micro, chain_head, email, closed_at from accounts "
    "where id = :account_id for update"
)
_UNFINISHED = text(
    """
    select (
        select count(*) from postings p join operations o using (account_id, number)
        where p.account_id = :account_id and p.ledger_account = 'cash:cardprovider'
          and not exists (select from receipts d where d.operation_id = o.operation_id)
    ) as receipts, (
        select count(*) from coupon_uses where account_id = :account_id and granted_at is null
    ) as coupons
    """
)
_DEPART = (
    "with gone as (delete from {table} where {owner} = :account_id returning *) "
    "insert into moving_rows (account_id, move_id, table_name, position, content) "
    "select :account_id, :move_id, '{table}', row_number() over (), row_to_json(gone) from gone"
)
_LEFT = text(
    "select cast(content as text) from moving_rows "
    "where account_id = :account_id and move_id = :move_id and table_name = :table order by position"
)
_END_OVERRIDES = text(
    f"update overrides set ends_at = least(ends_at, now()), version = version + 1 where {COPIED['overrides']}"
)
_SEQUENCE = (
    f"case when sequence < {RECEIPTS_OF_CELL} then sequence + :source * {RECEIPTS_OF_CELL} "
    f"when sequence / {RECEIPTS_OF_CELL} = :target then sequence % {RECEIPTS_OF_CELL} else sequence end"
)
_CONTENTS = text(
    """
    select sha256, content_type from assets where account_id = :account_id
    union select sha256, content_type from files where account_id = :account_id
    union select sha256, :archive_type from archives where account_id = :account_id and sha256 is not null
    union select content ->> 'sha256', coalesce(content ->> 'content_type', :archive_type) from moving_rows
        where account_id = :account_id and table_name in ('assets', 'files', 'archives')
          and content ->> 'sha256' is not null
    """
)


def find_move(rows: Connection, account_id: str) -> AccountMove | None:
    """Return the move by which an account is away from this cell; None if it is not."""
    query = select(account_moves).where(account_moves.c.account_id == account_id, _IS_AWAY)
    with rows.begin():
        found = rows.execute(query).one_or_none()
    return None if found is None else AccountMove._make(found)


def came_from(rows: Connection, account_id: str) -> int | None:
    """Return the cell from which an account has last come to this one; None if it never has."""
    moves = account_moves.c
    arrived = select(moves.cell).where(moves.account_id == account_id, moves.state == "arrived")
    with rows.begin():
        return rows.scalar(arrived.order_by(moves.number.desc(), moves.move_id.desc()).limit(1))


def depart(rows: Connection, account_id: str, *, to: int) -> AccountMove | Unfinished:
    """Close an account for a move to another cell; return the move, or what it has to wait for. Commits.

    Raises :class:`MoveRefused` if the account is not here, or another account of its place is in another cell.
    """
    with rows.begin():
        _limit_waits(rows)
        head = rows.execute(_HEAD, {"account_id": account_id}).one_or_none()
        if head is None:
            raise MoveRefused(f"{account_id} is not in this cell.")
        if head.closed_at is not None:
            # Its address may have a new account, which is found by a move of this one.
            raise MoveRefused(f"{account_id} was closed by its owner.")
        unfinished = Unfinished._make(rows.execute(_UNFINISHED, {"account_id": account_id}).one())
        if any(unfinished):
            return unfinished
        place = place_of(account_id)
        # Two departures of one place would not see each other.
        rows.execute(text("select pg_advisory_xact_lock(hashtextextended('moves', :place))"), {"place": place})
        elsewhere = rows.scalar(
            select(account_moves.c.cell).where(account_moves.c.place == place, _IS_AWAY, account_moves.c.cell != to)
        )
        if elsewhere is not None:
            raise MoveRefused(
                f"An account of the same place is in cell {elsewhere}: this one can only be moved there, too."
            )
        move = AccountMove(
            account_id,
            new_id("mov"),
            "out",
            "closed",
            to,
            place,
            rows.execute(select(func.now())).scalar_one(),
            head.operation_count,
            head.operation_count,
            head.balance_micro,
            head.held_micro,
            bytes(head.chain_head),
            sha256_of_email(head.email),
        )
        for table, owner in LEAVING.items():
            given = {"account_id": account_id, "move_id": move.move_id}
            rows.execute(text(_DEPART.format(table=table, owner=owner)), given)
        rows.execute(insert(account_moves).values(move._asdict()))
    return move


def arrive(source: Connection, target: Connection, move: AccountMove, *, cell: int) -> None:
    """Insert the rows of a closed account that moves from ``cell``; nothing if they are there. Commits.

    Raises :class:`MoveRefused` if the move was undone, or the rows break a rule.
    """
    with target.begin():
        _limit_waits(target)
        newest = select(func.max(operations.c.number)).where(operations.c.account_id == move.account_id)
        before = target.scalar(newest) or 0
        arrival = move._replace(direction="in", state="arrived", cell=cell, number_before=before)
        if not _record(target, arrival):
            return
        # It may be back before its departure from here was completed, which then has nothing to do any more.
        returned = update(account_moves).values(state="returned")
        target.execute(returned.where(account_moves.c.account_id == move.account_id, _IS_AWAY))
        target.execute(moving_rows.delete().where(moving_rows.c.account_id == move.account_id))
        cells = {"source": cell, "target": move.cell}
        with source.begin():
            # Those of the cell that it comes from are in force; that it has none any more ends those of here.
            target.execute(_END_OVERRIDES, {"account_id": move.account_id})
            for table in (*COPIED, *reversed(LEAVING)):
                _insert(target, table, _rows_of(source, move, table), is_copy=table in COPIED, cells=cells)
            _compare_counts(source, target, move)
        _check(target, move)


def complete(rows: Connection, move: AccountMove) -> None:
    """Mark a closed account as moved, once it has arrived. Commits."""
    with rows.begin():
        done = update(account_moves).where(account_moves.c.move_id == move.move_id)
        rows.execute(done.where(account_moves.c.state == "closed").values(state="moved", at=func.now()))
        rows.execute(moving_rows.delete().where(moving_rows.c.move_id == move.move_id))


def undo(source: Connection, target: Connection, move: AccountMove, *, cell: int) -> None:
    """Open a closed account again where it was, in ``cell``. Commits.

    Raises :class:`MoveRefused` if it has arrived.
    """
    with target.begin():
        _limit_waits(target)
        refusal = move._replace(direction="in", state="refused", cell=cell)
        target.execute(upsert(account_moves).values(refusal._asdict()).on_conflict_do_nothing())
        if _state(target, move) != "refused":
            raise MoveRefused("The account has arrived: run the command again without --undo.")
    with source.begin():
        _limit_waits(source)
        undone = update(account_moves).where(account_moves.c.move_id == move.move_id)
        if not source.execute(undone.where(account_moves.c.state == "closed").values(state="undone")).rowcount:
            return
        for table in reversed(LEAVING):
            _insert(source, table, _rows_of(source, move, table))
        source.execute(moving_rows.delete().where(moving_rows.c.move_id == move.move_id))


def contents_of(rows: Connection, account_id: str, *, archive_type: str) -> list[Content]:
    """Return the contents of an account's results, files and archive, whether it is closed or not."""
    with rows.begin():
        found = rows.execute(_CONTENTS, {"account_id": account_id, "archive_type": archive_type})
        return [Content._make(row) for row in found]


def email_of(rows: Connection, account_id: str) -> str | None:
    """Return the address of an account that is here; None if it is not."""
    with rows.begin():
        return rows.scalar(select(accounts.c.email).where(accounts.c.id == account_id))


def has_email(rows: Connection, email: str) -> bool:
    """Whether an account here has an address."""
    with rows.begin():
        return rows.scalar(select(accounts.c.id).where(accounts.c.email == email)) is not None


def _limit_waits(rows: Connection) -> None:
    rows.execute(text(f"set local lock_timeout = {LOCK_MS}"))


def _state(rows: Connection, move: AccountMove) -> str:
    key = (account_moves.c.account_id == move.account_id, account_moves.c.move_id == move.move_id)
    return str(rows.execute(select(account_moves.c.state).where(*key)).scalar_one())


def _record(rows: Connection, arrival: AccountMove) -> bool:
    """Record an arrival, and return True; False if it has been recorded. Waits for one that is being committed."""
    added = upsert(account_moves).values(arrival._asdict()).on_conflict_do_nothing()
    if rows.execute(added.returning(account_moves.c.move_id)).first() is not None:
        return True
    if _state(rows, arrival) == "refused":
        raise MoveRefused("The move was undone.")
    return False


def _rows_of(rows: Connection, move: AccountMove, table: str) -> Iterator[str]:
    """Yield the rows of a table that move, as JSON."""
    given = {"account_id": move.account_id, "move_id": move.move_id, "table": table}
    query = _LEFT
    if table in COPIED:
        query = text(f"select cast(row_to_json(t) as text) from {table} t where {COPIED[table]}")
        given = {"account_id": move.account_id}
    yield from rows.execute(query, given, execution_options={"yield_per": 100}).scalars()


def _insert(
    rows: Connection,
    table: str,
    found: Iterator[str],
    *,
    is_copy: bool = False,
    cells: Mapping[str, int] | None = None,
) -> None:
    """Insert rows that are JSON; of a copy those that are not there. ``cells`` renumbers receipts."""
    names = [column.name for column in metadata.tables[table].columns]
    if table == "overrides":
        changed = ", ".join(f"{name} = excluded.{name}" for name in Override._fields[2:-1])
        # As when one is set: processes see by the sum of the versions that there is something new to read.
        conflict = f" on conflict (kind, subject) do update set {changed}, version = overrides.version + 1"
    else:
        conflict = " on conflict do nothing" if is_copy else ""
    picks = [_SEQUENCE if (table, name) == ("receipts", "sequence") else name for name in names]
    query = text(
        f"insert into {table} ({', '.join(names)}) select {', '.join(picks)} "
        f"from json_populate_recordset(cast(null as {table}), cast(:rows as json))"
        f"{conflict}"
    )
    renumbered = cells if table == "receipts" and cells is not None else {}
    chunk: list[str] = []
    length = 0
    for row in chain(found, [None]):
        if chunk and (row is None or length + len(row) > CHUNK_BYTES):
            rows.execute(query, {"rows": f"[{','.join(chunk)}]", **renumbered})
            chunk, length = [], 0
        if row is not None:
            chunk.append(row)
            length += len(row)


def _compare_counts(source: Connection, target: Connection, move: AccountMove) -> None:
    moving = dict.fromkeys(LEAVING, 0)
    counted = select(moving_rows.c.table_name, func.count()).where(moving_rows.c.move_id == move.move_id)
    moving |= {row[0]: row[1] for row in source.execute(counted.group_by(moving_rows.c.table_name))}
    given = {"account_id": move.account_id}
    for table, condition in COPIED.items():
        moving[table] = source.execute(text(f"select count(*) from {table} where {condition}"), given).scalar_one()
    for table, many in moving.items():
        condition = COPIED.get(table) or f"{LEAVING[table]} = :account_id"
        arrived = target.execute(text(f"select count(*) from {table} where {condition}"), given).scalar_one()
        if arrived < many or (table in LEAVING and arrived != many):
            raise MoveRefused(f"{many} rows of {table} have left, {arrived} have arrived: nothing was stored.")


def _check(rows: Connection, move: AccountMove) -> None:
    """Check the account by every rule of the audit, and that it has the journal with which it departed."""
    check = AccountsCheck({move.account_id: move.number})
    for _, slice_ in check.slices():
        slice_(rows)
    if check.found:
        [broken, what], *_ = check.found.items()
        raise MoveRefused(f"The rows break a rule of the audit ({broken.rule}): {what}. Nothing was stored.")
