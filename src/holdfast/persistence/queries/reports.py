"""Reports: a page of them, newest first; and what was written after a position."""

from __future__ import annotations

from typing import Any, Unpack

import msgspec
import structlog
from sqlalchemy import ColumnElement, Connection, Row, func, or_, select

from holdfast.persistence.queries.paging import PageOptions, page
from holdfast.persistence.records.table_base import selected
from holdfast.persistence.records.tables import reports
from holdfast.persistence.records.unreadable import UnreadableEntry, read_rows
from holdfast.telemetry.reports.report import EVERY_REPORT, LEVELS, Report, ReportFilter, ReportsAfter, StoredReport

log = structlog.get_logger(__name__)

_REPORT = selected(reports, ("position", "report_id", "at", "report"))


def reports_page(
    rows: Connection, wanted: ReportFilter, **options: Unpack[PageOptions]
) -> list[Report | UnreadableEntry]:
    """Return a page of the wanted reports, newest first by (at, report_id)."""
    entries = _REPORT.where(*_conditions(wanted))
    found = page(rows, entries, (reports.c.at, reports.c.report_id), **options)
    return read_rows(_report_of, found, "reports", lambda row: (row.at, row.report_id))


def newest_position(rows: Connection) -> int:
    """Return the position of the report that was written last; 0 without any."""
    newest: int = rows.execute(select(func.coalesce(func.max(reports.c.position), 0))).scalar_one()
    return newest


def reports_after(
    rows: Connection, position: int, *, limit: int, wanted: ReportFilter = EVERY_REPORT
) -> ReportsAfter:
    """Return up to ``limit`` of the wanted reports that were written after ``position``.

    A row that cannot be decoded, as of a newer release with other kinds, is left out.
    """
    query = _REPORT.where(reports.c.position > position, *_conditions(wanted))
    found: list[StoredReport] = []
    for row in rows.execute(query.order_by(reports.c.position).limit(limit)):
        position = row.position
        try:
            found.append(StoredReport(row.position, _report_of(row)))
        except msgspec.MsgspecError as fault:
            log.warning("row is unreadable", table="reports", key=row.report_id, reason=str(fault))
    return ReportsAfter(found, position)


def _report_of(row: Row[*tuple[Any, ...]]) -> Report:
    return msgspec.json.decode(row.report, type=Report)


def _conditions(wanted: ReportFilter) -> list[ColumnElement[bool]]:
    columns = reports.c
    exact = ("kind", "key", "member_id", "trace_id", "account_id", "task_id", "provider")
    conditions = [columns[name] == value for name in exact if (value := getattr(wanted, name)) is not None]
    if wanted.path is not None:
        conditions.append(
            or_(columns.path == wanted.path, columns.path.startswith(f"{wanted.path}/", autoescape=True))
        )
    if wanted.level is not None:
        conditions.append(columns.level.in_(LEVELS[LEVELS.index(wanted.level) :]))
    return conditions
