"""The audit's rules about accounts that were moved between cells.

Of an account that is in another cell only the journal is here, which the other rules do not read: it is whole up
to the operation that the move names, and nothing else of the account is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection, text

from holdfast.persistence.audit.rules import OWNERS, Rule

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
        where m.state not in ('undone', 'refused') and m.number > 0
          and (m.balance_micro, m.held_micro, m.chain_head)
              is distinct from (o.balance_after_micro, o.held_after_micro, o.chain_hash)
        """,
        "the move {move_id} has taken {balance_micro} with {held_micro} held at operation {number}, "
        "after which there was {balance_after_micro} with {held_after_micro} held",
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
