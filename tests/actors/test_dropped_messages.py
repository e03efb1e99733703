"""Messages that a full mailbox of a worker drops are dead letters."""

from __future__ import annotations

from holdfast.actors.runtime.mailbox import Envelope
from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import WorkerRef


class Notice(Command[None], frozen=True):
    """Says nothing."""


async def test_a_message_dropped_by_a_full_mailbox_is_passed_on() -> None:
    dropped: list[Envelope] = []
    ref = WorkerRef("outbox", mailbox_max=2)
    ref.on_full = dropped.append
    for _ in range(3):
        ref.tell(Notice())
    assert [envelope.message for envelope in dropped] == [Notice()]
    assert len(ref.actor_inbox) == 2
