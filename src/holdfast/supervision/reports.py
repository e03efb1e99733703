"""What supervisors tell people: one typed record for who died, why, what it held and what was done about it.

Reports go to the log as one structured line each, to a ring of the newest, and to listeners (the operators' page,
the table of reports). Reporting must never be the reason that something else fails.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import msgspec
import structlog
import trio
from structlog.typing import FilteringBoundLogger

from holdfast.ledger.clock import Now, utc_now
from holdfast.scrubbing import scrub
from holdfast.supervision.faults import leaf_of, location_of, root_cause

__all__ = [
    "Cause",
    "Context",
    "DeadLetter",
    "DeadLetters",
    "DeadReason",
    "Decision",
    "Report",
    "ReportKind",
    "Reporter",
    "describe",
    "scrub",
]

ReportKind = Literal["crash", "supervisor", "progress", "drain", "quarantine", "pause", "escalation"]
Context = Literal["start_error", "child_terminated", "shutdown_error", "shutdown", "killed", "stuck"]
Decision = Literal["restart", "backoff", "quarantine", "pause", "stop", "escalate", "none"]

RING_RECORDS = 1_000
LISTENERS_MAX = 64
STREAM_RECORDS = 256

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

    ``path`` says where (``holdfast/workers/hosting``), ``key`` which virtual actor. ``reason`` and ``key`` are
    scrubbed on the way in, ``location`` is ``module:line`` of the leaf exception. Of the last message only the type
    is kept. ``restarts`` of ``budget`` are spent in the window that led to ``decision``; ``delay_s`` is the wait.
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
    """An exception as a report tells it."""

    reason_type: str
    reason: str
    location: str | None


def describe(exc: BaseException) -> Cause:
    """The leaf of ``exc`` by type, scrubbed text and place. Never raises, whatever its ``__str__`` does."""
    leaf = leaf_of(exc)
    try:
        text = str(leaf)
    except Exception:
        text = "(its text could not be made)"
    root = root_cause(leaf) or leaf
    return Cause(type(leaf).__name__, scrub(text), location_of(root))


class Reporter:
    """Takes reports in: scrubs, logs, keeps the newest, tells listeners. For use on trio's thread only."""

    def __init__(
        self, *, now: Now = utc_now, logger: FilteringBoundLogger | None = None, ring_records: int = RING_RECORDS
    ) -> None:
        self.now = now
        self._log: FilteringBoundLogger = logger or structlog.get_logger("holdfast.supervision")
        self._ring: deque[Report] = deque(maxlen=ring_records)
        self._listeners: dict[int, Callable[[Report], None]] = {}
        self._next_listener = 0
        self.dropped_count = 0
        """Reports a listener missed because it raised or its stream was full."""

    def report(self, report: Report) -> None:
        """Take in one report. Never raises."""
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
        # The log may be a closed pipe: whoever reported has more important things to do than to learn of it.
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
        """The newest reports, newest first."""
        return tuple(reversed(self._ring))[:limit]

    def listen(self, listener: Callable[[Report], None]) -> Callable[[], None]:
        """Call ``listener`` with every report from now on; returns the way to end that.

        It is called in the middle of supervision: it must not block. What it raises is ignored.
        Raises RuntimeError beyond 64 listeners.
        """
        if len(self._listeners) >= LISTENERS_MAX:
            raise RuntimeError(f"over {LISTENERS_MAX} listeners to reports")
        number = self._next_listener
        self._next_listener += 1
        self._listeners[number] = listener

        def end() -> None:
            self._listeners.pop(number, None)

        return end

    @contextmanager
    def stream(self, buffer_records: int = STREAM_RECORDS) -> Iterator[trio.MemoryReceiveChannel[Report]]:
        """Reports from now on as a channel. A reader slower than ``buffer_records`` misses the newest ones."""
        send, receive = trio.open_memory_channel[Report](buffer_records)
        end = self.listen(send.send_nowait)
        try:
            with send, receive:
                yield receive
        finally:
            end()


DeadReason = Literal["dead", "full", "expired", "orphan_reply"]
"""dead: the actor ended with it unread. full: no room. expired: too old to be read.

orphan_reply: the answer came when the asker had left.
"""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message nobody handled, by type: bodies are not kept."""

    at: datetime
    reason: DeadReason
    path: str
    key: str | None
    message_type: str
    trace_id: str | None = None


class DeadLetters:
    """The newest undelivered messages, and how many there were by reason since the start."""

    def __init__(self, *, now: Now = utc_now, ring_records: int = RING_RECORDS) -> None:
        self._now = now
        self._ring: deque[DeadLetter] = deque(maxlen=ring_records)
        self._counts: Counter[DeadReason] = Counter()

    def record(
        self, reason: DeadReason, *, path: str, key: str | None, message_type: str, trace_id: str | None = None
    ) -> None:
        """Note one message that was not handled."""
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
        """The newest dead letters, newest first."""
        return tuple(reversed(self._ring))[:limit]

    def counts(self) -> dict[DeadReason, int]:
        """All reasons with their counts, zeros included."""
        return {reason: self._counts[reason] for reason in ("dead", "full", "expired", "orphan_reply")}
