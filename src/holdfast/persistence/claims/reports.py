"""Writes of reports, and their retention. Reports are no money: they bypass the journal and never wait for it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from sqlalchemy import Connection, text
from sqlalchemy.dialects.postgresql import insert

from holdfast.persistence.records.tables import reports
from holdfast.persistence.server.connections import connected
from holdfast.telemetry.reports.report import Report

FINAL_WRITE_MS = 2_000
_SEARCHED = ("report_id", "at", "kind", "level", "path", "key", "account_id", "task_id", "provider", "member_id",
             "trace_id")  # fmt: skip

_BEGIN = text(
    "select set_config('synchronous_commit', 'off', true), pg_try_advisory_xact_lock(hashtext('holdfast reports'))"
)
"""Without waiting for the disk, which the journal's commits need: after a crash of the server, what was reported in
the half second before may be missing from the table. The log has it.
"""
_INSERT = insert(reports).on_conflict_do_nothing(index_elements=["report_id"])
_DELETE_BEYOND = text(
    "with newest as (select position from reports order by position desc offset :kept limit 1), "
    "due as materialized (select position from reports where position <= (select position from newest) "
    "order by position limit :most) delete from reports r using due where r.position = due.position"
)


def write_reports(rows: Connection, found: Sequence[Report]) -> bool:
    """Write reports in their order; one that is already there is left as it is.

    False: another process is writing, and nothing was written. Writers take turns so that positions are assigned in
    the order of commits.
    """
    if not rows.execute(_BEGIN).one()[1]:
        return False
    rows.execute(_INSERT, [report_row(report) for report in found])
    return True


def write_last_reports(url: str, found: Sequence[Report]) -> bool:
    """Write reports on a connection of its own, for a process that ends; see :func:`write_reports`. Blocks.

    Raises :class:`~holdfast.persistence.server.database_faults.DatabaseAway` or SQLAlchemy's errors.
    """
    with connected(url, statement_timeout_ms=FINAL_WRITE_MS) as rows, rows.begin():
        return write_reports(rows, found)


def report_row(report: Report) -> dict[str, object]:
    """Return the columns that are searched, and the whole report as a document; the database assigns a position."""
    searched = {name: getattr(report, name) for name in _SEARCHED}
    return {**searched, "report": msgspec.to_builtins(report)}


def delete_old_reports(rows: Connection, *, kept: int, most: int) -> int:
    """Delete up to ``most`` of the reports that are older than the newest ``kept``; return how many were."""
    return rows.execute(_DELETE_BEYOND, {"kept": kept, "most": most}).rowcount
