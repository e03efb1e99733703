"""The base of all messages to actors.

A command is imperative, frozen and typed; its reply is a typed value or a :class:`Refusal`. The commands stand
next to the actor that receives them.
"""

from __future__ import annotations

from typing import ClassVar, Generic, TypeVar

import msgspec

from holdfast.ledger.refusals import Refusal

R_co = TypeVar("R_co", covariant=True)


class Command(msgspec.Struct, Generic[R_co], frozen=True):
    """A message whose reply is an ``R_co`` or a :class:`Refusal`."""

    is_idempotent: ClassVar[bool] = False
    """Whether a second message that is equal changes nothing, by the ids in it or by what it asks for."""

    @property
    def is_repeatable(self) -> bool:
        """Whether it may be sent again when its reply was lost: it is idempotent, or has an Idempotency-Key."""
        return self.is_idempotent or getattr(self, "idempotency", None) is not None


class IdempotencyKey(msgspec.Struct, frozen=True):
    """A caller's Idempotency-Key: scope is (account, route, key); ``fingerprint`` is SHA-256 of path + body."""

    route: str
    key: str
    fingerprint: bytes


class Replayed(msgspec.Struct, Generic[R_co], frozen=True):
    """The reply to an earlier command with the same Idempotency-Key; nothing changed this time."""

    reply: R_co | Refusal
