"""The state of one media provider, derived from the results of its calls.

Consecutive failures are counted separately for all calls (including probes), for submissions, and for updates about
jobs (callbacks and responses to polls). The state follows from the counts:

- ``down``: the last calls had no response;
- ``silent``: calls have responses, but for a while no submission had one, or no update was received;
- ``up``: neither; ``unknown`` until the first call has ended.

``/readyz``, the dispatcher and the provider watch read this state. Each process has its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

import trio

from holdfast.ledger.tasks.dispatch import Silence, Unanswered
from holdfast.telemetry.reports.conditions import TakeOutcome, ignore_outcome

ProviderState = Literal["up", "unknown", "silent", "down"]
Counted = Literal["calls", "submissions", "updates"]
"""The kinds of failures that are counted, the most serious first."""

FAILURES_MAX: Final = 3
"""The number of consecutive failures that changes the state."""
SILENT_AFTER_S: Final = 20.0
"""Failed submissions and missing updates change the state only if they span this time: many may fail at once."""
GATEWAY_STATUSES: Final = frozenset({502, 504})
"""Statuses sent by a gateway in front of a server that does not answer itself."""


@dataclass(slots=True)
class _Failures:
    """Consecutive failures: times of the first and the last (trio's clock), their number, and the last reason."""

    since_s: float
    last_s: float = 0.0
    count: int = 0
    reason: str = ""


class ProviderHealth:
    """One provider's state. ``take_outcome`` takes the failures that make it ``down`` or ``silent``, and None when
    it is up.

    ``called_at_s`` is when the last call ended (trio's clock). A provider that was called recently needs no probe.
    """

    def __init__(self, provider: str) -> None:
        self.called_at_s = float("-inf")
        self._provider = provider
        self._failures: dict[Counted, _Failures] = {}
        self._failing: Counted | None = None
        self.take_outcome: TakeOutcome = ignore_outcome
        self._was_answered = False

    @property
    def state(self) -> ProviderState:
        """The current state."""
        if self._failing == "calls":
            return "down"
        if self._failing is not None:
            return "silent"
        return "up" if self._was_answered else "unknown"

    @property
    def is_doubted(self) -> bool:
        """Whether the last call failed, but too few to tell that the provider is down."""
        return "calls" in self._failures and self.state != "down"

    def silences(self) -> tuple[Silence, ...]:
        """Return the kinds of call that have had no response for a while, for the tasks that wait for one."""
        now_s = trio.current_time()
        return tuple(
            Silence(of, now_s - self._failures[of].since_s) for of in get_args(Unanswered) if self._is_failing(of)
        )

    def call_answered(self, call: str, status: int) -> None:
        """Record the response to a call. A gateway's status for an unreachable server counts as a failure."""
        if status in GATEWAY_STATUSES:
            self.failed("calls", f"{call}: status {status}")
        else:
            self.succeeded("calls")

    def succeeded(self, what: Counted) -> None:
        """Record a response to a call, any response to a submission, or an update about a job."""
        if what == "calls":
            self.called_at_s = trio.current_time()
        self._was_answered = True
        self._failures.pop(what, None)
        if self._failing is not None and self._update() is None:
            self.take_outcome(None)

    def failed(self, what: Counted, reason: str) -> None:
        """Record a call or a submission without a response, or an update that was not received in time."""
        now_s = trio.current_time()
        if what == "calls":
            self.called_at_s = now_s
        found = self._failures.setdefault(what, _Failures(now_s))
        found.last_s, found.count, found.reason = now_s, found.count + 1, reason
        failing = self._update()
        if failing is not None:
            found = self._failures[failing]
            self.take_outcome(f"{self.state}: {found.count} {failing} failed, {found.reason}")

    def _update(self) -> Counted | None:
        self._failing = next((what for what in get_args(Counted) if self._is_failing(what)), None)
        return self._failing

    def _is_failing(self, what: Counted) -> bool:
        found = self._failures.get(what)
        if found is None or found.count < FAILURES_MAX:
            return False
        return what == "calls" or found.last_s - found.since_s >= SILENT_AFTER_S
