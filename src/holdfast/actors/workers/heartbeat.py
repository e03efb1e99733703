"""The heartbeat: renews this process's lease and keeps its view of service time right."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import structlog
import trio

from holdfast.actors.workers.worker import Worker, WorkerRef
from holdfast.persistence.claims.processes import BEAT_S, LEASE_S, Process, beat, end_lease
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.persistence.server.service_clock import ServiceClock

log = structlog.get_logger(__name__)

END_S = 1.0


class Presence:
    """What a process's heartbeat has come to; it outlives the worker's incarnations."""

    def __init__(self, process: Process, clock: ServiceClock) -> None:
        self.process = process
        self.clock = clock
        self._beat_at: float | None = None
        self._steady_since = 0.0

    def judges_leases(self) -> bool:
        """Whether the database has answered here for so long that every process that runs has renewed its lease."""
        now = trio.current_time()
        return (
            self._beat_at is not None and now - self._beat_at < LEASE_S / 2 and now - self._steady_since >= LEASE_S
        )

    def beaten(self) -> None:
        """Note that a beat is durable."""
        now = trio.current_time()
        if self._beat_at is None or now - self._beat_at >= LEASE_S / 2:
            self._steady_since = now
        self._beat_at = now


class Heartbeat(Worker):
    """Beats every few seconds, the first time before it counts as started. ``providers`` are those within reach."""

    def __init__(
        self,
        post: WorkerRef,
        *,
        database: Database,
        presence: Presence,
        providers: Callable[[], Collection[str]],
    ) -> None:
        super().__init__(post)
        self._database = database
        self._presence = presence
        self._providers = providers

    async def on_start(self) -> None:  # type: ignore[override]  # may await
        """Measure service time before anything is decided by it."""
        await self._beat()

    def background_loops(self) -> tuple[Callable[[], Any], ...]:
        """Beat."""
        return (self._keep_beating,)

    async def _keep_beating(self) -> None:
        while True:
            await trio.sleep(BEAT_S)
            await self._beat()

    async def _beat(self) -> None:
        presence, providers = self._presence, sorted(self._providers())
        try:
            await self._database.work(beat, presence.process, presence.clock, providers)
        except DatabaseAway as away:
            log.info("no heartbeat", reason=str(away))
        else:
            presence.beaten()

    async def on_stop(self) -> None:  # type: ignore[override]  # may await
        """End the lease, so that others need not wait until it lapses."""
        process = self._presence.process
        with trio.move_on_after(END_S):
            try:
                await self._database.work(end_lease, process)
            except DatabaseAway as away:
                log.info("the lease lapses by itself", reason=str(away))
