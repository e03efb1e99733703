"""The provider watch: probes providers that nobody has called for a while, so that readiness tells the truth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import structlog
import trio

from holdfast.actors.workers.worker import Worker, WorkerAddress
from holdfast.providers.media.base import MediaProvider
from holdfast.providers.media.reachability import Probed

log = structlog.get_logger(__name__)

PROBE_S = 10.0
PROBES_MAX = 8
"""How many probes are under way at once."""


class ProviderWatch(Worker):
    """Looks every few seconds which providers need a probe; none is asked twice at a time."""

    def __init__(self, post: WorkerAddress, *, providers: Mapping[str, MediaProvider]) -> None:
        super().__init__(post)
        self._providers = providers
        self._places = trio.CapacityLimiter(PROBES_MAX)
        self._under_way: set[str] = set()

    def background_loops(self) -> tuple[Callable[[], Any], ...]:
        """Look around every few seconds."""
        return (self._poll_loop,)

    async def _poll_loop(self) -> None:
        while True:
            self.poll_due()
            await trio.sleep(PROBE_S)

    def poll_due(self) -> None:
        """Start the probes that are due."""
        now = trio.current_time()
        for name, provider in list(self._providers.items()):
            if not isinstance(provider, Probed) or name in self._under_way:
                continue
            is_wanted = provider.probes_when_idle or provider.reachability.state == "down"
            if is_wanted and now - provider.reachability.heard_at >= PROBE_S:
                self._under_way.add(name)
                self.nursery.start_soon(self._probe, name, provider)

    async def _probe(self, name: str, provider: Probed) -> None:
        try:
            async with self._places:
                await provider.probe()
        except Exception:
            # One provider's odd answer must not end the watch over all.
            log.exception("probe broke", provider=name)
        finally:
            self._under_way.discard(name)
