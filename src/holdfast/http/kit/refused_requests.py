"""Refused requests are counted, and the counts logged once a minute: never a line for each."""

from __future__ import annotations

from collections import Counter
from typing import Final

import structlog
import trio
from quart import Response

from holdfast.telemetry import metrics
from holdfast.telemetry.reports.conditions import UNAVAILABLE, Conditions

log = structlog.get_logger("holdfast.http")

PERIOD_S: Final = 60.0
CODES_SHOWN_MAX: Final = 8
NO_OUTAGE: Final = frozenset({"quarantined", "record_unreadable", "provider_not_configured"})
"""The 503s of a service that is well: of a single actor or row, and of a setting that may be left out."""


class RefusalResponse(Response):
    """A response with an error of this code."""

    code = ""


class RefusedRequests:
    """The refused requests of one process since the last line, by status and code."""

    def __init__(self, conditions: Conditions) -> None:
        self._conditions = conditions
        self._counts: Counter[tuple[int, str]] = Counter()

    def count(self, response: Response) -> None:
        """Count a response if it is a refusal."""
        if isinstance(response, RefusalResponse):
            self._counts[response.status_code, response.code] += 1
            metrics.REFUSALS.labels(str(response.status_code), response.code).inc()
            if response.status_code == 503 and response.code not in NO_OUTAGE:
                self._conditions.failed(UNAVAILABLE, "", response.code)

    def log_counts(self) -> None:
        """Log the counts since the last call, the most frequent first."""
        if not self._counts:
            return
        counts, self._counts = self._counts, Counter()
        codes = ", ".join(
            f"{status} {code} ({count})" for (status, code), count in counts.most_common(CODES_SHOWN_MAX)
        )
        log.info("requests refused", count=counts.total(), codes=codes)

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Log the counts every minute, and a last time when cancelled."""
        task_status.started()
        try:
            while True:
                await trio.sleep(PERIOD_S)
                self.log_counts()
        finally:
            self.log_counts()
