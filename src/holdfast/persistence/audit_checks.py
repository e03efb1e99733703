"""What an audit says: one check for each promise."""

from __future__ import annotations

from dataclasses import dataclass

EXAMPLES_MAX = 10


@dataclass(frozen=True, slots=True)
class Check:
    """One promise and whether the rows keep it. ``counted`` is how many things were looked at.

    ``detail`` names the first few things that break it, and how many there are; empty when it is kept.
    """

    name: str
    ok: bool
    counted: int
    detail: str


def make_check(name: str, counted: int, examples: list[str], total: int) -> Check:
    """A check that ``total`` things break, of which ``examples`` are the first few."""
    more = f" and {total - len(examples)} more" if total > len(examples) else ""
    return Check(name=name, ok=total == 0, counted=counted, detail="; ".join(examples) + more)
