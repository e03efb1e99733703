"""How many deliveries run at once: slow ones have a limit of their own, so that they delay no others.

A delivery is slow if it goes to a silent receiver, and else once it has lasted :data:`SLOW_AFTER_S`; then another
may begin in its stead. Receivers are known by their account, and silent if its last delivery took that long and
ended without an answer. So those that hang are in the way of others for a second, and only once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NoReturn

import trio

SLOW_AFTER_S: Final = 1.0
QUICK_MAX: Final = 128
SLOW_MAX: Final = 128
"""With more slow deliveries than this, the one that has been slow for longest is ended as a failed attempt."""
TO_SILENT_MAX: Final = 96
"""Deliveries to silent receivers begin only up to here: the rest is for those that become slow."""
DELIVERIES_MAX: Final = QUICK_MAX + SLOW_MAX


@dataclass(slots=True, eq=False)
class RunningDelivery:
    """One delivery. ``scope`` is cancelled when it is ended for others; ``is_silent``: its receiver was, before."""

    account_id: str
    is_silent: bool
    began_at: float = field(default_factory=trio.current_time)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class DeliveryCapacity:
    """The deliveries of one process. ``on_free`` is called when a quick one may begin again after none could.

    ``learned`` has what became known of accounts since it was last stored: whether their receivers are silent.
    """

    def __init__(self, on_free: Callable[[], None]) -> None:
        self.learned: dict[str, bool] = {}
        self._on_free = on_free
        # Each in the order in which they began, or became slow.
        self._quick: dict[RunningDelivery, None] = {}
        self._slow: dict[RunningDelivery, None] = {}

    @property
    def quick(self) -> int:
        """How many deliveries may begin to receivers that are not silent."""
        return max(0, QUICK_MAX - len(self._quick))

    @property
    def to_silent(self) -> int:
        """How many deliveries may begin to silent receivers."""
        return max(0, TO_SILENT_MAX - len(self._slow))

    def begin(self, account_id: str, *, is_silent: bool) -> RunningDelivery:
        """Count a delivery from now on."""
        delivery = RunningDelivery(account_id, is_silent)
        (self._slow if is_silent else self._quick)[delivery] = None
        return delivery

    def end(self, delivery: RunningDelivery, *, is_answered: bool) -> None:
        """Count it no longer, and learn from it whether its receiver is silent."""
        is_silent = not is_answered and trio.current_time() >= delivery.began_at + SLOW_AFTER_S
        if is_silent != delivery.is_silent:
            self.learned[delivery.account_id] = is_silent
        self.discard(delivery)

    def discard(self, delivery: RunningDelivery) -> None:
        """Count it no longer, unless that was so already."""
        self._slow.pop(delivery, None)
        if delivery in self._quick:
            self._remove_quick(delivery)

    async def run(self) -> NoReturn:
        """Watch for deliveries that become slow."""
        while True:
            first = next(iter(self._quick), None)
            began_at = trio.current_time() if first is None else first.began_at
            await trio.sleep_until(began_at + SLOW_AFTER_S)
            before = trio.current_time() - SLOW_AFTER_S
            for delivery in [each for each in self._quick if each.began_at <= before]:
                self._slow[delivery] = None
                self._remove_quick(delivery)
            while len(self._slow) > SLOW_MAX:
                longest = next(iter(self._slow))
                del self._slow[longest]
                longest.scope.cancel()

    def _remove_quick(self, delivery: RunningDelivery) -> None:
        was_full = not self.quick
        del self._quick[delivery]
        if was_full:
            self._on_free()
