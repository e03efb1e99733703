"""The restarts of a group's keys: the newest of each, for the keys that restarted last."""

from __future__ import annotations

from collections import OrderedDict, deque

import msgspec

from holdfast.ledger.public_types import Time

KEYS_MAX = 1_000
RESTARTS_MAX = 20
"""Of one key."""


class KeyRestart(msgspec.Struct, frozen=True, kw_only=True):
    """One end of an incarnation that was no normal one, and what was decided."""

    at: Time
    incarnation: int
    reason_type: str
    reason: str
    location: str | None
    last_message_type: str | None
    decision: str
    delay_s: float | None


class RestartHistory:
    """Restarts by key. They outlive the actor, whose child is forgotten once it is idle."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[str, deque[KeyRestart]] = OrderedDict()

    def known_keys(self) -> set[str]:
        """Return the keys that have restarts."""
        return set(self._by_key)

    def add(self, key: str, restart: KeyRestart) -> None:
        """Remember one restart."""
        found = self._by_key.get(key)
        if found is None:
            found = self._by_key[key] = deque(maxlen=RESTARTS_MAX)
        found.append(restart)
        self._by_key.move_to_end(key)
        if len(self._by_key) > KEYS_MAX:
            self._by_key.popitem(last=False)

    def of(self, key: str) -> list[KeyRestart]:
        """Return a key's restarts, the newest first."""
        return list(reversed(self._by_key.get(key, ())))
