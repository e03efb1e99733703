"""Faults an asker may meet: the command was not answered, and why. Refusals are replies and never come here."""

from __future__ import annotations


class AskFault(Exception):
    """A question that got no answer. ``retry_after_s`` is when asking again makes sense."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Overloaded(AskFault):
    """The mailbox is full; the command was not taken in."""


class Unavailable(AskFault):
    """The actor is restarting, quarantined or paused; the command was not taken in."""


class OutcomeUnknown(AskFault):
    """The command was taken in and its answer was lost or late: it may have happened. The key tells."""


class Deadlock(AskFault):
    """The question would wait for its own asker; the message names the cycle."""


class Crashed(Exception):
    """The actor broke while handling the command; nothing of it was written, and its incarnation has ended."""


class StaleFence(Exception):
    """A row of the asker's own had moved on, so the joint unit of work is void; the asker must reload."""
