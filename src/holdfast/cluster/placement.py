"""Which member owns which place: rendezvous hashing, the same in every process and without agreement.

Each place belongs to the member with the highest score for it, so that a member that comes or goes moves only its
own share of the places.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache

from holdfast.ledger.values import PLACES

_SCORE_BYTES = 8


def owners_of_places(members: Iterable[str]) -> Sequence[str]:
    """Return the owner of each place. ``members`` is not empty; its order does not matter."""
    return _table(tuple(sorted(members)))


def owner_of_name(name: str, members: Iterable[str]) -> str:
    """Return the member that owns a name, such as that of work which one member does for all."""
    return max(sorted(members), key=lambda member: _digest(f"{member} {name}"))


@cache
def _places() -> tuple[bytes, ...]:
    return tuple(place.to_bytes(2) for place in range(PLACES))


@lru_cache(maxsize=8)
def _table(members: tuple[str, ...]) -> tuple[str, ...]:
    scores = [_scores(member) for member in members]
    if len(members) == 1:
        return members * PLACES
    return tuple(members[max(range(len(members)), key=lambda each: scores[each][place])] for place in range(PLACES))


@lru_cache(maxsize=256)
def _scores(member: str) -> array[int]:
    """Return a member's score for each place."""
    keyed = hashlib.blake2b(member.encode(), digest_size=_SCORE_BYTES)
    scores = array("Q")
    for place in _places():
        scored = keyed.copy()
        scored.update(place)
        scores.append(int.from_bytes(scored.digest()))
    return scores


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=_SCORE_BYTES).digest()
