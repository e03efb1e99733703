"""Dead letters: messages that no actor handled."""

from __future__ import annotations

from collections import Counter, deque
from typing import Final, Literal

import msgspec

from holdfast.ledger.public_types import MemberId, Time
from holdfast.ledger.values import Now, format_time, utc_now
from holdfast.telemetry.scrubbing import scrub

RING_RECORDS = 1_000

DeadReason = Literal["dead", "full", "expired", "orphan_reply"]
"""dead: the key is quarantined. full: the mailbox was full. expired: its deadline passed unread.

orphan_reply: the sender no longer waited for the reply.
"""

NOT_HANDLED: Final[dict[DeadReason, str]] = {
    "dead": "its actor is quarantined",
    "full": "its mailbox was full",
    "expired": "its deadline had passed",
    "orphan_reply": "its sender had gone",
}
"""The reasons in words."""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was not handled, by type: its content is not stored."""

    at: Time
    """When it was given up."""
    member_id: MemberId
    reason: DeadReason
    """Why it was not handled."""
    path: str
    """The part of the tree that it was sent to."""
    key: str | None
    """The actor's key; null if it was no keyed one."""
    message_type: str
    """The type of the message."""
    trace_id: str | None
    """The trace it was sent in; null without one."""


class DeadLetters:
    """The newest dead letters of a member, and their counts by reason since the start."""

    def __init__(self, member_id: str = "", *, now: Now = utc_now, ring_records: int = RING_RECORDS) -> None:
        self._member_id = member_id
        self._now = now
        self._ring: deque[DeadLetter] = deque(maxlen=ring_records)
        self._counts: Counter[DeadReason] = Counter()

    def record(
        self, reason: DeadReason, *, path: str, key: str | None, message_type: str, trace_id: str | None = None
    ) -> None:
        """Record one message."""
        self._counts[reason] += 1
        self._ring.append(
            DeadLetter(
                at=format_time(self._now()),
                member_id=self._member_id,
                reason=reason,
                path=path,
                key=scrub(key) if key else key,
                message_type=message_type,
                trace_id=trace_id,
            )
        )

    def recent(self) -> tuple[DeadLetter, ...]:
        """Return the newest dead letters, newest first."""
        return tuple(reversed(self._ring))

    def counts(self) -> dict[DeadReason, int]:
        """Return the count of each reason, zeros included."""
        return {reason: self._counts[reason] for reason in ("dead", "full", "expired", "orphan_reply")}
