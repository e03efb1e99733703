"""The frame around a page: the navigation, with the counts of what waits for an operator."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Literal

import structlog
import trio
from sqlalchemy import Connection

from holdfast.http.endpoints.operators.processes import ask_all, count_quarantined
from holdfast.http.kit.dependencies import Dependencies
from holdfast.persistence.operators.poison import open_poison_count
from holdfast.persistence.queries.backlog import operator_backlog, switched_off_since
from holdfast.persistence.queries.events import failure_counts
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.supervision.control.messages import DescribeProcess

log = structlog.get_logger(__name__)

COUNTS_VALID: Final = timedelta(seconds=2)
SWITCHED_OFF_COUNTED: Final = timedelta(days=1)
"""How long a top-up counts that was switched off: its owner decides about it, and many never do."""

CountName = Literal["poison", "in_review", "held", "mismatched", "undelivered", "quarantined", "switched_off"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the navigation. ``counts`` names what is counted there; ``tone`` is its colour above zero.

    One that ``needs_cells`` is left out if the service has one database.
    """

    path: str
    title: str
    counts: CountName | None = None
    tone: Literal["warn", "bad"] = "warn"
    needs_cells: bool = False


@dataclass(frozen=True, slots=True)
class ShownEntry:
    """A line as it is rendered. ``count`` is None without one, and while it is not known."""

    path: str
    title: str
    count: int | None
    tone: str


NAVIGATION: Final[tuple[tuple[str, tuple[Entry, ...]], ...]] = (
    ("", (Entry("/ops", "Overview"), Entry("/ops/follow", "Follow one thing"))),
    (
        "Processes",
        (
            Entry("/ops/tree", "Tree"),
            Entry("/ops/actors", "Actors"),
            Entry("/ops/reports", "Reports"),
            Entry("/ops/log-levels", "Log levels"),
            Entry("/ops/profile", "What computes"),
            Entry("/ops/database", "Database"),
            Entry("/ops/cells", "Cells", needs_cells=True),
        ),
    ),
    (
        "Waiting for you",
        (
            Entry("/ops/quarantine", "Quarantine", "quarantined", "bad"),
            Entry("/ops/poison", "Poison messages", "poison", "bad"),
            Entry("/ops/reviews", "Reviews", "in_review"),
            Entry("/ops/payments", "Held payments", "held"),
            Entry("/ops/orders", "Unreconciled orders", "mismatched", "bad"),
            Entry("/ops/webhooks", "Failed webhooks", "undelivered"),
            Entry("/ops/top-ups", "Switched-off top-ups", "switched_off"),
        ),
    ),
    (
        "Business",
        (
            Entry("/ops/accounts", "Accounts"),
            Entry("/ops/all-orders", "All orders"),
            Entry("/ops/all-tasks", "All tasks"),
            Entry("/ops/coupons", "Coupons"),
            Entry("/ops/books", "Books"),
        ),
    ),
    (
        "Service",
        (
            Entry("/ops/tasks", "Unfinished tasks"),
            Entry("/ops/failed-tasks", "Failed tasks"),
            Entry("/ops/providers", "Providers"),
            Entry("/ops/overrides", "Set at run time"),
            Entry("/ops/refused-requests", "Refused requests"),
            Entry("/ops/costs", "Who costs most"),
            Entry("/ops/bulk-actions", "Bulk actions"),
            Entry("/ops/actions", "Operators' actions"),
            Entry("/ops/docs", "API reference"),
        ),
    ),
)


@dataclass
class Frame:
    """The navigation of a process's pages. Counts are read at most every two seconds, however many pages ask."""

    _counts: dict[CountName, int] = field(default_factory=dict, init=False)
    _counted_at: datetime | None = field(default=None, init=False)
    _counting: trio.Lock = field(default_factory=trio.Lock, init=False)

    async def navigation(self, deps: Dependencies) -> list[tuple[str, list[ShownEntry]]]:
        """Return the groups of the navigation. Raises nothing that is expected: an unknown count is None."""
        counts = await self.counts(deps)

        def shown(entry: Entry) -> ShownEntry:
            count = None if entry.counts is None else counts.get(entry.counts)
            return ShownEntry(entry.path, entry.title, count, entry.tone)

        has_cells = deps.cells is not None
        return [
            (title, [shown(entry) for entry in entries if has_cells or not entry.needs_cells])
            for title, entries in NAVIGATION
        ]

    async def counts(self, deps: Dependencies) -> dict[CountName, int]:
        """Return how much waits for an operator; if that cannot be read, only what is in memory."""
        # One page reads, and those that come meanwhile have what it found.
        async with self._counting:
            now = deps.now()
            if self._counted_at is None or not self._counted_at <= now < self._counted_at + COUNTS_VALID:
                stored: dict[CountName, int] = {}
                try:
                    stored = await deps.database.read(lambda rows: _read_counts(rows, now))
                except DatabaseAway:
                    pass
                except Exception:
                    # Every page has the navigation, also the one that leads to the cause.
                    log.exception("what waits for operators could not be counted")
                answers = await ask_all(deps, DescribeProcess())
                self._counts = {**stored, "quarantined": count_quarantined(answers.by_member.values())}
                self._counted_at = deps.now()
            return self._counts


def _read_counts(rows: Connection, now: datetime) -> dict[CountName, int]:
    backlog, failures = operator_backlog(rows), failure_counts(rows)
    return {
        "poison": open_poison_count(rows),
        "in_review": backlog.in_review,
        "held": backlog.held,
        "mismatched": backlog.mismatched,
        "undelivered": failures.failing + failures.given_up,
        "switched_off": switched_off_since(rows, now - SWITCHED_OFF_COUNTED),
    }


ONE_OF: Final = {"/ops/tasks": "/ops/all-tasks", "/ops/payments": "/ops/all-orders"}
"""Where the page of one task or order belongs, which may or may not be in the list at its path."""


def section_of(path: str) -> str:
    """Return the navigation's entry that a page belongs to: ``/ops/reviews/rev_1`` is below ``/ops/reviews``."""
    head = "/".join(path.split("/", 3)[:3])
    return head if head == path else ONE_OF.get(head, head)
