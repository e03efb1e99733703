"""The state of one media provider, derived from the results of its calls.

Consecutive failures are counted separately for all calls (including probes), for submissions, and for updates about
jobs (callbacks and responses to polls). The state follows from the counts:

- ``down``: the last calls had no response;
- ``silent``: calls have responses, but for a while no submission had one, or no update was received;
- ``up``: neither; ``unknown`` until the first call has ended.

``/readyz``, the dispatcher, the provider watch and the log read this state. Each process has its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

import structlog
import trio

from holdfast.ledger.tasks.silence import Silence, Unanswered

log = structlog.get_logger(__name__)

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
    """One provider's state. Each change is logged.

    ``called_at_s`` is when the last call ended (trio's clock). A provider that was called recently needs no probe.
    """

    def __init__(self, provider: str) -> None:
        self.called_at_s = float("-inf")
        self._provider = provider
        self._failures: dict[Counted, _Failures] = {}
        self._failing: Counted | None = None
        self._since_s = 0.0
        self._was_answered = False

    @property
    def state(self) -> ProviderState:
        """The current state."""
        if self._failing == "calls":
            return "down"
        if self._failing is not None:
            return "silent"
        return "up" if self._was_answered else "unknown"

    def silences(self) -> tuple[Silence, ...]:
        """Return the kinds of call that have had no response for a while, for the tasks that wait for one."""
        now_s = trio.current_time()
        return tuple(
            Silence(of, now_s - self._failures[of].since_s) for of in get_args(Unanswered) if self._is_failing(of)
        )

    def call_answered(self, status: int) -> None:
        """Record the response to a call. A gateway's status for an unreachable server counts as a failure."""
        if status in GATEWAY_STATUSES:
            self.failed("calls", f"status {status}")
        else:
            self.succeeded("calls")

    def succeeded(self, what: Counted) -> None:
        """Record a response to a call, any response to a submission, or an update about a job."""
        if what == "calls":
            self.called_at_s = trio.current_time()
        self._was_answered = True
        self._failures.pop(what, None)
        self._log_change()

    def failed(self, what: Counted, reason: str) -> None:
        """Record a call or a submission without a response, or an update that was not received in time."""
        now_s = trio.current_time()
        if what == "calls":
            self.called_at_s = now_s
        found = self._failures.setdefault(what, _Failures(now_s))
        found.last_s, found.count, found.reason = now_s, found.count + 1, reason
        self._log_change()

    def _log_change(self) -> None:
        failing = next((what for what in get_args(Counted) if self._is_failing(what)), None)
        if failing == self._failing:
            return
        was, lasted_s = self.state, round(trio.current_time() - self._since_s)
        self._failing, self._since_s = failing, trio.current_time()
        if failing is None:
            log.warning("provider is up", provider=self._provider, was=was, for_s=lasted_s)
        else:
            found = self._failures[failing]
            for_s = round(found.last_s - found.since_s)
            log.warning(
                f"provider is {self.state}",
                provider=self._provider, of=failing, failures=found.count, for_s=for_s, reason=found.reason,
            )  # fmt: skip

    def _is_failing(self, what: Counted) -> bool:
        found = self._failures.get(what)
        if found is None or found.count < FAILURES_MAX:
            return False
        return what == "calls" or found.last_s - found.since_s >= SILENT_AFTER_S
