"""The sampler: measures how late the event loop is, and takes this process's samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import trio

from holdfast.actors.runtime.mailbox import Mailbox
from holdfast.ledger.clock import Now
from holdfast.telemetry import metrics
from holdfast.telemetry.metrics.process_usage import ProcessMeter
from holdfast.telemetry.metrics.samples import SAMPLE_S, Queues, SampleRing, Totals, read_totals, sample_between

LAG_S = 0.25
"""How often the event loop's lag is measured, and other workers see what was counted in batches."""


class Sampler:
    """Adds a sample to ``ring`` every few seconds, and sets the metrics that nothing else sets.

    ``journal_units`` are those that wait for the journal, ``quarantined`` the actors in quarantine by kind.
    """

    def __init__(
        self,
        ring: SampleRing,
        *,
        journal_units: Callable[[], int],
        mailboxes: Callable[[], Iterable[Mailbox]],
        quarantined: Callable[[], Mapping[str, int]],
        processes: ProcessMeter,
        now: Now,
    ) -> None:
        self._ring = ring
        self._journal_units = journal_units
        self._mailboxes = mailboxes
        self._quarantined = quarantined
        self._processes = processes
        self._now = now

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Take samples until cancelled."""
        task_status.started()
        before, begun = read_totals(), trio.current_time()
        try:
            while True:
                self._ring.take_over(self._now())
                self._processes.measure()
                for kind, count in self._quarantined().items():
                    metrics.ACTORS_QUARANTINED.labels(kind).set(count)
                lag_max_s = await self._measure_lag(begun + SAMPLE_S)
                before, begun = self._take_sample(before, begun, lag_max_s)
        finally:
            metrics.flush()

    async def _measure_lag(self, until: float) -> float:
        """Measure until then how late a task resumes that is due; return the longest delay."""
        longest = 0.0
        while (due := trio.current_time() + LAG_S) <= until:
            await trio.sleep_until(due)
            lag_s = trio.current_time() - due
            metrics.LOOP_LAG_S.observe(lag_s)
            longest = max(longest, lag_s)
            metrics.flush()
        await trio.sleep_until(until)
        return longest

    def _take_sample(self, before: Totals, begun: float, lag_max_s: float) -> tuple[Totals, float]:
        totals, ended = read_totals(), trio.current_time()
        sample = sample_between(
            before,
            totals,
            at=self._now(),
            interval_s=ended - begun,
            loop_lag_max_s=lag_max_s,
            queues=self._queues(ended),
        )
        self._ring.add(sample)
        return totals, ended

    def _queues(self, now: float) -> Queues:
        # Thousands of actors may be active; nearly all of their mailboxes are empty.
        waiting = [mailbox for mailbox in self._mailboxes() if not mailbox.empty()]
        oldest = min((at for mailbox in waiting if (at := mailbox.oldest_sent_at()) is not None), default=now)
        return Queues(self._journal_units(), sum(map(len, waiting)), now - oldest)
