"""The provider watch: probes providers that were not called for a while, so that their state is true."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog
import trio

from holdfast.actors.workers.worker import Worker, WorkerRef
from holdfast.providers.media.base import MediaProvider

log = structlog.get_logger(__name__)

PROBE_S = 10.0
CHECK_S = 1.0
"""How often due probes are looked for: with `PROBE_S` here too, every second one would come a round late."""
PROBES_MAX = 8
"""How many probes are under way at once."""


class ProviderWatch(Worker):
    """Starts probes every few seconds where they are due, one at a time for each provider."""

    def __init__(self, post: WorkerRef, *, providers: Mapping[str, MediaProvider]) -> None:
        super().__init__(post)
        self._providers = providers
        self._places = trio.CapacityLimiter(PROBES_MAX)
        self._under_way: set[str] = set()

    def background_loops(self) -> tuple[Callable[[], Any], ...]:
        """Start due probes every few seconds."""
        return (self._poll_loop,)

    async def _poll_loop(self) -> None:
        while True:
            self.poll_due()
            await trio.sleep(CHECK_S)

    def poll_due(self) -> None:
        """Start the probes that are due."""
        now = trio.current_time()
        for name, provider in list(self._providers.items()):
            health = provider.health
            is_due = now - health.called_at_s >= PROBE_S and (provider.probes_when_idle or health.state == "down")
            if is_due and name not in self._under_way:
                self._under_way.add(name)
                self.nursery.start_soon(self._probe, name, provider)

    async def _probe(self, name: str, provider: MediaProvider) -> None:
        try:
            async with self._places:
                await provider.probe()
        except Exception:
            # A defect in one provider's adapter must not end the probes of all others.
            log.exception("probe failed", provider=name)
        finally:
            self._under_way.discard(name)
