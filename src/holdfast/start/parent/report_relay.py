"""The parent's reports on their way to a worker, which stores them: the parent has no database code."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from holdfast.start.parent.protocol import REPORT
from holdfast.telemetry.reports.report import Report

WAITING_MAX = 1_000


class ReportRelay:
    """Passes reports on in their order; without a worker that serves the newest ones wait.

    ``send`` sends a line to one worker, and returns whether it was taken.
    """

    def __init__(self, send: Callable[[str], bool]) -> None:
        self._send = send
        self._waiting: deque[Report] = deque(maxlen=WAITING_MAX)

    def accept(self, report: Report) -> None:
        """Pass a report on, after those that wait: a listener of the reporter."""
        self._waiting.append(report)
        self.flush()

    def flush(self) -> None:
        """Pass on what waits, as far as it is taken."""
        while self._waiting and self._send(f"{REPORT} {msgspec.json.encode(self._waiting[0]).decode()}"):
            self._waiting.popleft()
