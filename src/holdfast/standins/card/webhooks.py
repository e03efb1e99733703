"""Send events to the service's webhook endpoint: signed, retried, and with the faults that were set.

The first attempts of one change's events are sent in sequence; retries, delayed and duplicated ones may arrive in
any order. The receiver must accept any order, as with the real provider.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec
import structlog
import trio

from holdfast.ledger.clock import Now, utc_now
from holdfast.standins.card.objects import Event
from holdfast.standins.card.state import Store
from holdfast.standins.posting import RETRY_DELAYS_S, SignedPost

ReleaseOrder = Literal["as_is", "reversed", "shuffled"]

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
        self._post = SignedPost("card", secret, header=header, now=now)
        self._wrongly_signed_post = SignedPost("card", f"not {secret}", header=header, now=now)
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
                await self._post.close()
                await self._wrongly_signed_post.close()

    def send(self, events: Iterable[Event]) -> None:
        """Deliver the events of one change, subject to the current faults."""
        faults = self._store.state.webhooks
        outbound = self._store.state.outbound
        batch: list[Event] = []
        for event in events:
            affected = not faults.types or event.type in faults.types
            if affected and (faults.drop or faults.hold) and event.id in outbound:
                outbound[event.id].state = "dropped" if faults.drop else "held"
            else:
                batch.append(event)
        if faults.reorder:
            batch.reverse()
        self._start(batch)

    def release(self, order: ReleaseOrder = "as_is", seed: int = 0) -> int:
        """Send all held events; returns how many."""
        held = self._of(key for key, each in self._store.state.outbound.items() if each.state == "held")
        if order == "reversed":
            held.reverse()
        elif order == "shuffled":
            random.Random(seed).shuffle(held)  # noqa: S311 - a reproducible order, not a secret
        self._start(held)
        return len(held)

    def resend(self, event: Event) -> None:
        """Send one event again, whatever its delivery status."""
        self._start([event])

    def _of(self, ids: Iterable[str]) -> list[Event]:
        events = self._store.state.events
        return [events[each] for each in ids if each in events]

    def _start(self, batch: list[Event]) -> None:
        for event in batch:
            waiting = self._store.state.outbound.get(event.id)
            if waiting is not None:
                waiting.state, waiting.tries = "waiting", 0
        if batch and self._nursery is not None:
            self._nursery.start_soon(self._deliver, self._nursery, batch)

    async def _deliver(self, nursery: trio.Nursery, batch: list[Event]) -> None:
        faults = self._store.state.webhooks
        # Read once: later changes of the faults apply to later batches.
        delay_s, copies, post = (
            faults.delay_s,
            faults.duplicate,
            self._wrongly_signed_post if faults.wrong_signature else self._post,
        )
        types = frozenset(faults.types)
        for event in batch:
            affected = not types or event.type in types
            if affected:
                await trio.sleep(delay_s)
            for _ in range(copies if affected else 0):
                nursery.start_soon(self._attempt, event, post)
            if not await self._attempt(event, post):
                nursery.start_soon(self._retry, event, post)

    async def _attempt(self, event: Event, post: SignedPost) -> bool:
        waiting = self._store.state.outbound.get(event.id)
        url = self._url()
        if waiting is not None:
            waiting.tries += 1
        delivered = bool(url) and await post.send(url, msgspec.json.encode(event))
        if delivered and waiting is not None:
            waiting.state, event.pending_webhooks = "heard", 0
        return delivered

    async def _retry(self, event: Event, post: SignedPost) -> None:
        for delay_s in self._retry_delays_s[1:]:
            await trio.sleep(delay_s)
            waiting = self._store.state.outbound.get(event.id)
            if waiting is None or waiting.state != "waiting" or await self._attempt(event, post):
                return
        _log.warning("card_webhook_given_up", event_id=event.id, event_type=event.type)
        if (left := self._store.state.outbound.get(event.id)) is not None:
            left.state = "given_up"
