"""Bursts: when many actors of a group report the same at once, the first pass one by one, the rest as a sum."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from holdfast.telemetry.reports.report import Report, ReportKind

ALONE_MAX = 100
"""So many reports of one kind and path pass one by one in a period."""
PERIOD_S = 10.0


@dataclass(slots=True)
class _Burst:
    begun: datetime
    count: int = 0
    last: Report | None = None


class Bursts:
    """Counts what is reported about keys; reports about parts of the tree, and what operators did, always pass."""

    def __init__(self) -> None:
        self._bursts: dict[tuple[ReportKind, str], _Burst] = {}

    def sums(self, report: Report) -> bool:
        """Whether ``report`` becomes part of a sum. Those of periods that are over are taken before."""
        if report.key is None or report.operator is not None:
            return False
        burst = self._bursts.setdefault((report.kind, report.path), _Burst(report.at))
        burst.count += 1
        if burst.count <= ALONE_MAX:
            return False
        burst.last = report
        return True

    def take(self, now: datetime) -> list[Report]:
        """Return the sums of the periods that are over."""
        over = [
            name for name, burst in self._bursts.items() if abs(now - burst.begun) >= timedelta(seconds=PERIOD_S)
        ]
        bursts = [self._bursts.pop(name) for name in over]
        return [_sum(burst, burst.last, now) for burst in bursts if burst.last is not None]


def _sum(burst: _Burst, last: Report, now: datetime) -> Report:
    """Return the last report, with the number of those that it stands for."""
    return msgspec.structs.replace(
        last,
        at=now,
        key=None,
        account_id=None,
        task_id=None,
        trace_id=None,
        count=burst.count - ALONE_MAX,
        duration_s=round(abs(now - burst.begun).total_seconds(), 3),
        reason=f"more of the same, the last on {last.key}" + (f": {last.reason}" if last.reason else ""),
    )
