"""The base of all messages to actors.

A command is imperative, frozen and typed; its reply is a typed value or a :class:`Refusal`. The commands stand
next to the actor that receives them.
"""

from __future__ import annotations

import functools
import sys
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, ClassVar, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from holdfast.ledger.refusals import Refusal

R_co = TypeVar("R_co", covariant=True)


class Command(msgspec.Struct, Generic[R_co], frozen=True):
    """A message whose reply is an ``R_co`` or a :class:`Refusal`."""

    is_idempotent: ClassVar[bool] = False
    """Whether a second message that is equal changes nothing, by the ids in it or by what it asks for."""

    @property
    def idempotency(self) -> IdempotencyKey | None:
        """The Idempotency-Key, of a command with such a field."""
        return None

    @property
    def is_repeatable(self) -> bool:
        """Whether it may be sent again when its reply was lost: it is idempotent, or has an Idempotency-Key."""
        return self.is_idempotent or self.idempotency is not None


class IdempotencyKey(msgspec.Struct, frozen=True):
    """A caller's Idempotency-Key: scope is (account, route, key); ``fingerprint`` is SHA-256 of path + body."""

    route: str
    key: str
    fingerprint: bytes


class Replayed(msgspec.Struct, Generic[R_co], frozen=True):
    """The reply to an earlier command with the same Idempotency-Key; nothing changed this time."""

    reply: R_co | Refusal


@functools.cache
def reply_type(command: type[Command[Any]]) -> Any:
    """Return the type that a command declares for its reply, apart from refusals and replayed replies."""
    [declared] = [base for base in command.__orig_bases__ if get_origin(base) is Command]  # type: ignore[attr-defined]  # of generic bases
    holder = SimpleNamespace(__annotations__={"reply": get_args(declared)[0]})
    hint = get_type_hints(holder, globalns=vars(sys.modules[command.__module__]))["reply"]
    if get_origin(hint) in {Union, UnionType}:
        [hint] = [each for each in get_args(hint) if get_origin(each) is not Replayed]
    return NoneType if hint is None else hint
