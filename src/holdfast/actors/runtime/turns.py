"""What a handler may return: a plain reply, or a unit of work whose reply leaves once it is durable."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.actors.runtime.messages import Command
from holdfast.actors.runtime.refs import TrioActorRef
from holdfast.persistence.journal.units import Unit


class Tell(msgspec.Struct, frozen=True):
    """A message to send once the unit is durable."""

    to: TrioActorRef
    message: Command[object]


class Commit(msgspec.Struct, frozen=True, eq=False):
    """Write ``unit``; when it is durable answer ``reply`` and send ``tells``."""

    unit: Unit
    reply: Any
    tells: tuple[Tell, ...] = ()
