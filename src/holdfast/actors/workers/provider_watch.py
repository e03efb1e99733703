"""The provider watch: probes providers that were not called for a while, so that their state is current."""

from __future__ import annotations

from collections.abc import Mapping

import structlog
import trio

from holdfast.actors.workers.passes import next_tick, one_pass
from holdfast.providers.media.base import MediaProvider
from holdfast.providers.media.health import ProviderState
from holdfast.telemetry import metrics

log = structlog.get_logger(__name__)

PROBE_S = 10.0
CHECK_S = 1.0
"""How often due probes are started, and a doubted provider is probed: so its state is known soon."""
DOWN_PROBE_S = 2.0
"""How often a provider is probed that is down, where probes cost nothing."""
PROBES_MAX = 8
"""How many probes run at once."""


class ProviderWatch:
    """Starts probes every few seconds where they are due, one at a time for each provider."""

    def __init__(self, *, providers: Mapping[str, MediaProvider]) -> None:
        self._providers = providers
        self._limiter = trio.CapacityLimiter(PROBES_MAX)
        self._under_way: set[str] = set()
        self._shown: dict[str, ProviderState] = {}

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Start due probes every few seconds until cancelled."""
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                self._start_due(nursery)
                self._show_states()
                await trio.sleep_until(next_tick(CHECK_S))

    def _start_due(self, nursery: trio.Nursery) -> None:
        now = trio.current_time()
        for name, provider in list(self._providers.items()):
            health = provider.health
            pause_s = _pause_s(provider)
            is_wanted = provider.probes_when_idle or health.is_doubted or health.state == "down"
            is_due = is_wanted and now - health.called_at_s >= pause_s
            if is_due and name not in self._under_way:
                self._under_way.add(name)
                nursery.start_soon(self._probe, name, provider)

    def _show_states(self) -> None:
        """Set the gauges of the states that have changed; a provider that has left the catalog has none."""
        states = {name: provider.health.state for name, provider in self._providers.items()}
        for name, state in self._shown.items() - states.items():
            metrics.PROVIDER_STATE.labels(name, state).set(0)
        for name, state in states.items():
            metrics.PROVIDER_STATE.labels(name, state).set(1)
        self._shown = states

    async def _probe(self, name: str, provider: MediaProvider) -> None:
        try:
            async with self._limiter:
                with one_pass(f"probe of {name}"):
                    await provider.probe()
        except Exception:
            # A defect in one provider's adapter must not end the probes of all others.
            log.exception("probe failed", provider=name)
        finally:
            self._under_way.discard(name)


def _pause_s(provider: MediaProvider) -> float:
    """Return how long after its last call a provider is probed."""
    if provider.health.is_doubted:
        return CHECK_S
    return DOWN_PROBE_S if provider.health.state == "down" and provider.probes_when_idle else PROBE_S
