"""The hosting worker: downloads a provider's outputs, validates and stores them, and reports to the task.

Assets are stored by content, so storing the same bytes again after a crash changes nothing. A content is claimed
before it is stored, so that no sweep removes it before its asset row is written. The task decides what a partial or
failed round means.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
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
from holdfast.telemetry.traces import span, traceparent, within_trace

log = structlog.get_logger(__name__)

ROUNDS_MAX = 8
"""How many rounds run at once for one provider, so that a slow provider delays only its own tasks."""
TURN_TIMEOUT_S = 60
"""How long a round waits for its turn, before the deadline that its task has set for it."""


@dataclass(slots=True, eq=False)
class _Round:
    """One round that was requested, in the trace of its request; at ``put_off_at`` it waits no longer."""

    host: Host
    put_off_at: float
    trace: str | None
    is_replaced: bool = False
    scope: trio.CancelScope | None = None
    """The scope that it runs in."""

    @property
    def number(self) -> tuple[int, int]:
        """The attempt and the number of the round in it."""
        return self.host.effect.attempt, self.host.effect.round

    def replace(self) -> None:
        """Cancel it for a later round."""
        self.is_replaced = True
        if self.scope is not None:
            self.scope.cancel()


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
        # By task, those that wait among them.
        self._rounds: dict[str, _Round] = {}
        # By provider: how many rounds run, and which wait for their turn.
        self._running = Counter[str]()
        self._waiting = defaultdict[str, deque[_Round]](deque)
        self._has_waiting = trio.Event()

    def background_loops(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """Return the loop that puts off rounds."""
        return (self._put_off_late,)

    def on_receive(self, message: object) -> None:
        """Start a hosting round unless it is already requested; cancel an earlier round of the same task."""
        assert isinstance(message, Host)
        requested = _Round(message, trio.current_time() + TURN_TIMEOUT_S, traceparent.get())
        earlier = self._rounds.get(message.effect.request_id)
        if earlier is not None:
            if requested.number <= earlier.number:
                return
            # Its results would be ignored: the task waits for the later round.
            earlier.replace()
        self._rounds[message.effect.request_id] = requested
        self._waiting[message.provider].append(requested)
        if self._running[message.provider] < ROUNDS_MAX:
            self._running[message.provider] += 1
            self.nursery.start_soon(self._run, message.provider)
        else:
            self._has_waiting.set()

    async def _run(self, provider: str) -> None:
        """Run the rounds that wait for their turn. A task and a scope for each would cost more than for many."""
        waiting = self._waiting[provider]
        try:
            while waiting:
                with trio.CancelScope() as scope:
                    is_replaced = False
                    while waiting and not is_replaced:
                        requested = waiting.popleft()
                        requested.scope = scope
                        await self._round(requested)
                        # The scope is cancelled then, even if the round has ended all the same.
                        is_replaced = requested.is_replaced
        finally:
            self._running[provider] -= 1

    async def _round(self, requested: _Round) -> None:
        if requested.is_replaced:
            return
        host, effect = requested.host, requested.host.effect
        traceparent.set(requested.trace)
        bind_contextvars(task_id=effect.request_id, account_id=host.account_id, provider=host.provider)
        try:
            with span("store outputs"):
                self._report(requested, [await self._store_output(output, host) for output in effect.outputs])
        except Exception:
            # The task's deadline for this round starts it again.
            log.exception("hosting round failed")
        finally:
            self._forget(requested)

    async def _put_off_late(self) -> None:
        """Let tasks wait longer whose rounds have had no turn for ``TURN_TIMEOUT_S``."""
        while True:
            await self._has_waiting.wait()
            self._has_waiting = trio.Event()
            while any(self._waiting.values()):
                await trio.sleep_until(min(rounds[0].put_off_at for rounds in self._waiting.values() if rounds))
                for rounds in self._waiting.values():
                    while rounds and rounds[0].put_off_at <= trio.current_time():
                        self._put_off(rounds.popleft())

    def _put_off(self, late: _Round) -> None:
        if not late.is_replaced:
            reason = "other results are being stored"
            with within_trace(late.trace):
                self._report(late, [_not_stored(output, reason) for output in late.host.effect.outputs])
            self._forget(late)

    def _report(self, ended: _Round, results: Iterable[OutputItem | HostingFailure]) -> None:
        effect = ended.host.effect
        self._tasks.ref(effect.request_id).tell(RecordHosting(effect.attempt, effect.round, tuple(results)))

    def _forget(self, ended: _Round) -> None:
        # A later round may have replaced it, and ended before it.
        if self._rounds.get(ended.host.effect.request_id) is ended:
            del self._rounds[ended.host.effect.request_id]

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
