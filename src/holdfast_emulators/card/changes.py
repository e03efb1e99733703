"""Apply changes to the emulator's state: run without awaiting, stored on disk, then answered and sent as events.

A change that was started is completed even if the client disconnects, as at a real provider. The file is replaced
as a whole; it is not fsynced, because it has to survive the death of the process, not of the machine. The first
attempts to send one change's events are in sequence; retries may arrive in any order, as with the real provider.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import structlog
import trio

from holdfast.ledger.values import Now, utc_now
from holdfast_emulators.card import intents
from holdfast_emulators.card.state import ApiError, Event, State, Store, StoredResponse
from holdfast_emulators.serving import RETRY_DELAYS_S, SignedSender

FILE_NAME: Final = "card-emulator.json"

_log = structlog.get_logger(__name__)

SIGNATURE_HEADER = "Cardprovider-Signature"
T = TypeVar("T")


def load_state(folder: Path) -> State:
    """Load the state of the previous run; blocking. An unreadable file is renamed and the state starts empty."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / FILE_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        return State()
    except (msgspec.MsgspecError, UnicodeDecodeError) as fault:
        _log.warning("the card emulator's state is unreadable", fault=type(fault).__name__)
        path.replace(path.with_suffix(".unreadable"))
        return State()


class StateFile:
    """Writes the state. ``write`` returns once every change made before the call is in the file."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._path = folder / FILE_NAME
        self._writing = trio.Lock()
        self._thread = trio.CapacityLimiter(1)
        self._wanted = 0
        self._written = 0

    async def write(self) -> None:
        """Write all changes so far. No change is answered or sent before. Raises ``OSError``."""
        self._wanted += 1
        mine = self._wanted
        async with self._writing:
            if self._written >= mine:
                return
            covered = self._wanted
            self._store.prune()
            content = msgspec.json.encode(self._store.state)
            # Not abandoned when cancelled: a leftover writer would race the next one for the draft.
            await trio.to_thread.run_sync(_replace, self._path, content, limiter=self._thread)
            self._written = covered


def _replace(path: Path, content: bytes) -> None:
    draft = path.with_suffix(".draft")
    # The state contains client secrets.
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    draft.replace(path)


class WebhookSender:
    """Delivers events, in ``nursery`` while that is set.

    ``webhook_url`` is evaluated for each attempt; empty means that there is no receiver yet.
    """

    def __init__(
        self,
        store: Store,
        secret: str,
        webhook_url: Callable[[], str],
        *,
        now: Now = utc_now,
        retry_delays_s: Sequence[float] = RETRY_DELAYS_S,
    ) -> None:
        self._store = store
        self._url = webhook_url
        self._retry_delays_s = tuple(retry_delays_s)
        self._sender = SignedSender("card", secret, header=SIGNATURE_HEADER, now=now)
        self.nursery: trio.Nursery | None = None

    async def close(self) -> None:
        """Close connections."""
        await self._sender.close()

    def in_state(self, state: str) -> list[Event]:
        """Return the events whose delivery is in this state, oldest first."""
        found = self._store.state
        return [found.events[key] for key, delivery in found.outbound.items() if delivery.state == state]

    def send(self, events: list[Event]) -> None:
        """Deliver the events of one change."""
        self.start(events)

    def start(self, batch: list[Event]) -> None:
        """Deliver events, in sequence; without a nursery they wait."""
        for event in batch:
            delivery = self._store.state.outbound[event.id]
            delivery.state, delivery.tries = "waiting", 0
        if batch and self.nursery is not None:
            self.nursery.start_soon(self.deliver, self.nursery, batch)

    async def deliver(self, nursery: trio.Nursery, batch: list[Event]) -> None:
        """Attempt each event once, and retry in ``nursery`` those that were not accepted."""
        for event in batch:
            if not await self.attempt(event):
                nursery.start_soon(self._retry, event)

    async def attempt(self, event: Event) -> bool:
        """Send an event once; returns whether the receiver accepted it."""
        delivery = self._store.state.outbound[event.id]
        delivery.tries += 1
        url = self._url()
        if url and await self._sender.send(url, msgspec.json.encode(event)):
            delivery.state = "heard"
            return True
        return False

    async def _retry(self, event: Event) -> None:
        delivery = self._store.state.outbound[event.id]
        for delay_s in self._retry_delays_s[1:]:
            await trio.sleep(delay_s)
            if delivery.state != "waiting" or await self.attempt(event):
                return
        _log.warning("card webhook given up", event_id=event.id, event_type=event.type)
        delivery.state = "given_up"


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
