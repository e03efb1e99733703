"""Where changes are made: done in one go, kept on disk, and only then answered and sent as events.

What was begun is finished even if the one who asked has hung up: the account at a provider does not live in the
connection either.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec
import structlog
import trio

from holdfast.providers.card.emulator import intents, reversals
from holdfast.providers.card.emulator.books import Books, KeptAnswer, Outage
from holdfast.providers.card.emulator.errors import WireError
from holdfast.providers.card.emulator.postroom import Postroom
from holdfast.providers.card.emulator.shelf import Shelf

KEY_MAX_CHARS: Final = 255

_STATE_CODES: Final = ("_unexpected_state", "_already_refunded", "_disputed", "_not_refundable")

T = TypeVar("T")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """What is answered: a status, a JSON body, and whether an idempotency key gave it again."""

    status: int
    body: bytes
    replayed: bool = False


class Desk:
    """The one way to change the books. ``settle_delay_s`` is the wait between a payment and its booking."""

    def __init__(self, books: Books, shelf: Shelf, postroom: Postroom, *, settle_delay_s: float) -> None:
        self.books = books
        self.postroom = postroom
        self._shelf = shelf
        self._settle_delay_s = settle_delay_s
        self._in_flight: set[str] = set()
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Deliver events and settle payments until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.postroom.run)
                self._nursery = nursery
                for charge in list(self.books.state.charges.values()):
                    if charge.paid and charge.balance_transaction is None:
                        nursery.start_soon(self._settle_later, charge.id)
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    # Before the nursery closes: a change made late settles in the next life.
                    self._nursery = None
        finally:
            with trio.CancelScope(shield=True):
                await self._shelf.keep()

    async def change(self, work: Callable[[], T]) -> T:
        """Do ``work`` on the books, keep what came of it, send its events; raises what ``work`` raises."""
        trouble: WireError | None = None
        try:
            result = work()
        except WireError as fault:
            trouble = fault
        events = self.books.take_fresh()
        with trio.CancelScope(shield=True):
            await self._shelf.keep()
            self.postroom.send(events)
            if self._nursery is not None:
                for event in events:
                    if event.type == "charge.succeeded":
                        self._nursery.start_soon(self._settle_later, str(event.data["object"].get("id")))
        if trouble is not None:
            raise trouble
        return result

    async def once(
        self,
        key: str | None,
        call: str,
        form: Mapping[str, object],
        work: Callable[[], object],
        outage: Outage | None,
    ) -> Answer:
        """Do ``work`` once for an idempotency key and answer its repetitions alike. Raises :class:`WireError`."""
        if key is None:
            return await self._answer(None, "", work, outage)
        if not 1 <= len(key) <= KEY_MAX_CHARS:
            raise WireError(400, "Idempotency keys have 1 to 255 characters.", kind="idempotency_error")
        told = json.dumps([call, form], sort_keys=True).encode()
        fingerprint = hashlib.sha256(told).hexdigest()
        kept = self.books.state.answers.get(key)
        if kept is not None and kept.fingerprint != fingerprint:
            raise WireError(
                400,
                "Keys for idempotent requests can only be used with the same parameters they were first used with.",
                kind="idempotency_error",
            )
        if key in self._in_flight:
            raise WireError(
                409,
                "There is currently another in-progress request using this Idempotency-Key.",
                kind="idempotency_error",
                code="idempotency_key_in_use",
            )
        if kept is not None:
            return Answer(kept.status, bytes(kept.body), replayed=True)
        self._in_flight.add(key)
        try:
            return await self._answer(key, fingerprint, work, outage)
        finally:
            self._in_flight.discard(key)

    async def _answer(
        self, key: str | None, fingerprint: str, work: Callable[[], object], outage: Outage | None
    ) -> Answer:
        def work_and_note() -> Answer:
            try:
                if outage is not None and outage.mode == "error_kept":
                    raise WireError(500, "Something went wrong on our end.", kind="api_error")
                answer, keep = Answer(200, msgspec.json.encode(work())), True
            except WireError as fault:
                answer, keep = Answer(fault.status, msgspec.json.encode(fault.body)), _lasting(fault)
            if key is not None and keep:
                self.books.state.answers[key] = KeptAnswer(
                    fingerprint=fingerprint,
                    status=answer.status,
                    body=msgspec.Raw(answer.body),
                    created=self.books.now_s(),
                )
            return answer

        answer = await self.change(work_and_note)
        if outage is not None and outage.mode == "slow":
            await trio.sleep(outage.delay_s)
        return answer

    async def _settle_later(self, charge_id: str) -> None:
        await trio.sleep(self._settle_delay_s)
        await self.change(lambda: intents.settle(self.books, charge_id))
        charge = self.books.state.charges.get(charge_id)
        method = intents.METHODS.get(charge.payment_method or "") if charge is not None else None
        if charge is None or method is None or method.after is None:
            return
        inquiry = method.after == "inquiry"
        try:
            await self.change(lambda: reversals.open_dispute(self.books, charge, inquiry=inquiry))
        except WireError as fault:
            _log.info("card_emulator_no_dispute", charge=charge_id, reason=str(fault))

    def take_outage(self, call: str) -> Outage | None:
        """The fault to show at this call, counted as shown."""
        outages = self.books.state.outages
        for outage in outages:
            if outage.call in ("*", call):
                if outage.times is not None:
                    outage.times -= 1
                    if outage.times <= 0:
                        outages.remove(outage)
                return outage
        return None


def _lasting(fault: WireError) -> bool:
    """Whether a key remembers this refusal: only once the work itself had begun."""
    told = fault.body["error"]
    code = str(told.get("code")) if isinstance(told, dict) else ""
    return fault.status in (402, 500) or code.endswith(_STATE_CODES)
