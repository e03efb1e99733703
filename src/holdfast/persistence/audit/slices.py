"""The rules checked on a few accounts at a time, in slices of one statement each.

A decision is committed as a whole, so the rows that one statement sees agree with each other, whatever is written
between two slices: each rule is one statement, and operations never change once they are written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from sqlalchemy import Connection
from sqlalchemy.exc import DataError

from holdfast.ledger.credit.operations import Operation
from holdfast.persistence.audit.audit import QUERY_RULES
from holdfast.persistence.audit.checks import EXAMPLES_MAX, Difference, summary
from holdfast.persistence.audit.history import HistoryPage, check_histories, check_history
from holdfast.persistence.audit.orders import Position, check_orders
from holdfast.persistence.audit.rules import Rule, find_differences, unreadable
from holdfast.persistence.audit.scope import next_accounts

ACCOUNTS_MAX = 100
"""How many accounts are checked together."""
OPERATIONS_MAX = 1_000
"""How many operations the accounts checked together have, and how many of one account a slice reads."""
ORDERS_MAX = 200

Slice = Callable[[Connection], None]


class BrokenRule(NamedTuple):
    """A rule that an account breaks."""

    account_id: str
    rule: str


class AccountsCheck:
    """Checks every rule on ``accounts``, which gives each account's number of operations.

    ``operations`` counts those that were checked; ``newest`` is the newest of them.
    """

    def __init__(self, accounts: Mapping[str, int]) -> None:
        self.accounts = accounts
        self.operations = 0
        self.newest: Operation | None = None
        self.is_done = False
        self._scope = list(accounts)
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

    def _histories(self) -> Iterator[tuple[str, Slice]]:
        name = "the history"
        if len(self._scope) > 1:
            yield name, lambda rows: self._add_history(check_histories(rows, self._scope))
            return
        page: HistoryPage | None = None

        def read(rows: Connection) -> None:
            nonlocal page
            last = None if page is None else page.last
            page = check_history(rows, self._scope[0], last, most=OPERATIONS_MAX)
            self._add_history(page)

        while page is None or page.counted == OPERATIONS_MAX:
            yield name, read

    def _orders(self) -> Iterator[tuple[str, Slice]]:
        after: Position | None = ("", "")

        def read(rows: Connection) -> None:
            nonlocal after
            assert after is not None
            differences, after = check_orders(rows, self._scope, after, most=ORDERS_MAX)
            self._add(differences)

        while after is not None:
            yield "the orders", read

    def _rule(self, rule: Rule) -> Slice:
        def read(rows: Connection) -> None:
            try:
                found = find_differences(rows, rule, self._scope)
            except DataError:
                found = [each for account_id in self._scope for each in _find_alone(rows, rule, account_id)]
            for difference, total in found:
                self._add([difference])
                self._totals[_broken_by(difference)] = total

        return read

    def _add_history(self, page: HistoryPage) -> None:
        self._add(page.differences)
        self.operations += page.counted
        if page.last is not None and (self.newest is None or page.last.at > self.newest.at):
            self.newest = page.last

    def _add(self, differences: list[Difference]) -> None:
        for each in differences:
            broken = _broken_by(each)
            self._totals[broken] += 1
            examples = self._examples.setdefault(broken, [])
            if len(examples) < EXAMPLES_MAX:
                examples.append(each.what)


def _find_alone(rows: Connection, rule: Rule, account_id: str) -> list[tuple[Difference, int]]:
    """Return what breaks a rule in one account; a value that the rule cannot read breaks it too."""
    try:
        return find_differences(rows, rule, [account_id])
    except DataError as fault:
        return [(Difference(rule.name, account_id, unreadable(fault)), 1)]


def check_accounts(
    connection: Connection, *, accounts_max: int = ACCOUNTS_MAX, operations_max: int = OPERATIONS_MAX
) -> Iterator[AccountsCheck]:
    """Check all accounts, a few at a time; yield their check after each slice. Blocks.

    The connection must be in autocommit mode, so that no snapshot lasts longer than a slice.
    """
    after = ""
    while accounts := next_accounts(connection, after, accounts_max=accounts_max, operations_max=operations_max):
        check = AccountsCheck(accounts)
        for _, slice_ in check.slices():
            slice_(connection)
            yield check
        yield check
        after = [*accounts][-1]


def _broken_by(difference: Difference) -> BrokenRule:
    return BrokenRule(difference.account_id, difference.rule)
