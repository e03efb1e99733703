"""Apply changes to the emulator's state: run without awaiting, stored on disk, then answered and sent as events.

A change that was started is completed even if the client disconnects, as at a real provider.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import trio

from holdfast.emulators.card import intents
from holdfast.emulators.card.objects import ApiError
from holdfast.emulators.card.state import Store, StoredResponse
from holdfast.emulators.card.state_file import StateFile
from holdfast.emulators.card.webhooks import WebhookSender

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reply:
    """A response: a status and a JSON body."""

    status: int
    body: bytes


class Changes:
    """The one way to change the store. ``settle_delay_s`` is the delay between a payment and its settlement."""

    def __init__(
        self, store: Store, state_file: StateFile, webhook_sender: WebhookSender, *, settle_delay_s: float
    ) -> None:
        self.store = store
        self.webhook_sender = webhook_sender
        self._state_file = state_file
        self._settle_delay_s = settle_delay_s
        self._in_flight: set[str] = set()
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Deliver events and settle payments until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = self.webhook_sender.nursery = nursery
                # Those that the previous run left undelivered.
                self.webhook_sender.send(self.webhook_sender.in_state("waiting"))
                for charge in list(self.store.state.charges.values()):
                    if charge.paid and charge.balance_transaction is None:
                        nursery.start_soon(self._settle_later, charge.id)
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    # Before the nursery closes: what happens from now on waits for the next start.
                    self._nursery = self.webhook_sender.nursery = None
        finally:
            with trio.CancelScope(shield=True):
                await self.webhook_sender.close()
                await self._state_file.write()

    async def apply(self, work: Callable[[], T]) -> T:
        """Run ``work`` on the store, write the state, send its events; raises what ``work`` raises."""
        try:
            return work()
        finally:
            events = self.store.take_new_events()
            with trio.CancelScope(shield=True):
                await self._state_file.write()
            self.webhook_sender.send(events)
            if self._nursery is not None:
                for event in events:
                    if event.type == "charge.succeeded":
                        self._nursery.start_soon(self._settle_later, str(event.data["object"].get("id")))

    async def once(
        self,
        key: str | None,
        call: str,
        form: Mapping[str, object],
        work: Callable[[], object],
    ) -> Reply:
        """Run ``work`` once for an idempotency key and replay its response. Raises :class:`ApiError`."""
        if key is None:
            return await self.run_once(None, "", work)
        request = json.dumps([call, form], sort_keys=True).encode()
        fingerprint = hashlib.sha256(request).hexdigest()
        stored = self.store.state.answers.get(key)
        if stored is not None and stored.fingerprint != fingerprint:
            raise ApiError(
                400,
                "Keys for idempotent requests can only be used with the same parameters they were first used with.",
                kind="idempotency_error",
            )
        if key in self._in_flight:
            raise ApiError(
                409,
                "There is currently another in-progress request using this Idempotency-Key.",
                kind="idempotency_error",
                code="idempotency_key_in_use",
            )
        if stored is not None:
            return Reply(stored.status, bytes(stored.body))
        self._in_flight.add(key)
        try:
            return await self.run_once(key, fingerprint, work)
        finally:
            self._in_flight.discard(key)

    async def run_once(self, key: str | None, fingerprint: str, work: Callable[[], object]) -> Reply:
        """Run ``work`` and store its response under the key, if there is one."""

        def work_and_store() -> Reply:
            try:
                reply, is_stored = Reply(200, msgspec.json.encode(work())), True
            except ApiError as fault:
                # An invalid request may be repeated with the parameters that it should have had.
                reply, is_stored = Reply(fault.status, msgspec.json.encode(fault.body)), fault.status in (402, 500)
            if key is not None and is_stored:
                self.store.state.answers[key] = StoredResponse(
                    fingerprint=fingerprint, status=reply.status, body=msgspec.Raw(reply.body)
                )
            return reply

        return await self.apply(work_and_store)

    async def _settle_later(self, charge_id: str) -> None:
        await trio.sleep(self._settle_delay_s)
        await self.apply(lambda: intents.settle(self.store, charge_id))
