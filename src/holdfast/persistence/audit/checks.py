"""The result of an audit: one check for each rule."""

from __future__ import annotations

from dataclasses import dataclass

EXAMPLES_MAX = 10


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
