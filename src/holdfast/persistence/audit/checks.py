"""The result of an audit: one check for each rule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

EXAMPLES_MAX = 10

Failure = tuple[str, str]
"""The name of a check, and what breaks it."""


@dataclass(frozen=True, slots=True)
class Check:
    """One rule and whether the rows comply. ``counted`` is how many things were checked.

    ``detail`` names the first few things that break it, and how many there are; empty if there are none.
    """

    name: str
    ok: bool
    counted: int
    detail: str


def make_check(name: str, counted: int, examples: list[str], total: int) -> Check:
    """Return a check that ``total`` things break, of which ``examples`` are the first few."""
    more = f" and {total - len(examples)} more" if total > len(examples) else ""
    return Check(name=name, ok=total == 0, counted=counted, detail="; ".join(examples) + more)


def tally(names: Iterable[str], walk: Iterable[Iterable[Failure]]) -> list[Check]:
    """Return a check for each name. ``walk`` yields the failures of each thing that all of them check."""
    counted = 0
    broken: dict[str, list[str]] = {name: [] for name in names}
    totals = dict.fromkeys(broken, 0)
    for failures in walk:
        counted += 1
        for name, failure in failures:
            totals[name] += 1
            if len(broken[name]) < EXAMPLES_MAX:
                broken[name].append(failure)
    return [make_check(name, counted, examples, totals[name]) for name, examples in broken.items()]
