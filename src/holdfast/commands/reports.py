"""``holdfast reports``: prints the stored reports, oldest first, and follows them."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Literal, TextIO

import msgspec
import typer

from holdfast.commands.common import database, fail, refuse_old_tables, until_interrupted
from holdfast.ledger.values import format_time, utc_now
from holdfast.persistence.queries.reports import newest_position, reports_after, reports_page
from holdfast.persistence.records.unreadable import UnreadableEntry
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.database_faults import DatabaseAway, reason_of, trouble_of
from holdfast.persistence.server.embedded import database_url_of
from holdfast.settings.settings import environment, load_locations
from holdfast.start.exit_codes import BAD_CONFIGURATION, GAVE_UP
from holdfast.telemetry.logs.lines import printable
from holdfast.telemetry.reports.report import Report, ReportFilter, in_words

Format = Literal["console", "json"]

POLL_S = 0.5
RETRY_S = 1.0
PAGE_MAX = 500
STATEMENT_MS = 15_000

_AGO = re.compile(r"([0-9]{1,6})([smhd])", re.ASCII)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def read_since(text: str) -> datetime | None:
    """Parse how long ago (``90s``, ``15m``, ``2h``, ``7d``), or a time of RFC 3339 with an offset; else None."""
    ago = _AGO.fullmatch(text)
    if ago:
        return utc_now() - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


def beginning_of(since: str | None) -> datetime | None:
    """Return the time that the option ``--since`` names, None without it. Exits if it names none."""
    begin = None if since is None else read_since(since)
    if since is not None and begin is None:
        fail(f"--since must be like 15m or 7d, or an RFC 3339 time with an offset: {since!r}", BAD_CONFIGURATION)
    return begin


def line_of(report: Report, form: Format) -> str:
    """Return a report as a line: for people, or as JSON with every field that is set."""
    if form == "json":
        return printable(msgspec.json.encode({**msgspec.to_builtins(report), "text": in_words(report)}).decode())
    process = f"{report.host}/{report.worker}" if report.worker is not None else report.host
    provider = f"provider {report.provider}" if report.provider else None
    where = " ".join(part for part in (process, report.path, report.key, provider) if part)
    return printable(
        f"{format_time(report.at)} {report.level or '':8} {report.kind:11} {where}: {in_words(report)}"
    )


@dataclass
class ReportPrinter:
    """Prints to ``out`` the ``wanted`` reports of the database at ``url``. ``warn`` prints a line beside them."""

    url: str
    wanted: ReportFilter
    out: TextIO
    warn: Callable[[str], None]
    form: Format = "console"
    sleep: Callable[[float], None] = time.sleep

    def print_newest(self, *, limit: int, since: datetime | None = None) -> int:
        """Print the newest reports, and return the position to follow from. Raises :class:`DatabaseAway`."""
        with connected(self.url, statement_timeout_ms=STATEMENT_MS) as rows:
            position = newest_position(rows)
            found = reports_page(rows, self.wanted, limit=limit, since=since)
        self._print(each for each in reversed(found) if not isinstance(each, UnreadableEntry))
        return position

    def follow(self, position: int) -> None:
        """Print what is written after ``position``, until interrupted.

        An outage of the database is waited out, with a line where it begins and one where it ends.
        """
        is_away = False
        while True:
            try:
                with connected(self.url, statement_timeout_ms=STATEMENT_MS) as rows:
                    rows.execution_options(isolation_level="AUTOCOMMIT")
                    while True:
                        found, position = reports_after(rows, position, limit=PAGE_MAX, wanted=self.wanted)
                        if is_away:
                            is_away = False
                            self.warn("The database answers again.")
                        self._print(report for _, report in found)
                        if len(found) < PAGE_MAX:
                            self.sleep(POLL_S)
            except BrokenPipeError:
                raise
            except Exception as fault:
                if not isinstance(fault, DatabaseAway) and trouble_of(fault, writing=False) is None:
                    raise
                if not is_away:
                    is_away = True
                    self.warn(f"The database cannot be reached: {reason_of(fault)}; waiting until it answers.")
                self.sleep(RETRY_S)

    def _print(self, found: Iterable[Report]) -> None:
        for report in found:
            self.out.write(f"{line_of(report, self.form)}\n")
        self.out.flush()


def print_reports(wanted: ReportFilter, since: str | None, *, limit: int, follow: bool, form: Format) -> None:
    """Do what the command says. Exits with its code."""
    begin = beginning_of(since)
    locations = load_locations(environment())
    if follow and locations.database_url is None and database_url_of(locations.data_dir) is None:
        # Started for this command, it would keep the service from starting.
        fail("The embedded database does not run: there is nothing to follow.", GAVE_UP)
    with database(locations, create=False) as url:
        refuse_old_tables(url)
        printer = ReportPrinter(url, wanted, sys.stdout, warn=partial(typer.echo, err=True), form=form)
        position = printer.print_newest(limit=limit, since=begin)
        if follow:
            with until_interrupted():
                printer.follow(position)
