"""The audit's rules about accounts that were moved between cells.

Of an account that is in another cell only the journal is here, which the other rules do not read: it is whole up
to the operation that the move names, and nothing else of the account is left.

What no cell can check alone is checked over all of them: :func:`differences_between`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from sqlalchemy import Connection, select, text

from holdfast.ledger.values import format_time
from holdfast.persistence.audit.rules import OWNERS, Rule
from holdfast.persistence.records.move_tables import AccountMove, account_moves
from holdfast.persistence.records.tables import accounts

AWAY: Final = "state in ('closed', 'moved')"
"""SQL: whether a move has taken an account away from this cell."""
_OF_THE_JOURNAL: Final = ("account_moves", "checkpoints", "operations", "postings", "receipts")
_AWAY = text(f"select account_id from account_moves where account_id = any(:scope) and {AWAY}")


def accounts_away(rows: Connection, scope: Sequence[str]) -> set[str]:
    """Return those of the accounts that are in another cell, or closed for it."""
    return set(rows.execute(_AWAY, {"scope": list(scope)}).scalars())


MOVE_RULES: tuple[Rule, ...] = (
    Rule(
        "each move names the last operation that it moved, with its totals and its hash",
        """
        select m.account_id, m.move_id, m.number, m.balance_micro, m.held_micro,
               o.balance_after_micro, o.held_after_micro
        from account_moves m left join operations o using (account_id, number)
        where m.state not in ('undone', 'refused')
          and case when m.number = 0 then (m.balance_micro, m.held_micro) <> (0, 0)
              else (m.balance_micro, m.held_micro, m.chain_head)
                  is distinct from (o.balance_after_micro, o.held_after_micro, o.chain_hash) end
        """,
        "the move {move_id} has taken {balance_micro} with {held_micro} held at operation {number}, "
        "after which there was {balance_after_micro} with {held_after_micro} held",
    ),
    Rule(
        "what a move has brought follows what this cell had when the account had left it",
        """
        select account_id, had, left_here, backwards from (
            select account_id,
                   coalesce(array_agg(number_before order by number_before)
                       filter (where state = 'arrived'), '{}') as had,
                   coalesce(array_agg(number order by number)
                       filter (where state = 'returned'), '{}') as left_here,
                   count(*) filter (where number_before > number
                       or (direction = 'out' and number_before < number)) as backwards
            from account_moves where state not in ('undone', 'refused') group by account_id
        ) m
        where backwards > 0 or had not in (left_here, cast(0 as bigint) || left_here)
        """,
        "its moves to here begin after the operations {had}, those before from here ended at {left_here}, "
        "and {backwards} end before they begin",
    ),
    Rule(
        "an account that is in another cell has left its journal up to its move, and nothing else",
        f"""
        select m.account_id, m.cell, n.number, m.number as moved_number, p.posted_micro, r.kinds
        from account_moves m
        left join lateral (
            select count(*) as number from operations o where o.account_id = m.account_id
        ) n on true
        left join lateral (
            select coalesce(sum(amount_micro), 0) as posted_micro from postings p
            where p.account_id = m.account_id and ledger_account in ('available', 'held')
        ) p on true
        left join (
            select account_id, string_agg(kind, ', ' order by kind) as kinds from (
                {
            " union ".join(
                f"select {owner} as account_id, '{table}' as kind from {table}"
                for table, owner in OWNERS.items()
                if table not in _OF_THE_JOURNAL
            )
        }
            ) k group by account_id
        ) r on r.account_id = m.account_id
        where m.{AWAY}
          and ((n.number, p.posted_micro) is distinct from (m.number, m.balance_micro) or r.kinds is not null)
        """,
        "it is in cell {cell} since operation {moved_number} and has left {number} operations that sum to "
        "{posted_micro}, and rows of {kinds}",
    ),
)


_MOVED_AS: Final = ("account_id", "number", "balance_micro", "held_micro", "chain_head")
"""What both sides of a move agree on."""


def differences_between(cells: Mapping[str, Connection]) -> Iterator[str]:
    """Yield what is wrong between all cells: accounts that are in two, and moves that do not cancel.

    An account that is closed for a move has left one cell and may not have arrived in another yet.
    """
    for (account_id, one), (following, another) in pairwise(
        heapq.merge(*(_accounts_of(cell, rows) for cell, rows in cells.items()))
    ):
        if account_id == following:
            yield f"account {account_id} is in {one} and in {another}"
    left, come = _moves_of(cells, "out"), _moves_of(cells, "in")
    for move_id in sorted(left.keys() | come.keys()):
        departure, arrival = left.get(move_id), come.get(move_id)
        if arrival is None:
            assert departure is not None
            if departure.state != "closed":
                yield _alone(departure, f"was moved to cell {departure.cell}")
        elif departure is None:
            yield _alone(arrival, f"came from cell {arrival.cell}")
        elif any(getattr(departure, name) != getattr(arrival, name) for name in _MOVED_AS):
            yield f"move {move_id} of account {departure.account_id} differs between its cells"


def _alone(move: AccountMove, what: str) -> str:
    return (
        f"account {move.account_id} {what} at {format_time(move.at)}, which does not know of it: "
        "the database there may be older than that"
    )


def _accounts_of(cell: str, rows: Connection) -> Iterator[tuple[str, str]]:
    # In the order of bytes, as Python compares them.
    query = select(accounts.c.id).order_by(accounts.c.id.collate("C"))
    for account_id in rows.execute(query, execution_options={"yield_per": 1000}).scalars():
        yield account_id, cell


def _moves_of(cells: Mapping[str, Connection], direction: str) -> dict[str, AccountMove]:
    query = select(account_moves).where(
        account_moves.c.direction == direction, account_moves.c.state.not_in(("undone", "refused"))
    )
    found = (AccountMove._make(row) for rows in cells.values() for row in rows.execute(query))
    return {move.move_id: move for move in found}
