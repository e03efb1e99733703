"""The poison writer: stores the messages that crashed their actor, so that an operator can replay them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

import msgspec
import structlog
import trio

from holdfast.actors.runtime.journaled import JournaledActor
from holdfast.actors.runtime.mailbox import Envelope
from holdfast.actors.workers.newest_queue import NewestQueue, wait_to_retry
from holdfast.actors.workers.passes import one_pass
from holdfast.ledger.values import new_id
from holdfast.persistence.operators.poison import RowCipher, keep_poison
from holdfast.persistence.records.operator_tables import PoisonRecord
from holdfast.persistence.server.database import Database
from holdfast.persistence.server.database_faults import DatabaseAway
from holdfast.telemetry import metrics
from holdfast.telemetry.reports.causes import Cause
from holdfast.telemetry.reports.report import Report
from holdfast.telemetry.reports.reporter import Reporter

log = structlog.get_logger(__name__)

MESSAGES_MAX = 200
"""How many messages wait, the newest."""
BODY_BYTES_MAX = 1024 * 1024
"""A larger body is not stored; such a message cannot be replayed."""


class PoisonedMessage(NamedTuple):
    """A message whose handling crashed its actor. ``version`` and ``state_digest`` are of the actor's state."""

    path: str
    group: str
    key: str
    envelope: Envelope
    at: datetime
    cause: Cause
    incarnation: int
    version: int | None
    state_digest: str | None


def message_crashed_on(
    path: str, group: str, key: str, actor: JournaledActor, cause: Cause, *, incarnation: int, at: datetime
) -> PoisonedMessage | None:
    """Describe the message that an actor crashed on; None if it crashed without one."""
    envelope = actor.crashed_on
    if envelope is None:
        return None
    version, state = actor.state()
    digest = None
    if state is not None:
        try:
            digest = hashlib.blake2b(msgspec.msgpack.encode(state), digest_size=8).hexdigest()
        except (TypeError, ValueError, OverflowError):
            log.debug("state has no digest", group=group, key=key)
    return PoisonedMessage(path, group, key, envelope, at, cause, incarnation, version, digest)


class PoisonWriter:
    """Stores what is in ``queue``.

    ``encode`` is called with the group and the message, and returns its body, or None if it must not be stored.
    ``mask`` is called with the group and the key, and returns the key that operators see.
    """

    def __init__(
        self,
        queue: NewestQueue[PoisonedMessage],
        *,
        database: Database,
        reporter: Reporter,
        cipher: RowCipher,
        encode: Callable[[str, object], bytes | None],
        mask: Callable[[str, str], str],
    ) -> None:
        self._queue = queue
        self._database = database
        self._reporter = reporter
        self._cipher = cipher
        self._encode = encode
        self._mask = mask

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Store messages until cancelled."""
        task_status.started()
        while True:
            await self._queue.wait()
            [message] = self._queue.first(1)
            try:
                with one_pass("storing of a poison message"):
                    await self._keep(message)
            except DatabaseAway:
                await wait_to_retry(self._database)
            else:
                self._queue.remove([message])

    async def _keep(self, message: PoisonedMessage) -> None:
        record = self.record(message)
        kept = await self._database.work(keep_poison, record)
        metrics.POISON_MESSAGES.labels(message.group).inc()
        self._reporter.report(
            Report(
                kind="poison",
                at=message.at,
                path=message.path,
                key=record.key,
                incarnation=message.incarnation,
                reason_type=record.reason_type,
                reason=f"{record.reason} (kept as {kept.poison_id})",
                location=record.location,
                last_message_type=record.message_type,
                count=kept.crashes,
                trace_id=record.trace_id,
            )
        )

    def record(self, message: PoisonedMessage) -> PoisonRecord:
        """Return the row of a message."""
        body = self._encode(message.group, message.envelope.message)
        poison_id = new_id("poi")
        # Of any body, also an overlong one: later crashes on an equal message are counted in the same row.
        digest = self._cipher.digest(body or b"")
        if body is not None and len(body) > BODY_BYTES_MAX:
            body = None
        return PoisonRecord(
            poison_id=poison_id,
            group_name=message.group,
            key=self._mask(message.group, message.key),
            message_type=type(message.envelope.message).__name__,
            body=None if body is None else self._cipher.encrypt(body, poison_id),
            body_mac=digest,
            state="kept",
            first_at=message.at,
            last_at=message.at,
            crashes=1,
            trace_id=message.envelope.trace_id,
            reason_type=message.cause.reason_type,
            reason=message.cause.reason,
            location=message.cause.location,
            incarnation=message.incarnation,
            version=message.version,
            state_digest=message.state_digest,
        )
