"""The limits of one account that are settings, and its rate of creating tasks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import trio

from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import Now, format_time
from holdfast.persistence.records.operator_tables import Override


@dataclass(frozen=True, slots=True)
class AccountLimits:
    """The limits of one account. ``task_creates_per_s`` 0: no limit. ``paid_credit_days`` 0: it never expires.

    ``idempotency_ttl_s``: how long stored replies count. ``creates_override`` is what an operator has set for an
    account in the place of ``task_creates_per_s``, if anything.
    """

    tasks_in_flight_max: int = 1000
    task_creates_per_s: float = 0
    task_creates_burst: int = 20_000
    live_keys_max: int = 100
    webhooks_max: int = 16
    replies_max: int = 128
    idempotency_ttl_s: int = 86_400
    orders_pending_max: int = 1000
    paid_credit_days: int = 0
    creates_override: Callable[[str], Override | None] = lambda _: None


class CreateRate:
    """The rate limit on one account's task creation: a token bucket in its actor's memory.

    It allows ``task_creates_burst`` creates at once and ``task_creates_per_s`` a second in the long run. While an
    operator has set another number, it allows that many a second, and at once.

    It starts full, and an actor's next incarnation inherits it. A bucket of the default size fills before its idle
    actor is passivated, so passivation gains a client little.
    """

    def __init__(
        self, limits: AccountLimits, account_id: str, *, counter: Callable[[], float] = trio.current_time
    ) -> None:
        self._limits = limits
        self._account_id = account_id
        self._counter = counter
        self._override: Override | None = None
        self._fill(limits.task_creates_per_s, limits.task_creates_burst)

    def _fill(self, per_s: float, burst: int) -> None:
        self._per_s, self._burst = per_s, burst
        self._left = float(burst)
        self._counted_at: float | None = None

    def refuse(self, now: Now) -> Refusal | None:
        """Return a refusal if the bucket is empty. ``now`` is service time, in which an operator's number ends."""
        override = self._limits.creates_override(self._account_id)
        if override != self._override:
            self._override = override
            per_s = self._limits.task_creates_per_s if override is None else override.number or 0.0
            self._fill(per_s, self._limits.task_creates_burst if override is None else math.ceil(per_s))
        if not self._per_s and override is None:
            return None
        at = self._counter()
        if self._counted_at is not None:
            self._left = min(self._burst, self._left + (at - self._counted_at) * self._per_s)
        self._counted_at = at
        if self._left >= 1:
            return None
        wait_s = (1 - self._left) / self._per_s if self._per_s else math.inf
        message = "This account creates tasks faster than its limit."
        if override is not None:
            ends_in_s = (override.ends_at - now()).total_seconds()
            wait_s = min(wait_s, max(1.0, ends_in_s))
            most = f"{override.number:g} tasks a second, until {format_time(override.ends_at)}"
            message = f"An operator has limited what this account creates to {most}."
        return Refusal(code="rate_limit_exceeded", message=message, retry_after_s=math.ceil(wait_s))

    def take(self) -> None:
        """Take one token."""
        self._left -= 1

    def give_back(self) -> None:
        """Return the token of a create that was not committed."""
        self._left += 1
