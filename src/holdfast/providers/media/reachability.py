"""Whether a provider answers: what its recent calls have shown, and a probe where there were none."""

from __future__ import annotations

from typing import Final, Literal, Protocol, runtime_checkable

import structlog
import trio

log = structlog.get_logger(__name__)

ReachabilityState = Literal["up", "unknown", "down"]

FAILURES_MAX: Final = 3
"""So many calls in a row without an answer, and a provider counts as down."""

GATEWAY_STATUSES: Final = frozenset({502, 504})
"""Answers of something in front of a provider that does not answer itself."""


class Reachability:
    """One provider's state. It changes with a line in the log when the provider goes down and when it returns.

    ``heard_at`` is when the last call ended, in the loop's time: calls that go on anyway need no probe beside them.
    """

    def __init__(self, provider: str) -> None:
        self.state: ReachabilityState = "unknown"
        self.heard_at = float("-inf")
        self._provider = provider
        self._failures_count = 0

    def answered(self, status: int) -> None:
        """The provider answered, whatever it said; but a gateway's word that it does not is a failure."""
        if status in GATEWAY_STATUSES:
            self.failed(f"status {status}")
            return
        self.heard_at = trio.current_time()
        self._failures_count = 0
        if self.state == "down":
            log.warning("provider can be reached again", provider=self._provider)
        self.state = "up"

    def failed(self, reason: str) -> None:
        """A call ended without an answer."""
        self.heard_at = trio.current_time()
        self._failures_count += 1
        if self._failures_count >= FAILURES_MAX and self.state != "down":
            self.state = "down"
            log.warning("provider cannot be reached", provider=self._provider, reason=reason)


@runtime_checkable
class Probed(Protocol):
    """A provider that can be asked whether it answers."""

    @property
    def reachability(self) -> Reachability:
        """What its calls have shown."""

    @property
    def probes_when_idle(self) -> bool:
        """False where calls cost, so that only a provider whose calls fail is probed."""

    async def probe(self) -> None:
        """Make a small call, for what it shows. Never raises for what the provider or the network does."""
