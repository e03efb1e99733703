"""Send events to the service's webhook endpoint: signed, and retried.

The first attempts of one change's events are sent in sequence; retries may arrive in any order. The receiver must
accept any order, as with the real provider.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import structlog
import trio

from holdfast.emulators.card.objects import Event
from holdfast.emulators.card.state import Store
from holdfast.emulators.signed_sender import RETRY_DELAYS_S, SignedSender
from holdfast.ledger.clock import Now, utc_now

SIGNATURE_HEADER = "Cardprovider-Signature"

_log = structlog.get_logger(__name__)


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
