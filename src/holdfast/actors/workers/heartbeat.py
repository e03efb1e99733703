"""The heartbeat: renews this process's lease and measures service time."""

from __future__ import annotations

from collections.abc import Callable, Collection

import structlog
import trio

from holdfast.persistence.claims.processes import BEAT_S, LEASE_S, Process, beat, end_lease
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.persistence.server.service_clock import ServiceClock

log = structlog.get_logger(__name__)

END_LEASE_TIMEOUT_S = 1.0


class Presence:
    """This process's lease and service clock, shared by the incarnations of its heartbeat."""

    def __init__(self, process: Process, clock: ServiceClock) -> None:
        self.process = process
        self.clock = clock
        self._renewed_at: float | None = None
        self._reachable_since = 0.0

    def leases_are_reliable(self) -> bool:
        """Whether the database has been reachable long enough for all running processes to renew their leases."""
        now = trio.current_time()
        return (
            self._renewed_at is not None
            and now - self._renewed_at < LEASE_S / 2
            and now - self._reachable_since >= LEASE_S
        )

    def record_renewal(self) -> None:
        """Record a durable renewal."""
        now = trio.current_time()
        if self._renewed_at is None or now - self._renewed_at >= LEASE_S / 2:
            self._reachable_since = now
        self._renewed_at = now


class Heartbeat:
    """Renews the lease every few seconds. ``providers`` returns the providers that this process can call."""

    def __init__(self, *, database: Database, presence: Presence, providers: Callable[[], Collection[str]]) -> None:
        self._database = database
        self._presence = presence
        self._providers = providers
        self._stopping = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Renew the lease until stopped, then end it. Started once service time has been measured."""
        await self._beat()
        task_status.started()
        while not self._stopping.is_set():
            with trio.move_on_after(BEAT_S):
                await self._stopping.wait()
            if not self._stopping.is_set():
                await self._beat()
        await self._end_lease()

    async def stop(self) -> None:
        """End the lease and return from :meth:`run`."""
        self._stopping.set()

    async def _beat(self) -> None:
        presence, providers = self._presence, sorted(self._providers())
        try:
            await self._database.work(beat, presence.process, presence.clock, providers)
        except DatabaseAway as away:
            log.info("heartbeat failed", reason=str(away))
        else:
            presence.record_renewal()

    async def _end_lease(self) -> None:
        """End the lease, so that other processes need not wait until it lapses."""
        process = self._presence.process
        with trio.move_on_after(END_LEASE_TIMEOUT_S):
            try:
                await self._database.work(end_lease, process)
            except DatabaseAway as away:
                log.info("lease not ended", reason=str(away))
