"""What media providers leave unanswered, as far as tasks depend on it.

A provider is asked two things, and each may go unanswered by itself: it takes submissions, and it tells how jobs
stand (by callbacks and answers to polls). One call without an answer is its task's trouble. When several in a row
stay without one for a while, the provider counts as silent: one line in the log when it begins, one when it ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from holdfast.ledger.tasks.silence import Asked, Silence

log = structlog.get_logger(__name__)

SILENT_AFTER_S = 20.0
SILENT_AFTER_CALLS = 3


@dataclass(slots=True)
class _Unanswered:
    since_s: float
    calls: int = 0
    is_told: bool = False


class ProviderSilences:
    """The state of all providers of one process. Nothing here asks a provider: it is told what came of calls."""

    def __init__(self, *, counter: Callable[[], float] = time.monotonic) -> None:
        self._counter = counter
        self._unanswered: dict[tuple[str, Asked], _Unanswered] = {}

    def answered(self, provider: str, of: Asked) -> None:
        """The provider answered: a submission, whatever it said of it; or a poll, or by a callback."""
        ended = self._unanswered.pop((provider, of), None)
        if ended is not None and ended.is_told:
            after_s = round(self._counter() - ended.since_s)
            log.warning(
                "provider is no longer silent", provider=provider, of=of, after_s=after_s, calls=ended.calls
            )

    def unanswered(self, provider: str, of: Asked, reason: str) -> None:
        """A call to the provider came to nothing, or the time for its word is over."""
        found = self._unanswered.setdefault((provider, of), _Unanswered(self._counter()))
        found.calls += 1
        if not found.is_told and self._is_silent(found):
            found.is_told = True
            for_s = round(self._counter() - found.since_s)
            log.warning(
                "provider is silent", provider=provider, of=of, for_s=for_s, calls=found.calls, reason=reason
            )

    def silences(self, provider: str) -> tuple[Silence, ...]:
        """What the provider has not answered for so long that it counts as silent; none where all is well."""
        now = self._counter()
        return tuple(
            Silence(of, now - found.since_s)
            for (name, of), found in self._unanswered.items()
            if name == provider and self._is_silent(found)
        )

    def _is_silent(self, found: _Unanswered) -> bool:
        return found.calls >= SILENT_AFTER_CALLS and self._counter() - found.since_s >= SILENT_AFTER_S
