"""Reports of supervisors, one typed record each: what happened to which child, why, and what was decided.

A report is logged as one structured line, stored in a ring of the newest, and passed to listeners (the operators'
page, the table of reports). A failure to report never makes anything else fail.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import msgspec
import structlog
from structlog.typing import FilteringBoundLogger

from holdfast.ledger.clock import Now, utc_now
from holdfast.scrubbing import scrub
from holdfast.supervision.faults import leaf_of, location_of, root_cause

ReportKind = Literal["crash", "supervisor", "progress", "drain", "quarantine", "pause", "escalation"]
Context = Literal["start_error", "child_terminated", "shutdown_error", "shutdown", "killed", "stuck"]
Decision = Literal["restart", "backoff", "quarantine", "pause", "stop", "escalate", "none"]

RING_RECORDS = 1_000
LISTENERS_MAX = 64

_LEVELS: dict[ReportKind, str] = {
    "crash": "error",
    "supervisor": "warning",
    "progress": "debug",
    "drain": "info",
    "quarantine": "error",
    "pause": "warning",
    "escalation": "critical",
}
_ALARMING: frozenset[Context] = frozenset({"shutdown_error", "killed", "stuck"})


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event in the tree.

    ``path`` names the child (``holdfast/workers/hosting``), ``key`` the virtual actor. ``reason`` and ``key`` are
    scrubbed; ``location`` is ``module:line`` of the leaf exception. ``restarts`` of ``budget`` were used in the
    window that led to ``decision``; ``delay_s`` is the backoff.
    """

    kind: ReportKind
    at: datetime
    path: str
    child_id: str | None = None
    key: str | None = None
    incarnation: int | None = None
    context: Context | None = None
    reason_type: str | None = None
    reason: str | None = None
    location: str | None = None
    last_message_type: str | None = None
    mailbox_depth: int | None = None
    oldest_age_s: float | None = None
    restarts: int | None = None
    budget: int | None = None
    decision: Decision = "none"
    delay_s: float | None = None
    trace_id: str | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """The parts of an exception that a report shows."""

    reason_type: str
    reason: str
    location: str | None


def describe(exc: BaseException) -> Cause:
    """Return the leaf of ``exc`` by type, scrubbed text and location. Never raises."""
    leaf = leaf_of(exc)
    try:
        text = str(leaf)
    except Exception:
        text = "(no text: str() failed)"
    root = root_cause(leaf) or leaf
    return Cause(type(leaf).__name__, scrub(text), location_of(root))


class Reporter:
    """Scrubs, logs and stores reports, and passes them to listeners. For trio's thread only."""

    def __init__(
        self, *, now: Now = utc_now, logger: FilteringBoundLogger | None = None, ring_records: int = RING_RECORDS
    ) -> None:
        self.now = now
        self._log: FilteringBoundLogger = logger or structlog.get_logger("holdfast.supervision")
        self._ring: deque[Report] = deque(maxlen=ring_records)
        self._listeners: dict[int, Callable[[Report], None]] = {}
        self._next_listener = 0
        self.dropped_count = 0
        """How many reports a listener missed because it raised."""

    def report(self, report: Report) -> None:
        """Accept one report. Never raises."""
        try:
            report = msgspec.structs.replace(
                report,
                reason=scrub(report.reason) if report.reason else report.reason,
                key=scrub(report.key) if report.key else report.key,
            )
            self._ring.append(report)
        except Exception:
            self.dropped_count += 1
            return
        # The log may be a closed pipe, which is no reason to fail.
        with suppress(Exception):
            level = "error" if report.context in _ALARMING else _LEVELS[report.kind]
            fields = {k: v for k, v in msgspec.structs.asdict(report).items() if v is not None}
            del fields["kind"], fields["at"]
            getattr(self._log, level)(f"supervision.{report.kind}", **fields)
        for listener in tuple(self._listeners.values()):
            try:
                listener(report)
            except Exception:
                self.dropped_count += 1

    def recent(self, limit: int = RING_RECORDS) -> tuple[Report, ...]:
        """Return the newest reports, newest first."""
        return tuple(reversed(self._ring))[:limit]

    def listen(self, listener: Callable[[Report], None]) -> Callable[[], None]:
        """Call ``listener`` with every report from now on. Returns the function that ends that.

        It is called inside the supervisor and must not block; its exceptions are ignored. Raises RuntimeError
        beyond 64 listeners.
        """
        if len(self._listeners) >= LISTENERS_MAX:
            raise RuntimeError(f"over {LISTENERS_MAX} listeners to reports")
        number = self._next_listener
        self._next_listener += 1
        self._listeners[number] = listener

        def end() -> None:
            self._listeners.pop(number, None)

        return end


DeadReason = Literal["dead", "full", "expired", "orphan_reply"]
"""dead: the key is quarantined. full: the mailbox was full. expired: its deadline passed unread.

orphan_reply: the sender no longer waited for the reply.
"""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was not handled, by type: its content is not stored."""

    at: datetime
    reason: DeadReason
    path: str
    key: str | None
    message_type: str
    trace_id: str | None = None


class DeadLetters:
    """The newest dead letters, and their counts by reason since the start."""

    def __init__(self, *, now: Now = utc_now, ring_records: int = RING_RECORDS) -> None:
        self._now = now
        self._ring: deque[DeadLetter] = deque(maxlen=ring_records)
        self._counts: Counter[DeadReason] = Counter()

    def record(
        self, reason: DeadReason, *, path: str, key: str | None, message_type: str, trace_id: str | None = None
    ) -> None:
        """Record one message."""
        self._counts[reason] += 1
        self._ring.append(
            DeadLetter(
                at=self._now(),
                reason=reason,
                path=path,
                key=scrub(key) if key else key,
                message_type=message_type,
                trace_id=trace_id,
            )
        )

    def recent(self, limit: int = RING_RECORDS) -> tuple[DeadLetter, ...]:
        """Return the newest dead letters, newest first."""
        return tuple(reversed(self._ring))[:limit]

    def counts(self) -> dict[DeadReason, int]:
        """Return the count of each reason, zeros included."""
        return {reason: self._counts[reason] for reason in ("dead", "full", "expired", "orphan_reply")}
