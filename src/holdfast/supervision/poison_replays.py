"""Replays of poison messages: an operator sends one again once the cause of its crash is gone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec
import trio

from holdfast.actors.runtime.faults import AskFault, Crashed, OutcomeUnknown
from holdfast.actors.runtime.messages import Command, Replayed
from holdfast.actors.runtime.refs import Directory
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import Now
from holdfast.persistence.operators.poison import (
    CannotDecrypt,
    RowCipher,
    claim_replay,
    discard_poison,
    finish_replay,
    poison_by_id,
)
from holdfast.persistence.records.operator_tables import PoisonRecord, PoisonState
from holdfast.persistence.server.database import Database
from holdfast.telemetry.reports.causes import describe

CLAIM_MARGIN_S: Final = 5.0
"""How much longer a claim lasts than the ask it guards."""
FINISH_S: Final = 2.0
RESULT_CHARS_MAX: Final = 200


class PoisonReplays:
    """Replays at most one at a time of each message. ``decode`` returns the command of a group, type and body."""

    def __init__(
        self,
        database: Database,
        directories: Mapping[str, Directory],
        *,
        decode: Callable[[str, str, bytes], Command[object]],
        cipher: RowCipher,
        now: Now,
        idempotency_ttl_s: float,
    ) -> None:
        self._database = database
        self._directories = directories
        self._decode = decode
        self._cipher = cipher
        self._now = now
        self._idempotency_ttl = timedelta(seconds=idempotency_ttl_s)

    async def replay(
        self, poison_id: str, *, deadline_s: float, unless_since: datetime | None = None
    ) -> PoisonRecord | Refusal:
        """Ask the message's actor once more, and return the row with the result.

        One that crashes again is kept. Refuses with ``poison_not_found``, ``poison_not_replayable`` (no body, one
        that cannot be read, or an Idempotency-Key that has expired), ``poison_not_open`` (replayed, discarded,
        claimed, or kept after a replay ``unless_since`` a time). Raises the faults of an ask that was not accepted,
        and ``DatabaseAway``.
        """
        found = await self._read(poison_id)
        if isinstance(found, Refusal):
            return found
        command = self._command_of(found)
        if command is None:
            return Refusal(
                code="poison_not_replayable", message="The message's content is not stored, or cannot be read."
            )
        now = self._now()
        until = now + timedelta(seconds=deadline_s + CLAIM_MARGIN_S)
        if getattr(command, "idempotency", None) is not None and until >= found.first_at + self._idempotency_ttl:
            return KEY_EXPIRED
        if not await self._database.work(
            claim_replay,
            poison_id,
            now=now,
            until=until,
            repeatable=command.is_repeatable,
            unless_since=unless_since,
        ):
            return NOT_OPEN
        ref = self._directories[found.group_name].ref(found.key)
        await self._ask(poison_id, ref.ask(command, deadline_s=deadline_s))
        return await self._read(poison_id)

    async def discard(self, poison_id: str) -> PoisonRecord | Refusal:
        """Give a message up. Refuses with ``poison_not_found`` or ``poison_not_open``. Raises ``DatabaseAway``."""
        found = await self._read(poison_id)
        if isinstance(found, Refusal):
            return found
        if not await self._database.work(discard_poison, poison_id, self._now()):
            return NOT_OPEN
        return await self._read(poison_id)

    async def _ask(self, poison_id: str, ask: Awaitable[object]) -> None:
        try:
            reply = await ask
        except Crashed as crash:
            cause = describe(crash.__cause__ or crash)
            await self._finish(poison_id, "kept", f"it crashed again: {cause.text}")
        except OutcomeUnknown as unknown:
            await self._finish(poison_id, "unknown", f"no result: {unknown}")
        except AskFault as fault:
            await self._finish(poison_id, "kept", f"not accepted: {fault}")
            raise
        except BaseException:
            with trio.move_on_after(FINISH_S, shield=True):
                await self._finish(poison_id, "unknown", "no result: the operator's request ended first")
            raise
        else:
            await self._finish(poison_id, "replayed", _result_of(reply))

    async def _finish(self, poison_id: str, state: PoisonState, result: str) -> None:
        await self._database.work(finish_replay, poison_id, state, result[:RESULT_CHARS_MAX])

    async def _read(self, poison_id: str) -> PoisonRecord | Refusal:
        found = await self._database.read(poison_by_id, poison_id)
        return NOT_FOUND if found is None else found

    def _command_of(self, found: PoisonRecord) -> Command[object] | None:
        if found.body is None:
            return None
        try:
            body = self._cipher.decrypt(found.body, found.poison_id)
            return self._decode(found.group_name, found.message_type, body)
        except (CannotDecrypt, msgspec.DecodeError, LookupError, TypeError, ValueError):
            return None


NOT_FOUND: Final = Refusal(code="poison_not_found", message="There is no such poison message.")
KEY_EXPIRED: Final = Refusal(
    code="poison_not_replayable",
    message="The message's Idempotency-Key has expired: a replay could do again what its sender has repeated.",
)
NOT_OPEN: Final = Refusal(
    code="poison_not_open", message="The message was replayed or discarded, or a replay of it is in progress."
)


def _result_of(reply: object) -> str:
    value = reply.reply if isinstance(reply, Replayed) else reply
    return f"refused: {value.code}" if isinstance(value, Refusal) else f"done: {type(value).__name__}"
