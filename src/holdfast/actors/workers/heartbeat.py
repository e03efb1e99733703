"""The heartbeat: renews this process's lease, measures service time, and reads the other members."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

import structlog
import trio

from holdfast.actors.workers.passes import one_pass
from holdfast.persistence.claims.processes import (
    BEAT_S,
    LEASE_S,
    Beat,
    Member,
    Membership,
    Process,
    beat,
    end_lease,
)
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.persistence.server.service_clock import ServiceClock

log = structlog.get_logger(__name__)

END_LEASE_TIMEOUT_S = 1.0


class Presence:
    """This process's lease and service clock, shared by the incarnations of its heartbeat.

    Every beat writes ``membership``, claims the singletons that ``wanted`` returns for the providers that this
    process can call, and passes the other members to ``on_members``.
    """

    def __init__(self, process: Process, clock: ServiceClock) -> None:
        self.process = process
        self.clock = clock
        self.membership = Membership()
        self.wanted: Callable[[frozenset[str]], frozenset[str]] = lambda _providers: frozenset()
        self.on_members: Callable[[Sequence[Member], Membership], None] = lambda _members, _written: None
        self._claimed: frozenset[str] = frozenset()
        self._beat_due = trio.Event()
        # When the last beat began, and when the last one that renewed the lease did: a lease counts from its
        # beat's beginning, not from the commit.
        self._begun_at = 0.0
        self._renewed_at: float | None = None
        self._reachable_since = 0.0
        self._has_logged_loss = False

    def leases_are_reliable(self) -> bool:
        """Whether the database has been reachable long enough for all running processes to renew their leases."""
        now = trio.current_time()
        return (
            self._renewed_at is not None
            and now - self._renewed_at < LEASE_S / 2
            and now - self._reachable_since >= LEASE_S
        )

    def has_claimed(self, singleton: str) -> bool:
        """Whether this process does a singleton's work: it has claimed the name, and its lease is still valid."""
        return singleton in self._claimed and self._has_lease()

    def beat_soon(self) -> None:
        """Renew the lease now, because this process or another member has changed."""
        self._beat_due.set()

    async def wait_due(self) -> None:
        """Wait until the next renewal is due."""
        with trio.move_on_after(BEAT_S):
            await self._beat_due.wait()
        self._beat_due = trio.Event()

    def begin_beat(self, providers: Collection[str]) -> frozenset[str]:
        """Return the singletons to claim from now on; the work of others ends before their names are released."""
        self._begun_at = trio.current_time()
        wanted = self.wanted(frozenset(providers))
        self._claimed &= wanted
        return wanted

    def end_beat(self, found: Beat, written: Membership) -> None:
        """Record a durable renewal, and what it found."""
        now = trio.current_time()
        if self._renewed_at is not None and not self._has_lease():
            # No warning after the one at the time; a process that was frozen could not log that.
            write = log.info if self._has_logged_loss else log.warning
            write("lease was lost", for_s=round(now - self._renewed_at - LEASE_S, 1))
        self._has_logged_loss = False
        if self._renewed_at is None or now - self._renewed_at >= LEASE_S / 2:
            self._reachable_since = now
        self._renewed_at = self._begun_at
        self._claimed = found.claimed
        self.on_members(found.members, written)

    def miss_beat(self) -> None:
        """Log once that the lease has lapsed, because the database could not be reached."""
        if self._renewed_at is not None and not self._has_lease() and not self._has_logged_loss:
            self._has_logged_loss = True
            log.warning("lease is lost: other processes may take over this one's work")

    def _has_lease(self) -> bool:
        return self._renewed_at is not None and trio.current_time() - self._renewed_at < LEASE_S


class Heartbeat:
    """Renews the lease every few seconds. ``providers`` returns the providers that this process can call."""

    def __init__(self, *, database: Database, presence: Presence, providers: Callable[[], Collection[str]]) -> None:
        self._database = database
        self._presence = presence
        self._providers = providers
        self._is_stopping = False

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Renew the lease until stopped, then end it. Started once service time has been measured."""
        await self._beat()
        while not (self._presence.clock.is_measured or self._is_stopping):
            await self._presence.wait_due()
            await self._beat()
        task_status.started()
        while not self._is_stopping:
            await self._presence.wait_due()
            if not self._is_stopping:
                await self._beat()
        await self._end_lease()

    async def stop(self) -> None:
        """End the lease and return from :meth:`run`."""
        self._is_stopping = True
        self._presence.beat_soon()

    async def _beat(self) -> None:
        presence, providers = self._presence, sorted(self._providers())
        written = presence.membership
        renew = partial(
            beat,
            process=presence.process,
            clock=presence.clock,
            providers=providers,
            membership=written,
            wanted=presence.begin_beat(providers),
        )
        try:
            with one_pass("renewal of the lease"):
                found = await self._database.renew(renew)
        except DatabaseAway as away:
            log.debug("heartbeat failed", reason=str(away))
            presence.miss_beat()
        else:
            presence.end_beat(found, written)

    async def _end_lease(self) -> None:
        """End the lease, so that other processes need not wait until it lapses."""
        process = self._presence.process
        with trio.move_on_after(END_LEASE_TIMEOUT_S):
            try:
                await self._database.renew(partial(end_lease, process=process))
            except DatabaseAway as away:
                log.info("lease not ended", reason=str(away))
