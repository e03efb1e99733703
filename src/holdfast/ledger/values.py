"""Values of the ledger and how they are written: amounts, times, identifiers and places.

Amounts are integers of one millionth of a credit, and plain decimal strings in the API. Times are aware UTC, in
whole milliseconds, formatted as RFC 3339 with a Z. Identifiers are a prefix that names the kind, then a UUIDv7 in
lower-case hex, so they sort by time.

Places are a fixed number of parts into which all accounts are divided, to be spread over the members of a cluster.
An account's place follows from its id. The last three digits of the ids of its tasks, orders, results and files,
and some characters of its credentials, are its account's place, so that no look-up is needed to find it. They are
random in a UUIDv7, so it stays one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, tzinfo
from functools import lru_cache
from typing import Final, Literal

import msgspec
from uuid_utils import uuid7

MICRO = 1_000_000
"""Micro-credits in one credit (1 credit = 1 USD)."""

AMOUNT_MICRO_MAX = 10**15
"""The largest amount or balance the ledger holds: a billion credits, well within a BIGINT."""

CURRENCY: Final = "USD"

_PLAIN_DECIMAL = re.compile(r"(0|[1-9][0-9]{0,11})(?:\.([0-9]{1,12}))?", re.ASCII)


def parse_amount(text: str, *, decimals_max: int) -> int | None:
    """Parse a plain decimal string as micro-credits; None if it is not one.

    Not accepted: sign, exponent, blanks, leading zeros, more than ``decimals_max`` decimals, zero, and anything
    above ``AMOUNT_MICRO_MAX``. No float is involved.
    """
    match = _PLAIN_DECIMAL.fullmatch(text)
    if match is None:
        return None
    whole, fraction = match.group(1), match.group(2) or ""
    if len(fraction) > decimals_max:
        return None
    amount_micro = int(whole) * MICRO + int(fraction.ljust(6, "0")[:6])
    return amount_micro if 0 < amount_micro <= AMOUNT_MICRO_MAX else None


def format_amount(amount_micro: int) -> str:
    """Format micro-credits as a decimal string with 2 to 6 decimals: 9_760_000 is "9.76", 2_500 is "0.0025"."""
    sign = "-" if amount_micro < 0 else ""
    whole, fraction = divmod(abs(amount_micro), MICRO)
    digits = f"{fraction:06d}".rstrip("0").ljust(2, "0")
    return f"{sign}{whole}.{digits}"


def format_price(price: str) -> str:
    """Format a plain decimal string with at least 2 decimals: "1" is "1.00".

    A price may be finer than a micro-credit; all its decimals are retained, since rounding would change it.
    """
    whole, _, fraction = price.partition(".")
    return f"{whole}.{fraction.rstrip('0').ljust(2, '0')}"


Now = Callable[[], datetime]
"""A source of the current time; tests pass their own."""


_encode: Final = msgspec.json.Encoder().encode
_SECOND: Final = slice(1, len('"2026-11-20T18:40:00'))
_MILLISECOND: Final = slice(1, len('"2026-11-20T18:40:00.123'))


def utc_now() -> datetime:
    """Return the current time, truncated to milliseconds so that the stored value equals the shown one."""
    now = datetime.now(UTC)
    return now.replace(microsecond=now.microsecond // 1000 * 1000)


def format_time(at: datetime) -> str:
    """Format a time as ``2026-11-20T18:40:00.123Z``."""
    if at.tzinfo is not UTC:
        at = at.astimezone(UTC)
    # Formatted by msgspec, in a fifth of the time that datetime's own formats take: a list has a hundred times.
    text = _encode(at).decode()
    return text[_MILLISECOND] + "Z" if at.microsecond else text[_SECOND] + ".000Z"


def time_or_none(at: datetime | None) -> str | None:
    """Format a time; None stays None."""
    return None if at is None else format_time(at)


def midnight(day: date, zone: tzinfo) -> datetime:
    """Return when a day of ``zone`` begins, in UTC; later than midnight where the clock is set forward then."""
    return datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC)


PLACES: Final = 4096
PLACE_DIGITS: Final = 3

_CARRIED = re.compile(rf"[0-9a-f]{{{PLACE_DIGITS}}}", re.ASCII)


@lru_cache(maxsize=50_000)
def place_of(key: str) -> int:
    """Return the place of an account's id, or of any other key: evenly spread, and the same in every process."""
    return int.from_bytes(hashlib.blake2b(key.encode(errors="replace"), digest_size=2).digest()) % PLACES


def place_digits(place: int) -> str:
    """Return how ids and credentials carry a place: three lower-case hex digits."""
    return f"{place:03x}"


def place_carried_by(identifier: str) -> int:
    """Return the place that a task's or an order's id carries; of a key that carries none, its own place."""
    digits = identifier[-PLACE_DIGITS:]
    return int(digits, 16) if _CARRIED.fullmatch(digits) else place_of(identifier)


Prefix = Literal[
    "acct", "ord", "op", "task", "quo", "key", "ses", "otp", "evt", "rev", "req", "hold", "batch", "asset",
    "proc", "rep", "act", "poi", "check", "cbk", "file", "wh", "cpn", "cpu",
    "chg", "arc", "grp", "mov",
]  # fmt: skip


_ID: Final = re.compile(r"[a-z0-9_]{1,80}", re.ASCII)


def is_id(text: str) -> bool:
    """Whether a text has the form of an identifier. Any other is not looked up: no row has it."""
    return _ID.fullmatch(text) is not None


def new_id(prefix: Prefix) -> str:
    """Return a new identifier such as ``task_0199f3c2…`` (the prefix and 32 hex digits)."""
    return f"{prefix}_{uuid7().hex}"


def new_id_of_account(prefix: Literal["task", "ord", "file", "arc"], account_id: str) -> str:
    """Return a new identifier that carries the account's place."""
    return new_id_at(prefix, place_of(account_id))


def new_id_at(prefix: Prefix, place: int) -> str:
    """Return a new identifier that carries a place."""
    return new_id(prefix)[:-PLACE_DIGITS] + place_digits(place)
