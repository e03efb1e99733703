"""The rows and tables of accounts that are moved between cells."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal, NamedTuple, TypeAlias

from holdfast.persistence.records.table_base import Int16, columns, columns_of, index, table

MoveState: TypeAlias = Literal["closed", "moved", "returned", "undone", "arrived", "refused"]
"""Of an account that leaves: it is ``closed`` until the other cell has it, then ``moved``, and ``returned`` when it
has come back; or the move was ``undone``. Of one that comes: it has ``arrived``, or the move was undone before and
is ``refused``.
"""

RECEIPTS_OF_CELL: Final = 10**12
"""A cell numbers its own receipts below this. One that came with an account has this times the number of the cell
that issued it added to its ``sequence``; its ``number``, which customers see, stays."""


class AccountMove(NamedTuple):
    """One move of an account, as this cell sees it: to (``out``) or from (``in``) the other ``cell``.

    It moves the account's whole journal, up to operation ``number`` with its totals and chain hash. Up to
    ``number_before`` this cell had the journal already; what follows until ``number`` is in the books of other
    cells. The balance goes from one cell's books to the other's. ``email_sha256`` is of the address at that time.
    ``at`` is when the account was closed for it, and once it is ``moved``, when that was recorded.
    """

    account_id: str
    move_id: str
    direction: Literal["out", "in"]
    state: MoveState
    cell: Int16
    place: Int16
    at: datetime
    number_before: int
    number: int
    balance_micro: int
    held_micro: int
    chain_head: bytes
    email_sha256: bytes


account_moves = table(
    "account_moves",
    ["account_id", "move_id"],
    *columns_of(AccountMove),
    # Finds which accounts of a place are in another cell, or have come from one.
    index("ix_account_moves_place", "place", where="state in ('closed', 'moved', 'arrived')"),
    index("ix_account_moves_email", "email_sha256", where="state in ('closed', 'moved', 'arrived')"),
)

given_emails = table(
    "given_emails",
    ["email_sha256"],
    # The e-mail addresses, of a former range of this cell, that were given to the cell that has the range now.
    *columns(email_sha256=bytes, cell=Int16, at=datetime),
    # Finds a cell that is not in a process's list.
    index("ix_given_emails_cell", "cell"),
)

moving_rows = table(
    "moving_rows",
    ["account_id", "move_id", "table_name", "position"],
    # The rows of an account that is closed for a move, as JSON, until the other cell has them.
    *columns(account_id=str, move_id=str, table_name=str, position=int, content=object),
)
