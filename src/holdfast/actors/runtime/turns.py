"""The result of a turn, the handling of one message: a reply, or a unit of work and the reply that follows it."""

from __future__ import annotations

from typing import Generic, TypeAlias, TypeVar

import msgspec

from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import TrioActorRef
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.journal.units import Unit

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Tell(msgspec.Struct, frozen=True):
    """A message to send once the unit is durable."""

    to: TrioActorRef
    message: Command[object]


LogFields: TypeAlias = dict[str, str | int | None]


class LogEvent(msgspec.Struct, frozen=True):
    """An event in the life of a task or a payment, logged once it is durable.

    The fields are our own ids, names of the catalog, codes and numbers, never a text from outside.
    """

    event: str
    fields: LogFields


class Commit(msgspec.Struct, Generic[R_co], frozen=True, eq=False):
    """Write ``unit``; once it is durable send ``reply`` and ``tells``, and log its event."""

    unit: Unit
    reply: R_co
    tells: tuple[Tell, ...] = ()
    log_event: LogEvent | None = None


Turn: TypeAlias = Commit[R | Refusal] | R | Refusal
"""What the handler of a ``Command[R]`` returns."""
