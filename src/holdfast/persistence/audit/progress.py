"""How far the checker has come, and the differences it knows, in rows, which every process reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
from sqlalchemy import Connection, delete, func, select, tuple_
from sqlalchemy.dialects.postgresql import insert

from holdfast.persistence.audit.rules import BrokenRule
from holdfast.persistence.records.rows import AuditProgress, KnownDifference
from holdfast.persistence.records.tables import accounts, audit_differences, audit_progress

_ONLY = 1
"""The key of the one row of ``audit_progress``."""
_COLUMNS = [audit_progress.c[name] for name in AuditProgress.__struct_fields__]


def load_progress(rows: Connection) -> AuditProgress | None:
    """Return the stored progress; None before the first."""
    row = rows.execute(select(*_COLUMNS)).one_or_none()
    return None if row is None else AuditProgress(**row._mapping)


def known_differences(rows: Connection, *, limit: int | None = None) -> Sequence[KnownDifference]:
    """Return the differences that exist now, the newest first."""
    table = audit_differences
    query = select(table).order_by(table.c.found_at.desc(), table.c.account_id, table.c.rule).limit(limit)
    return [KnownDifference._make(row) for row in rows.execute(query)]


def count_differences(rows: Connection) -> int:
    """Return how many differences exist now."""
    return int(rows.execute(select(func.count()).select_from(audit_differences)).scalar_one())


def count_accounts(rows: Connection) -> int:
    """Return how many accounts there are."""
    return int(rows.execute(select(func.count()).select_from(accounts)).scalar_one())


def load_start(rows: Connection) -> tuple[AuditProgress | None, Sequence[KnownDifference], int]:
    """Return the progress, the known differences, and at the start of a pass how many accounts there are."""
    progress = load_progress(rows)
    is_first = progress is None or not progress.after
    return progress, known_differences(rows), count_accounts(rows) if is_first else 0


def store(
    rows: Connection, progress: AuditProgress, found: Mapping[BrokenRule, str], gone: Collection[BrokenRule]
) -> None:
    """Store the progress, the differences found since the last time, and delete those that are gone."""
    values = msgspec.structs.asdict(progress)
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
