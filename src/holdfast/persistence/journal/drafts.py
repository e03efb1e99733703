"""Prepare a batch's SQL and text before it is sent: the rows to lock, to look up and to write.

This runs on the event loop's thread, as if every unit passed its fences. The writer's thread then mostly waits for
the database, and the two threads do not compete for the interpreter lock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.persistence.journal.literals import text_array
from holdfast.persistence.journal.statements import BULK_ROWS, KINDS, STATEMENTS
from holdfast.persistence.journal.units import FenceKind, Unit
from holdfast.persistence.records.rows import IdempotencyProbe


class Preconditions(NamedTuple):
    """The rows to lock and the keys to look up before anything is written, as array literals.

    ``locks`` are the keys of the fenced rows, ``first_sign_ins`` those of sign-ins that may have no row yet,
    ``probes`` the columns of the idempotency keys.
    """

    locks: dict[FenceKind, str]
    first_sign_ins: str | None
    probes: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to lock or look up."""
        return not self.locks and not self.probes


class Draft(NamedTuple):
    """SQL and text of each COPY, then SQL and parameters of each statement, in the order they run."""

    copies: list[tuple[str, str]]
    statements: list[tuple[str, list[str]]]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not self.copies and not self.statements


class Prepared(NamedTuple):
    """A batch's preconditions, and what it writes if every unit passes."""

    preconditions: Preconditions
    draft: Draft


def prepare(units: Sequence[Unit]) -> Prepared | None:
    """Prepare a batch. None if some unit cannot be prepared; the writer then finds out which."""
    try:
        return Prepared(preconditions_of(units), draft_of(units))
    except Exception:
        return None


def preconditions_of(units: Iterable[Unit]) -> Preconditions:
    """Return the rows that ``units`` need locked, and the idempotency keys that they expect to be unused."""
    keys: dict[FenceKind, dict[str, int]] = {}
    probes: dict[IdempotencyProbe, None] = {}
    for unit in units:
        for fence in unit.fences:
            keys.setdefault(fence.kind, {}).setdefault(fence.key, fence.expected)
        if unit.probe is not None:
            probes[unit.probe] = None
    first = [key for key, expected in keys.get("sign_in", {}).items() if expected == 0]
    return Preconditions(
        {kind: text_array(found) for kind, found in keys.items()},
        text_array(first) if first else None,
        tuple(text_array(column) for column in zip(*probes, strict=True)),
    )


def draft_of(units: Iterable[Unit]) -> Draft:
    """Return what writes ``units``. Many new rows of a kind are copied, before all changes."""
    values: defaultdict[type[Any], list[Any]] = defaultdict(list)
    for unit in units:
        for value in unit.rows:
            values[type(value)].append(value)
    assert values.keys() <= KINDS, "a value of a kind without a statement"
    copies, statements = [], []
    for statement in STATEMENTS:
        found = values.get(statement.kind)
        rows = statement.rows_of(found) if found else ()
        if not rows:
            continue
        if statement.copy_sql is not None and len(rows) >= BULK_ROWS:
            copies.append((statement.copy_sql, statement.copy_text(rows)))
        else:
            statements.append((statement.sql, statement.parameters(rows)))
    return Draft(copies, statements)
