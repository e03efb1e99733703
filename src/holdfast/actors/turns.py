"""What a handler may return: a plain reply, or a unit of work whose reply leaves once it is durable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.actors.messages import Command
from holdfast.persistence.units import Unit


class Teller(Protocol):
    """Where news can be told."""

    def tell(self, key: str, command: Command[Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class Tell:
    """News to send once the unit is durable: after the commit, outside the turn."""

    to: Teller
    key: str
    command: Command[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Commit:
    """Write ``unit``; when it is durable answer ``reply`` and send ``tells``."""

    unit: Unit
    reply: Any
    tells: tuple[Tell, ...] = ()
