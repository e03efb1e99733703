"""The hosting worker: downloads a provider's outputs, validates and stores them, and reports to the task.

Assets are stored by content, so storing the same bytes again after a crash changes nothing. A content is claimed
before it is stored, so that no sweep removes it before its asset row is written. The task decides what a partial or
failed round means.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import structlog
import trio
from structlog.contextvars import bind_contextvars

from holdfast.actors.runtime.refs import Directory, WorkerRef
from holdfast.actors.task.messages import Host, RecordHosting
from holdfast.actors.workers.worker import Worker
from holdfast.ledger.tasks.provider_update import Output
from holdfast.ledger.tasks.task import OutputItem
from holdfast.ledger.tasks.transitions import HostingFailure
from holdfast.ledger.values import Now, new_id_at, place_carried_by
from holdfast.persistence.claims.contents import RESULT_CLAIM_S, Content, ContentClaims
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.providers.outbound.downloads import (
    Downloaded,
    DownloadRefused,
    ExpectedOutput,
    accept_inline,
    download,
)
from holdfast.providers.outbound.guarded import GuardedClient, Origin
from holdfast.providers.storage.base import AssetStore
from holdfast.providers.storage.sniffing import EXTENSIONS, MEDIA_TYPES
from holdfast.telemetry.reports.conditions import TakeOutcome
from holdfast.telemetry.traces import span

log = structlog.get_logger(__name__)

ROUNDS_MAX = 8
"""How many rounds run at once for one provider, so that a slow provider delays only its own tasks."""
TURN_TIMEOUT_S = 60
"""How long a round waits for its turn, before the deadline that its task has set for it."""


class HostingWorker(Worker):
    """Stores the outputs of one task in order, and of several tasks concurrently.

    ``origins_of`` returns the private addresses from which a provider's outputs may be downloaded. ``take_outcome``
    takes the outcomes of storing.
    """

    kind = "hosting"

    def __init__(
        self,
        ref: WorkerRef,
        *,
        downloads: GuardedClient,
        origins_of: Callable[[str], frozenset[Origin]],
        store: AssetStore,
        claims: ContentClaims,
        incoming_dir: Path,
        tasks: Directory,
        now: Now,
        take_outcome: TakeOutcome,
    ) -> None:
        super().__init__(ref)
        self._downloads = downloads
        self._origins_of = origins_of
        self._store = store
        self._claims = claims
        self._incoming_dir = incoming_dir
        self._tasks = tasks
        self._now = now
        self._take_outcome = take_outcome
        self._rounds = defaultdict[str, trio.CapacityLimiter](partial(trio.CapacityLimiter, ROUNDS_MAX))
        self._running: dict[str, tuple[int, int, trio.CancelScope]] = {}

    def on_receive(self, message: object) -> None:
        """Start a hosting round unless it is already running; cancel an earlier round of the same task."""
        assert isinstance(message, Host)
        request_id, requested = message.effect.request_id, (message.effect.attempt, message.effect.round)
        if request_id in self._running:
            *running, scope = self._running[request_id]
            if requested <= tuple(running):
                return
            # Its results would be ignored: the task waits for the later round.
            scope.cancel()
        scope = trio.CancelScope()
        self._running[request_id] = (*requested, scope)
        self.nursery.start_soon(self._round, message, scope)

    async def _round(self, host: Host, scope: trio.CancelScope) -> None:
        effect = host.effect
        bind_contextvars(task_id=effect.request_id, account_id=host.account_id, provider=host.provider)
        try:
            with scope, span("store outputs"):
                results = await self._results(host)
                self._tasks.ref(effect.request_id).tell(RecordHosting(effect.attempt, effect.round, tuple(results)))
        except Exception:
            # The task's deadline for this round starts it again.
            log.exception("hosting round failed")
        finally:
            # A later round may have replaced this one, and ended before it.
            running = self._running.get(effect.request_id)
            if running is not None and running[2] is scope:
                del self._running[effect.request_id]

    async def _results(self, host: Host) -> list[OutputItem | HostingFailure]:
        """Store the outputs once there is a turn; after ``TURN_TIMEOUT_S`` without one the task waits longer."""
        outputs, turns = host.effect.outputs, self._rounds[host.provider]
        try:
            turns.acquire_nowait()
        except trio.WouldBlock:
            with trio.move_on_after(TURN_TIMEOUT_S) as waiting:
                await turns.acquire()
            if waiting.cancelled_caught:
                return [_not_stored(output, "other results are being stored") for output in outputs]
        try:
            return [await self._store_output(output, host) for output in outputs]
        finally:
            turns.release()

    async def _store_output(self, output: Output, host: Host) -> OutputItem | HostingFailure:
        hosting = host.hosting
        expected = ExpectedOutput(
            bytes_max=hosting.bytes_max,
            content_types=frozenset(hosting.content_types) or MEDIA_TYPES,
            content_type=output.content_type,
            sha256=output.sha256,
            bytes=output.bytes,
        )
        store = partial(self._store_checked, output, host)
        try:
            if output.data is not None:
                stored = await accept_inline(output.data, expected, store)
            elif output.url is not None:
                stored = await download(
                    self._downloads,
                    output.url,
                    self._incoming_dir,
                    expected,
                    store,
                    total_timeout_s=host.output_timeout_s,
                    only=self._origins_of(host.provider),
                    requester=host.provider,
                )
            else:
                return HostingFailure(output.index, "the provider gave neither a URL nor data", final=True)
        except OSError as fault:
            # The details of a storage fault are for operators only.
            self._take_outcome(fault.strerror or type(fault).__name__)
            return _not_stored(output, "cannot be written at the moment")
        if isinstance(stored, DownloadRefused):
            return HostingFailure(output.index, f"{stored.code}: {stored.message}", stored.permanent)
        if isinstance(stored, OutputItem):
            self._take_outcome(None)
        return stored

    def _store_checked(self, output: Output, host: Host, found: Downloaded) -> OutputItem | HostingFailure:
        """Claim and store a content; blocks. Raises ``OSError``."""
        claimed_at = self._now()
        until = claimed_at + timedelta(seconds=RESULT_CLAIM_S)
        try:
            if not self._claims.claim(Content(found.sha256, found.content_type), until):
                return _not_stored(output, "the same content is being removed")
            self._store.put(found.content, found.sha256, EXTENSIONS[found.content_type])
        except DatabaseAway:
            return _not_stored(output, "not ready")
        return OutputItem(
            index=output.index,
            asset_id=new_id_at("asset", place_carried_by(host.effect.request_id)),
            sha256=found.sha256,
            bytes=found.bytes,
            content_type=found.content_type,
            expires_at=claimed_at + timedelta(seconds=host.hosting.retention_s),
            width=output.width if found.width is None else found.width,
            height=output.height if found.height is None else found.height,
            duration_s=output.duration_s if found.duration_s is None else found.duration_s,
            size_claimed=found.width is None,
            duration_claimed=found.duration_s is None,
        )


def _not_stored(output: Output, reason: str) -> HostingFailure:
    return HostingFailure(output.index, f"storage: {reason}", final=False, by_store=True)
