"""How far the checker has come, and the differences it knows, in rows, which every process reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime

from sqlalchemy import Connection, delete, func, select, tuple_
from sqlalchemy.dialects.postgresql import insert

from holdfast.persistence.audit.slices import BrokenRule
from holdfast.persistence.records.tables import accounts, audit_differences, audit_progress

_ONLY = 1
"""The key of the one row of ``audit_progress``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditProgress:
    """The state of the checker's passes, each of which checks every account once.

    Every operation committed before ``verified_up_to`` has been checked; None before the first pass has ended. The
    current pass ``begun_at`` has come to the account ``after``. ``skipped`` counts checks that took too long; a
    pass with any verifies nothing.
    """

    begun_at: datetime
    written_at: datetime
    passes: int = 0
    verified_up_to: datetime | None = None
    after: str = ""
    accounts_total: int = 0
    accounts_done: int = 0
    operations_done: int = 0
    skipped: int = 0
    newest_operation_id: str | None = None
    newest_operation_at: datetime | None = None
    operations_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class KnownDifference:
    """A rule that an account breaks, as it was last seen; ``found_at`` is when it was first."""

    account_id: str
    rule: str
    what: str
    found_at: datetime
    seen_at: datetime


_COLUMNS = [audit_progress.c[field.name] for field in fields(AuditProgress)]


def load_progress(rows: Connection) -> AuditProgress | None:
    """Return the stored progress; None before the first."""
    row = rows.execute(select(*_COLUMNS)).one_or_none()
    return None if row is None else AuditProgress(**row._mapping)


def known_differences(rows: Connection, *, limit: int | None = None) -> Sequence[KnownDifference]:
    """Return the differences that exist now, the newest first."""
    table = audit_differences
    query = select(table).order_by(table.c.found_at.desc(), table.c.account_id, table.c.rule).limit(limit)
    return [KnownDifference(**row._mapping) for row in rows.execute(query)]


def count_differences(rows: Connection) -> int:
    """Return how many differences exist now."""
    return int(rows.execute(select(func.count()).select_from(audit_differences)).scalar_one())


def count_accounts(rows: Connection) -> int:
    """Return how many accounts there are."""
    return int(rows.execute(select(func.count()).select_from(accounts)).scalar_one())


def store(
    rows: Connection, progress: AuditProgress, found: Mapping[BrokenRule, str], gone: Collection[BrokenRule]
) -> None:
    """Store the progress, the differences found since the last time, and delete those that are gone."""
    values = {field.name: getattr(progress, field.name) for field in fields(AuditProgress)}
    written = insert(audit_progress).values(id=_ONLY, **values)
    rows.execute(written.on_conflict_do_update(index_elements=["id"], set_=values))
    if found:
        at = progress.written_at
        table = audit_differences
        added = insert(table).values([(*broken, what, at, at) for broken, what in sorted(found.items())])
        rows.execute(
            added.on_conflict_do_update(
                index_elements=["account_id", "rule"],
                set_={"what": added.excluded.what, "seen_at": added.excluded.seen_at},
            )
        )
    if gone:
        key = tuple_(audit_differences.c.account_id, audit_differences.c.rule)
        rows.execute(delete(audit_differences).where(key.in_(sorted(gone))))
