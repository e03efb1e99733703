"""The secrets that sign webhooks: one per account, derived from a key of the service, rotated on demand.

No secret is stored: it is derived from the account and a generation number, and a rotation is the next generation.
For a day the previous generation signs too, so that a receiver can be switched over without losing an event.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from holdfast.ledger.standard_secrets import standard_secret

OVERLAP_S = 24 * 3600
SIGNING_MAX_COUNT = 4


class Rotation(NamedTuple):
    """A generation above 0, and when it was rotated to."""

    generation: int
    at: datetime


class Signing(NamedTuple):
    """The generations that sign now, newest first; when the newest began to sign, and when it will sign alone."""

    generations: tuple[int, ...]
    rotated_at: datetime | None
    alone_from: datetime | None


def signing_at(rotations: Sequence[Rotation], now: datetime) -> Signing:
    """Return the generations that sign now, given an account's newest rotations in any order."""
    newest_first = sorted(rotations, reverse=True)
    if not newest_first:
        return Signing((0,), None, None)
    generations = [newest_first[0].generation]
    alone_from: datetime | None = None
    for rotation in newest_first[: SIGNING_MAX_COUNT - 1]:
        until = rotation.at + timedelta(seconds=OVERLAP_S)
        if until <= now:
            break
        generations.append(rotation.generation - 1)
        alone_from = until if alone_from is None else max(alone_from, until)
    return Signing(tuple(generations), newest_first[0].at, alone_from)


def webhook_secret(key: bytes, account_id: str, generation: int) -> str:
    """Return an account's secret of one generation in its public form; its key has 32 bytes."""
    return standard_secret(hmac.digest(key, f"{account_id} {generation}".encode(), "sha256"))
