"""``holdfast audit``: checks all accounts, once or again and again, and shows how far it has come."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from holdfast.ledger.public_types import counted
from holdfast.persistence.audit.audit import check_accounts
from holdfast.persistence.audit.progress import count_accounts
from holdfast.persistence.audit.rules import BrokenRule
from holdfast.persistence.server.connections import connected
from holdfast.persistence.server.database_faults import DatabaseAway

if TYPE_CHECKING:
    from sqlalchemy import Connection


REFRESH_S = 0.2
LINES_S = 10.0
_CLEAR = "\r\x1b[K"

PAUSE_S = 5.0
"""The time between two passes."""
RETRY_S = 1.0


class ProgressLine:
    """Writes to ``out``. Lines stay; the progress below them is replaced, or shown every ten seconds."""

    def __init__(self, out: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out
        self._clock = clock
        self._is_terminal = out.isatty()
        self._every_s = REFRESH_S if self._is_terminal else LINES_S
        self._shown_at = clock()
        self._is_drawn = False

    def line(self, text: str) -> None:
        """Write a line that stays."""
        self._out.write(f"{_CLEAR if self._is_drawn else ''}{text}\n")
        self._out.flush()
        self._is_drawn = False

    def progress(self, text: str) -> None:
        """Show how far the work has come, unless that was shown a moment ago."""
        now = self._clock()
        if now - self._shown_at < self._every_s:
            return
        self._shown_at = now
        self._out.write(f"{_CLEAR}{text}" if self._is_terminal else f"{text}\n")
        self._out.flush()
        self._is_drawn = self._is_terminal


@dataclass
class AuditWatch:
    """The passes over the database at ``url``. ``found`` has what the last one found.

    With ``recent``, histories begin at their checkpoints; with ``checkpoint``, each account without a difference
    gets one. ``has_found`` once any pass has found a difference.
    """

    url: str
    show: ProgressLine
    recent: bool = False
    checkpoint: bool = False
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    has_found: bool = False
    found: dict[BrokenRule, str] = field(default_factory=dict)
    _passes: int = 0

    def run(self, passes_max: int | None = None) -> None:
        """Check until interrupted, or for ``passes_max`` passes. An outage of the database is waited out."""
        while self._passes != passes_max:
            try:
                self.run_pass()
            except DatabaseAway as away:
                self.show.line(f"the database cannot be reached: {away.reason}; trying again")
                self.sleep(RETRY_S)
                continue
            if self._passes != passes_max:
                self.sleep(PAUSE_S)

    def run_pass(self) -> None:
        """Check all accounts once. Raises :class:`DatabaseAway`."""
        with connected(self.url) as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT", postgresql_readonly=not self.checkpoint)
            self._pass(connection)

    def _pass(self, connection: Connection) -> None:
        begun = self.clock()
        total = count_accounts(connection)
        found: dict[BrokenRule, str] = {}
        accounts = operations = 0
        for check in check_accounts(connection, recent=self.recent):
            checked = operations + check.operations
            if check.is_done:
                accounts += len(check.accounts)
                operations = checked
                found |= check.found
                self._show_new(check.found)
                if self.checkpoint:
                    check.write_checkpoints(connection)
            # Accounts that were opened meanwhile are checked too.
            self.show.progress(self._progress(accounts, max(total, accounts), checked, self.clock() - begun))
        self._passes += 1
        for broken in sorted(self.found.keys() - found.keys()):
            self.show.line(f"ok     account {broken.account_id} differs no longer ({broken.rule})")
        self.found = found
        differ = counted(len(found), "difference") if found else "no differences"
        elapsed_s = self.clock() - begun
        self.show.line(
            f"pass {self._passes}: {counted(accounts, 'account')}, {counted(operations, 'operation')}, {differ}, "
            f"{elapsed_s:.1f} s"
        )

    def _show_new(self, found: dict[BrokenRule, str]) -> None:
        for broken, what in sorted(found.items()):
            self.has_found = True
            if broken not in self.found:
                self.show.line(f"FAILED account {broken.account_id}: {what} ({broken.rule})")

    def _progress(self, accounts: int, total: int, operations: int, elapsed_s: float) -> str:
        of_all = f"{accounts:,} of {counted(total, 'account')}"
        line = f"pass {self._passes + 1}: {of_all}, {counted(operations, 'operation')}"
        if elapsed_s > 0 and operations:
            line += f", {operations / elapsed_s:,.0f}/s"
        if accounts:
            line += f", {elapsed_s / accounts * (total - accounts):,.0f} s left"
        return line
