"""The audit: every rule about credit, checked against the rows, a few accounts at a time.

It trusts nothing that the service computed: balances are summed again from postings, chains are hashed again from
the rows, tasks, holds and usage are compared with each other, and orders with operations and events. A decision is
committed as a whole and operations never change, so the rows that one statement sees agree with each other,
whatever is written between two statements: each rule is one statement, and no snapshot lasts longer. The command,
its ``--watch`` and the checker of a running service use the same slices.

A checkpoint records how far an account's history was audited. An audit of recent history begins there, which saves
most of the time. A history that was rewritten before a checkpoint no longer matches it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from sqlalchemy import Connection, func
from sqlalchemy.dialects.postgresql import insert

from holdfast.ledger.credit.operations import Operation
from holdfast.persistence.audit.history import HISTORY_RULES, check_history, proven_numbers
from holdfast.persistence.audit.lots import LOT_RULES
from holdfast.persistence.audit.moves import MOVE_RULES, accounts_away
from holdfast.persistence.audit.orders import ORDER_RULES, READ_RULES, TOP_UP_RULES, Position, check_orders
from holdfast.persistence.audit.receipts import RECEIPT_RULES
from holdfast.persistence.audit.rules import (
    EXAMPLES_MAX,
    RULES,
    BrokenRule,
    Difference,
    Rule,
    find_differences,
    next_accounts,
    summary,
)
from holdfast.persistence.records.tables import checkpoints

ACCOUNTS_MAX = 100
"""How many accounts are checked together."""
OPERATIONS_MAX = 1_000
"""How many operations the accounts checked together have, and how many of one account a slice reads."""
ORDERS_MAX = 200

QUERY_RULES = (*RULES, *LOT_RULES, *ORDER_RULES, *TOP_UP_RULES, *RECEIPT_RULES, *MOVE_RULES)
"""Every rule that is one query."""
RULE_NAMES = (*HISTORY_RULES, *READ_RULES, *(rule.name for rule in QUERY_RULES))

Slice = Callable[[Connection], None]


class AccountsCheck:
    """Checks every rule on ``accounts``, which gives each account's number of operations.

    With ``recent``, history begins at each account's newest checkpoint. ``operations`` counts those that were
    checked; ``last`` has the last operation of each account. Of accounts that were moved to another cell only the
    rules about moves are checked.
    """

    def __init__(self, accounts: Mapping[str, int], *, recent: bool = False) -> None:
        self.accounts = accounts
        self.operations = 0
        self.last: dict[str, Operation] = {}
        self.is_done = False
        self._recent = recent
        self._here: list[str] | None = None
        self._departed: set[str] = set()
        """Accounts of which differences were not added, because they were away by then."""
        self._examples: dict[BrokenRule, list[str]] = {}
        self._totals: Counter[BrokenRule] = Counter()

    def slices(self) -> Iterator[tuple[str, Slice]]:
        """Yield the name of each slice, and the slice; call each before the next one is requested."""
        yield from self._histories()
        yield from self._orders()
        yield from self.rules()
        self.is_done = True

    def rules(self) -> Iterator[tuple[str, Slice]]:
        """Yield the slices of the rules that are one query, without the history and the orders."""
        for rule in QUERY_RULES:
            yield rule.name, self._rule(rule)

    @property
    def found(self) -> dict[BrokenRule, str]:
        """The rules that are broken so far, and how."""
        return {broken: summary(found, self._totals[broken]) for broken, found in self._examples.items()}

    def write_checkpoints(self, rows: Connection) -> None:
        """Write a checkpoint at the last operation of each account of which no difference was found."""
        broken = {each.account_id for each in self._examples} | self._departed
        values = [
            {
                "account_id": account_id,
                "number": last.number,
                "balance_micro": last.balance_after_micro,
                "held_micro": last.held_after_micro,
                "chain_head": last.chain_hash,
                "at": func.now(),
            }
            for account_id, last in self.last.items()
            if account_id not in broken
        ]
        if values:
            rows.execute(insert(checkpoints).values(values).on_conflict_do_nothing())

    def _scope(self, rows: Connection) -> list[str]:
        """Return the accounts that are in this cell."""
        if self._here is None:
            away = accounts_away(rows, [*self.accounts])
            self._here = [account_id for account_id in self.accounts if account_id not in away]
        return self._here

    def _histories(self) -> Iterator[tuple[str, Slice]]:
        proven: dict[str, int] | None = None
        counted = OPERATIONS_MAX

        def read(rows: Connection) -> None:
            nonlocal proven, counted
            if proven is None:
                proven = proven_numbers(rows, self._scope(rows)) if self._recent else {}
            page = check_history(rows, self._scope(rows), proven, most=OPERATIONS_MAX)
            self._add(rows, page.differences)
            self.operations += page.counted
            self.last |= page.last
            proven |= {account_id: last.number for account_id, last in page.last.items()}
            counted = page.counted

        # Several accounts together have no more operations than one slice reads.
        while counted >= OPERATIONS_MAX:
            yield "the history", read

    def _orders(self) -> Iterator[tuple[str, Slice]]:
        after: Position | None = ("", "")

        def read(rows: Connection) -> None:
            nonlocal after
            assert after is not None
            differences, after = check_orders(rows, self._scope(rows), after, most=ORDERS_MAX)
            self._add(rows, differences)

        while after is not None:
            yield "the orders", read

    def _rule(self, rule: Rule) -> Slice:
        def read(rows: Connection) -> None:
            is_of_moves = rule in MOVE_RULES
            scope = [*self.accounts] if is_of_moves else self._scope(rows)
            found = [*find_differences(rows, rule, scope)]
            self._add(rows, [difference for difference, _ in found], is_of_moves=is_of_moves)
            for difference, total in found:
                if difference.broken in self._examples:
                    self._totals[difference.broken] = total

        return read

    def _add(self, rows: Connection, differences: list[Difference], *, is_of_moves: bool = False) -> None:
        """Add what was found, unless the account has departed to another cell since the check began."""
        found = [] if is_of_moves else [each.broken.account_id for each in differences]
        away = accounts_away(rows, found) if found else set()
        self._departed |= away
        for each in differences:
            if each.broken.account_id in away:
                continue
            self._totals[each.broken] += 1
            examples = self._examples.setdefault(each.broken, [])
            if len(examples) < EXAMPLES_MAX:
                examples.append(each.what)


def check_accounts(
    connection: Connection,
    *,
    recent: bool = False,
    accounts_max: int = ACCOUNTS_MAX,
) -> Iterator[AccountsCheck]:
    """Check all accounts, a few at a time; yield their check after each slice. Blocks.

    The connection must be in autocommit mode, so that no snapshot lasts longer than a slice.
    """
    after = ""
    while accounts := next_accounts(connection, after, accounts_max=accounts_max, operations_max=OPERATIONS_MAX):
        check = AccountsCheck(accounts, recent=recent)
        for _, slice_ in check.slices():
            slice_(connection)
            yield check
        yield check
        after = [*accounts][-1]


def run_audit(connection: Connection) -> dict[BrokenRule, str]:
    """Check all accounts, and return the rules that are broken, and how. Blocks. No transaction may be open."""
    connection.execution_options(isolation_level="AUTOCOMMIT")
    found: dict[BrokenRule, str] = {}
    for check in check_accounts(connection):
        found |= check.found
    return found
