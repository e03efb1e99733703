"""Rows of reports: the columns that are searched, and the whole report as a document."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import Row

from holdfast.persistence.records.mapping import selected
from holdfast.persistence.records.tables import reports
from holdfast.telemetry.reports.report import Report

_SEARCHED = ("report_id", "at", "kind", "level", "path", "key", "account_id", "task_id", "provider", "member_id",
             "trace_id")  # fmt: skip
REPORT = selected(reports, ("position", "report_id", "at", "report"))


def report_row(report: Report) -> dict[str, object]:
    """Return a report's row by column, without the position that the database assigns."""
    searched = {name: getattr(report, name) for name in _SEARCHED}
    return {**searched, "report": msgspec.to_builtins(report)}


def report_of(row: Row[*tuple[Any, ...]]) -> Report:
    """Decode a row of :data:`REPORT`. Raises msgspec's errors."""
    return msgspec.json.decode(row.report, type=Report)
