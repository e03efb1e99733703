"""What a handler may return: a plain reply, or a unit of work whose reply leaves once it is durable."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from holdfast.actors.runtime.messages import Command
from holdfast.persistence.journal.units import Unit


class TellTarget(Protocol):
    """Where news can be told."""

    def tell(self, key: str, command: Command[Any]) -> None: ...


class Tell(msgspec.Struct, frozen=True):
    """News to send once the unit is durable: after the commit, outside the turn."""

    to: TellTarget
    key: str
    command: Command[Any]


class Commit(msgspec.Struct, frozen=True, eq=False):
    """Write ``unit``; when it is durable answer ``reply`` and send ``tells``."""

    unit: Unit
    reply: Any
    tells: tuple[Tell, ...] = ()
