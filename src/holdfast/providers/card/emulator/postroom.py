"""Sending events to the service's webhook: signed, tried again until heard, and astray in every way one asks for.

Events of one change are sent one after the other, their first tries at least; whatever is tried again, delayed or
doubled overtakes and is overtaken. The receiver must live with any order, as with the real provider.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec
import structlog
import trio

from holdfast.ledger.clock import Now, utc_now
from holdfast.providers.card.emulator.books import Books
from holdfast.providers.card.emulator.objects import Event
from holdfast.providers.posting import RETRY_DELAYS_S, SignedPost

ReleaseOrder = Literal["as_is", "reversed", "shuffled"]

_log = structlog.get_logger(__name__)


class Postroom:
    """Delivers events. ``webhook_url`` is asked anew for each sending; empty means that nobody listens yet."""

    def __init__(
        self,
        books: Books,
        secret: str,
        webhook_url: Callable[[], str],
        *,
        header: str,
        now: Now = utc_now,
        retry_delays_s: Sequence[float] = RETRY_DELAYS_S,
    ) -> None:
        self._books = books
        self._url = webhook_url
        self._retry_delays_s = tuple(retry_delays_s)
        self._true = SignedPost("card", secret, header=header, now=now)
        self._false = SignedPost("card", f"not {secret}", header=header, now=now)
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Deliver until cancelled, first what an earlier life left undelivered."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                task_status.started()
                self.send(
                    self._of(key for key, each in self._books.state.outbound.items() if each.state == "waiting")
                )
                try:
                    await trio.sleep_forever()
                finally:
                    # Before the nursery closes: what is sent late finds room or none, and waits for the next life.
                    self._nursery = None
        finally:
            with trio.CancelScope(shield=True):
                await self._true.close()
                await self._false.close()

    def send(self, events: Iterable[Event]) -> None:
        """Take the events of one change for delivery, as the faults of the moment will have it."""
        faults = self._books.state.webhooks
        outbound = self._books.state.outbound
        batch: list[Event] = []
        for event in events:
            meant = not faults.types or event.type in faults.types
            if meant and (faults.drop or faults.hold) and event.id in outbound:
                outbound[event.id].state = "dropped" if faults.drop else "held"
            else:
                batch.append(event)
        if faults.reorder:
            batch.reverse()
        self._start(batch)

    def release(self, order: ReleaseOrder = "as_is", seed: int = 0) -> int:
        """Send everything that was held back; returns how many."""
        held = self._of(key for key, each in self._books.state.outbound.items() if each.state == "held")
        if order == "reversed":
            held.reverse()
        elif order == "shuffled":
            random.Random(seed).shuffle(held)  # noqa: S311 - an order to be repeated, not a secret
        self._start(held)
        return len(held)

    def resend(self, event: Event) -> None:
        """Send one event again, whatever became of it before."""
        self._start([event])

    def _of(self, ids: Iterable[str]) -> list[Event]:
        events = self._books.state.events
        return [events[each] for each in ids if each in events]

    def _start(self, batch: list[Event]) -> None:
        for event in batch:
            waiting = self._books.state.outbound.get(event.id)
            if waiting is not None:
                waiting.state, waiting.tries = "waiting", 0
        if batch and self._nursery is not None:
            self._nursery.start_soon(self._deliver, self._nursery, batch)

    async def _deliver(self, nursery: trio.Nursery, batch: list[Event]) -> None:
        faults = self._books.state.webhooks
        # As they are now: what is changed while this batch waits is for later ones.
        delay_s, copies, post = (
            faults.delay_s,
            faults.duplicate,
            self._false if faults.wrong_signature else self._true,
        )
        types = frozenset(faults.types)
        for event in batch:
            meant = not types or event.type in types
            if meant:
                await trio.sleep(delay_s)
            for _ in range(copies if meant else 0):
                nursery.start_soon(self._try, event, post)
            if not await self._try(event, post):
                nursery.start_soon(self._try_again, event, post)

    async def _try(self, event: Event, post: SignedPost) -> bool:
        waiting = self._books.state.outbound.get(event.id)
        url = self._url()
        if waiting is not None:
            waiting.tries += 1
        heard = bool(url) and await post.send(url, msgspec.json.encode(event))
        if heard and waiting is not None:
            waiting.state, event.pending_webhooks = "heard", 0
        return heard

    async def _try_again(self, event: Event, post: SignedPost) -> None:
        for delay_s in self._retry_delays_s[1:]:
            await trio.sleep(delay_s)
            waiting = self._books.state.outbound.get(event.id)
            if waiting is None or waiting.state != "waiting" or await self._try(event, post):
                return
        _log.warning("card_webhook_given_up", event_id=event.id, event_type=event.type)
        if (left := self._books.state.outbound.get(event.id)) is not None:
            left.state = "given_up"
