"""The result of an audit: what breaks a rule, in words, and one check for each rule."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

EXAMPLES_MAX = 10


class Difference(NamedTuple):
    """What breaks a rule: the rule's name, the account, and what is wrong with it in words.

    ``account_id`` is empty for a row that belongs to no account.
    """

    rule: str
    account_id: str
    what: str

    @property
    def words(self) -> str:
        """What is wrong, with the account."""
        return f"account {self.account_id}: {self.what}" if self.account_id else self.what


class Check(msgspec.Struct, frozen=True):
    """One rule and whether the rows comply. ``counted`` is how many things were checked.

    ``detail`` names the first few things that break it, and how many there are; empty if there are none.
    """

    name: str
    ok: bool
    counted: int
    detail: str


def make_check(name: str, counted: int, examples: Iterable[str], total: int) -> Check:
    """Return a check that ``total`` things break, of which ``examples`` are the first few."""
    return Check(name=name, ok=total == 0, counted=counted, detail=summary(list(examples), total))


def summary(examples: list[str], total: int) -> str:
    """Return the first few of ``total`` examples in one text."""
    shown = examples[:EXAMPLES_MAX]
    more = f" and {total - len(shown)} more" if total > len(shown) else ""
    return "; ".join(shown) + more


def tally(names: Iterable[str], walk: Iterable[Iterable[Difference]]) -> list[Check]:
    """Return a check for each name. ``walk`` yields the differences of each thing that all of them check."""
    counted = 0
    broken: dict[str, list[str]] = {name: [] for name in names}
    totals = dict.fromkeys(broken, 0)
    for differences in walk:
        counted += 1
        for difference in differences:
            totals[difference.rule] += 1
            if len(broken[difference.rule]) < EXAMPLES_MAX:
                broken[difference.rule].append(difference.words)
    return [make_check(name, counted, examples, totals[name]) for name, examples in broken.items()]
