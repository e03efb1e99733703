"""What is sent to customers because a request asks for it: mails with codes, and events, at a bounded rate."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import trio

from holdfast.actors.unfenced import EventCommands
from holdfast.ledger.public_types import counted
from holdfast.ledger.refusals import Refusal
from holdfast.providers.mail.base import Mailer


class SendRate:
    """How often a caller may have an event sent: ``burst`` times at once, in the long run once each ``every_s``."""

    def __init__(self, burst: int, every_s: float) -> None:
        self._burst = burst
        self._every_s = every_s
        # Until when each caller has used its turns, the one that came last at the end.
        self._used_until: dict[str, float] = {}

    def refuse(self, caller: str) -> Refusal | None:
        """Use one turn. Refuses: 1. ``rate_limit_exceeded``."""
        now = trio.current_time()
        used_until = max(now, self._used_until.get(caller, now))
        late_s = used_until - now - (self._burst - 1) * self._every_s
        if late_s > 0:
            return Refusal(
                code="rate_limit_exceeded",
                message=f"At most {counted(self._burst, 'event')} can be sent on demand at once; try again later.",
                retry_after_s=math.ceil(late_s),
            )
        self._used_until.pop(caller, None)
        self._used_until[caller] = used_until + self._every_s
        while self._used_until and next(iter(self._used_until.values())) <= now:
            del self._used_until[next(iter(self._used_until))]
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """What sends mails and events. The rates limit the events that an account has sent on demand."""

    mailer: Mailer
    events: EventCommands
    test_rate: SendRate = field(default_factory=lambda: SendRate(20, 30.0))
    resend_rate: SendRate = field(default_factory=lambda: SendRate(100, 1.0))
