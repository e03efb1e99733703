"""What messages between actors, and from the front end to them, are made of.

Commands are imperative, frozen and typed; a reply is a typed value or a :class:`Refusal`. Each stands with those
for the same receiver: ``account_messages`` (``order_messages`` for its payment orders), ``sign_in_messages``,
``task_messages``, ``worker_messages``; those about events for customers are ``event_messages``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

R_co = TypeVar("R_co", covariant=True)


class Command(Generic[R_co]):
    """A message that asks for a change (or a fact) and is answered by its own reply type or a :class:`Refusal`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A caller's Idempotency-Key: scope is (account, route, key); ``fingerprint`` is SHA-256 of path + body."""

    route: str
    key: str
    fingerprint: bytes
