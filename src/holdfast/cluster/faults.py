"""The faults of an ask on a link, and those of links themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.actors.runtime.faults import (
    AskFault,
    Crashed,
    Deadlock,
    OutcomeUnknown,
    Overloaded,
    Quarantined,
    StaleFence,
    Unavailable,
)
from holdfast.cluster.frames import Fault
from holdfast.persistence.records.unreadable import UnreadableRow


class NotAccepted(Exception):
    """The other member has certainly not accepted the command: it may be sent elsewhere."""


class LinkLost(Exception):
    """The link closed before the reply arrived: the command may have taken effect."""


_ASK_FAULTS: Final[Mapping[str, type[AskFault]]] = {
    each.__name__: each for each in (Overloaded, Unavailable, Quarantined, OutcomeUnknown, Deadlock)
}
_OTHERS: Final[Mapping[str, type[Exception]]] = {
    each.__name__: each for each in (Crashed, StaleFence, UnreadableRow, NotAccepted)
}


def fault_frame(number: int, fault: BaseException) -> Fault:
    """Return a fault as a frame. What has no counterpart at the asker is a crash there."""
    name = type(fault).__name__
    if isinstance(fault, AskFault):
        return Fault(number, name if name in _ASK_FAULTS else "Unavailable", str(fault), fault.retry_after_s)
    return Fault(number, name if name in _OTHERS else "Crashed", str(fault))


def fault_of(frame: Fault) -> Exception:
    """Return the exception that a frame stands for."""
    ask_fault = _ASK_FAULTS.get(frame.name)
    if ask_fault is not None:
        return ask_fault(frame.message, retry_after_s=frame.retry_after_s)
    return _OTHERS.get(frame.name, Crashed)(frame.message)
