"""Send events to the service's webhook endpoint: signed, and retried.

The first attempts of one change's events are sent in sequence; retries may arrive in any order. The receiver must
accept any order, as with the real provider.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
import structlog
import trio

from holdfast.ledger.clock import Now, utc_now
from holdfast.standins.card.objects import Event
from holdfast.standins.card.state import Store
from holdfast.standins.signed_sender import RETRY_DELAYS_S, SignedSender

_log = structlog.get_logger(__name__)


class WebhookSender:
    """Delivers events. ``webhook_url`` is evaluated for each attempt; empty means that there is no receiver yet."""

    def __init__(
        self,
        store: Store,
        secret: str,
        webhook_url: Callable[[], str],
        *,
        header: str,
        now: Now = utc_now,
        retry_delays_s: Sequence[float] = RETRY_DELAYS_S,
    ) -> None:
        self._store = store
        self._url = webhook_url
        self._retry_delays_s = tuple(retry_delays_s)
        self._sender = SignedSender("card", secret, header=header, now=now)
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Deliver until cancelled, starting with events left undelivered by the previous run."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                task_status.started()
                self.send(
                    self._of(key for key, each in self._store.state.outbound.items() if each.state == "waiting")
                )
                try:
                    await trio.sleep_forever()
                finally:
                    # Before the nursery closes: events sent from now on wait for the next start.
                    self._nursery = None
        finally:
            with trio.CancelScope(shield=True):
                await self._sender.close()

    def send(self, events: Iterable[Event]) -> None:
        """Deliver the events of one change."""
        self.start(list(events))

    def resend(self, event: Event) -> None:
        """Send one event again, independent of its delivery status."""
        self.start([event])

    def start(self, batch: list[Event]) -> None:
        """Deliver events, in sequence; without effect unless the sender runs."""
        for event in batch:
            waiting = self._store.state.outbound.get(event.id)
            if waiting is not None:
                waiting.state, waiting.tries = "waiting", 0
        if batch and self._nursery is not None:
            self._nursery.start_soon(self.deliver, self._nursery, batch)

    async def deliver(self, nursery: trio.Nursery, batch: list[Event]) -> None:
        """Attempt each event once, and retry in ``nursery`` those that were not accepted."""
        for event in batch:
            if not await self.attempt(event):
                nursery.start_soon(self._retry, event)

    async def attempt(self, event: Event) -> bool:
        """Send an event once; returns whether the receiver accepted it."""
        waiting = self._store.state.outbound.get(event.id)
        url = self._url()
        if waiting is not None:
            waiting.tries += 1
        delivered = bool(url) and await self._sender.send(url, msgspec.json.encode(event))
        if delivered and waiting is not None:
            waiting.state, event.pending_webhooks = "heard", 0
        return delivered

    def _of(self, ids: Iterable[str]) -> list[Event]:
        events = self._store.state.events
        return [events[each] for each in ids if each in events]

    async def _retry(self, event: Event) -> None:
        for delay_s in self._retry_delays_s[1:]:
            await trio.sleep(delay_s)
            waiting = self._store.state.outbound.get(event.id)
            if waiting is None or waiting.state != "waiting" or await self.attempt(event):
                return
        _log.warning("card_webhook_given_up", event_id=event.id, event_type=event.type)
        if (left := self._store.state.outbound.get(event.id)) is not None:
            left.state = "given_up"
