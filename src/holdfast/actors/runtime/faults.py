"""Faults of an ask: why a command was not answered. A refusal is a reply, never one of these."""

from __future__ import annotations


class AskFault(Exception):
    """An ask without a reply. ``retry_after_s`` is when a retry may succeed."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Overloaded(AskFault):
    """Too much waits already, as where a mailbox is full; the command was not accepted."""


class ShareExceeded(Overloaded):
    """Too much waits of one caller or for one actor, which concerns no other; the command was not accepted."""


class Unavailable(AskFault):
    """The actor is restarting or paused; the command was not accepted."""


class NotAccepted(Unavailable):
    """The process that was asked has certainly not accepted the command: it may be sent elsewhere."""


class AccountAway(Unavailable):
    """The account is closed for a move to another cell, or was moved there; the command was not accepted."""


class Quarantined(Unavailable):
    """The actor crashed too often, or an operator refuses it, for a known time; the command was not accepted."""


class OutcomeUnknown(AskFault):
    """The command was accepted, but its reply was lost or late: it may have taken effect."""


class Deadlock(AskFault):
    """The ask would wait for its own sender; the message names the cycle."""


class Crashed(Exception):
    """The actor crashed while handling the command. Nothing of it was written."""


class StaleFence(Exception):
    """A row of the asking actor's own has a newer version, so the joint unit of work is void; reload and retry."""


class EndedByOperator(Exception):
    """An operator ended the incarnation; the text is the operator's reason."""
