"""Which exception inside an exception group matters, what a report shows of it, and which ends the process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType

import trio

from holdfast.telemetry.scrubbing import scrub


class CannotServe(Exception):
    """This process cannot serve until something outside of it has changed; the message is a sentence.

    A supervisor does not restart the child that raises it, but gives up, and so the process ends.
    """


def _leaves(exc: BaseException) -> Iterator[BaseException]:
    pending = [exc]
    while pending:
        current = pending.pop()
        if isinstance(current, BaseExceptionGroup):
            pending.extend(reversed(current.exceptions))
        else:
            yield current


def leaf_of(exc: BaseException) -> BaseException:
    """Return the exception that matters inside ``exc``.

    Of a group's leaves: one that must end the process (KeyboardInterrupt, SystemExit), else the first that is not
    a cancellation, else the first.
    """
    leaves = list(_leaves(exc))
    for leaf in leaves:
        if not isinstance(leaf, Exception | trio.Cancelled):
            return leaf
    for leaf in leaves:
        if not isinstance(leaf, trio.Cancelled):
            return leaf
    return leaves[0]


def location_of(exc: BaseException) -> str | None:
    """Return where ``exc`` was raised, as ``module:line``; None if it was not."""
    tb: TracebackType | None = exc.__traceback__
    if tb is None:
        return None
    while tb.tb_next is not None:
        tb = tb.tb_next
    return f"{tb.tb_frame.f_globals.get('__name__', '?')}:{tb.tb_lineno}"


@dataclass(frozen=True, slots=True)
class Cause:
    """An exception, and the parts of it that a report shows."""

    fault: BaseException
    reason_type: str
    reason: str
    location: str | None

    @property
    def text(self) -> str:
        """Its type and reason in one line of words."""
        return f"{self.reason_type}: {self.reason}"


def describe(exc: BaseException) -> Cause:
    """Describe ``exc`` by the type, the scrubbed text and the location of its leaf. Never raises."""
    leaf = leaf_of(exc)
    try:
        text = str(leaf)
    except Exception:
        text = "(no text: str() failed)"
    return Cause(exc, type(leaf).__name__, scrub(text), location_of(leaf))
