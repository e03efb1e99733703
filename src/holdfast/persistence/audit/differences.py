"""What breaks a rule of the audit, in words."""

from __future__ import annotations

from typing import NamedTuple

EXAMPLES_MAX = 10


class BrokenRule(NamedTuple):
    """A rule that an account breaks. ``account_id`` is empty for rows that belong to no account."""

    account_id: str
    rule: str


class Difference(NamedTuple):
    """One row, or a few, that break a rule: what is wrong with them in words."""

    broken: BrokenRule
    what: str


def summary(examples: list[str], total: int) -> str:
    """Return the first few of ``total`` examples in one text."""
    shown = examples[:EXAMPLES_MAX]
    more = f" and {total - len(shown)} more" if total > len(shown) else ""
    return "; ".join(shown) + more
