"""One-time codes of one e-mail address: which may be requested, which still work, and what wrong tries cost.

Anybody may request a code for any address, so whatever is counted for an address alone can be used up by a
stranger. Requests, wrong tries and the replacing of older codes are therefore counted for each origin (where a
request comes from) separately. An origin that a code of this address was redeemed from is *proven*; what other
origins do never limits it.

What bounds guessing (``docs/decisions.md`` does the sums): origins that are not proven share a number of codes a
day, and once their wrong tries reach the day's limit a further code of theirs takes a single try. Nothing ever
makes the right digits of a live code fail but that code's own wrong tries.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeVar

import msgspec

from holdfast.ledger.ids import new_id
from holdfast.ledger.refusals import Refusal

T = TypeVar("T", "Occurrence", "Code")

HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)
PROVEN_FOR: Final = timedelta(days=30)
PROVEN_MAX: Final = 8
CODES_MAX: Final = 64
"""How many codes of one address are remembered; past it the oldest end."""

_TIME_DIGITS: Final = 12
_TAG_DIGITS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLimits:
    """The limits of one-time codes. Those without ``all_origins`` hold for each e-mail address and origin.

    ``per_day`` and both ``all_origins`` limits leave out origins that are proven for the address.
    """

    ttl_s: int
    tries_max: int
    failures_day_max: int
    resend_s: int
    per_hour_max: int
    per_day_max: int
    all_origins_hour_max: int
    all_origins_day_max: int


class Occurrence(msgspec.Struct, frozen=True, array_like=True):
    """Something that counts, and the origin it counts for."""

    at: datetime
    origin: str


class Code(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A code that was sent and not redeemed. ``mac`` is hex; ``origin`` requested it and bears its wrong tries."""

    otp_id: str
    mac: str
    origin: str
    expires_at: datetime
    tries_max: int
    wrong_tries: int = 0


class CodesState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is remembered of an e-mail address. ``proven`` holds when an origin last redeemed a code."""

    code_requests: tuple[Occurrence, ...] = ()
    wrong_tries: tuple[Occurrence, ...] = ()
    codes: tuple[Code, ...] = ()
    proven: tuple[Occurrence, ...] = ()


def new_otp_id(pepper: bytes, email: str) -> str:
    """An identifier of a code whose last digits prove that it was made here for this address."""
    made = new_id("otp")
    # Sorted by time like every identifier; what follows the time is drawn, and then derived.
    head = made[: -32 + _TIME_DIGITS] + secrets.token_hex(16)[: 32 - _TIME_DIGITS - _TAG_DIGITS]
    return head + _tag(pepper, email, head)


def is_otp_id_of(pepper: bytes, email: str, otp_id: str) -> bool:
    """Whether a code with this identifier may ever have been sent to the address; costs no look at any state."""
    head, tag = otp_id[:-_TAG_DIGITS], otp_id[-_TAG_DIGITS:]
    return hmac.compare_digest(_tag(pepper, email, head).encode(), tag.encode(errors="replace"))


def request_code(
    state: CodesState, limits: CodeLimits, *, origin: str, otp_id: str, mac: str, at: datetime
) -> CodesState | Refusal:
    """Send a code; it replaces the origin's older ones.

    Refuses: 1. a code requested moments ago from this origin; 2. this origin's hourly limit; 3. its limit of wrong
    tries a day; 4. where it is not proven, its daily limit; 5. and the hourly, 6. the daily limit of all such
    origins together.
    """
    state = _current(state, at)
    is_proven = origin in _proven_origins(state)
    own = [each.at for each in state.code_requests if each.origin == origin]
    if own and at < own[-1] + timedelta(seconds=limits.resend_s):
        wait = own[-1] + timedelta(seconds=limits.resend_s) - at
        return _rate_limited(wait, "A code was sent to this address a moment ago.")
    wrong = [each.at for each in state.wrong_tries if each.origin == origin]
    refusal = _over(own, limits.per_hour_max, HOUR, at, _TOO_MANY_CODES)
    if refusal is None and len(wrong) >= limits.failures_day_max:
        refusal = _tries_exceeded(wrong[-limits.failures_day_max] + DAY - at)
    if refusal is None and not is_proven:
        strangers = [each.at for each in _of_strangers(state, state.code_requests)]
        refusal = (
            _over(own, limits.per_day_max, DAY, at, _TOO_MANY_CODES)
            or _over(strangers, limits.all_origins_hour_max, HOUR, at, _TOO_MANY_CODES)
            or _over(strangers, limits.all_origins_day_max, DAY, at, _TOO_MANY_CODES)
        )
    if refusal is not None:
        return refusal
    others = tuple(code for code in state.codes if code.origin != origin)
    replaced = msgspec.structs.replace(state, codes=others)
    code = Code(
        otp_id=otp_id,
        mac=mac,
        origin=origin,
        expires_at=at + timedelta(seconds=limits.ttl_s),
        tries_max=limits.tries_max if is_proven else _tries_left_to_strangers(replaced, limits, at),
    )
    return msgspec.structs.replace(
        replaced,
        code_requests=(*state.code_requests, Occurrence(at, origin)),
        codes=(*others, code)[-CODES_MAX:],
    )


def try_code(state: CodesState, *, otp_id: str, mac: str, at: datetime) -> tuple[CodesState, Refusal | None]:
    """Redeem a code: what is remembered afterwards, and None where the code was right.

    Refuses: 1. an unknown, replaced or redeemed code; 2. an expired one; 3. one whose own tries are used up;
    4. the wrong digits, which are counted.
    """
    code = next((each for each in state.codes if same_text(each.otp_id, otp_id)), None)
    if code is None:
        return state, INVALID_OTP
    if at >= code.expires_at:
        return state, Refusal(code="otp_expired", message="This code has expired; request a new one.")
    if code.wrong_tries >= code.tries_max:
        return state, Refusal(
            code="otp_attempts_exceeded",
            message="Too many wrong digits were tried for this code; request a new one.",
            final=True,
        )
    current = _current(state, at)
    others = tuple(each for each in current.codes if each is not code)
    if not same_text(code.mac, mac):
        missed = msgspec.structs.replace(code, wrong_tries=code.wrong_tries + 1)
        tries = (*current.wrong_tries, Occurrence(at, code.origin))
        return msgspec.structs.replace(current, codes=(*others, missed), wrong_tries=tries), INVALID_OTP
    proven = (*(each for each in current.proven if each.origin != code.origin), Occurrence(at, code.origin))
    redeemed = msgspec.structs.replace(
        current,
        codes=others,
        wrong_tries=tuple(each for each in current.wrong_tries if each.origin != code.origin),
        proven=proven[-PROVEN_MAX:],
    )
    return redeemed, None


def admit_origin(requests: tuple[datetime, ...], per_hour_max: int, at: datetime) -> Refusal | None:
    """Refuses: 1. the hourly limit of an origin, whatever addresses it asks for. ``requests`` are its last ones."""
    return _over(list(requests), per_hour_max, HOUR, at, "Too many codes were requested from here.")


def within(times: tuple[datetime, ...], oldest: datetime) -> tuple[datetime, ...]:
    """The times later than ``oldest``."""
    return tuple(at for at in times if at > oldest)


def same_text(ours: str, theirs: str) -> bool:
    """Compare in constant time; as bytes, because a text outside ASCII is refused with an exception."""
    return hmac.compare_digest(ours.encode(), theirs.encode(errors="replace"))


INVALID_OTP: Final = Refusal(code="invalid_otp", message="This code is not valid.")

_TOO_MANY_CODES: Final = "Too many codes were requested for this address."


def _tries_left_to_strangers(state: CodesState, limits: CodeLimits, at: datetime) -> int:
    """How many wrong tries a new code of an origin that is not proven takes; what live codes may use counts too."""
    live = [code for code in _of_strangers(state, state.codes) if at < code.expires_at]
    open_tries = sum(code.tries_max - code.wrong_tries for code in live)
    used = len(_of_strangers(state, state.wrong_tries)) + open_tries
    return max(1, min(limits.tries_max, limits.failures_day_max - used))


def _current(state: CodesState, at: datetime) -> CodesState:
    """The state without what no limit looks back to any more."""
    proven = tuple(each for each in state.proven if each.at > at - PROVEN_FOR)
    origins = {each.origin for each in proven}
    return CodesState(
        code_requests=tuple(
            each for each in state.code_requests if each.at > at - (HOUR if each.origin in origins else DAY)
        ),
        wrong_tries=tuple(each for each in state.wrong_tries if each.at > at - DAY),
        codes=tuple(code for code in state.codes if code.expires_at > at - HOUR),
        proven=proven,
    )


def _proven_origins(state: CodesState) -> frozenset[str]:
    return frozenset(each.origin for each in state.proven)


def _of_strangers(state: CodesState, each_of: tuple[T, ...]) -> list[T]:
    proven = _proven_origins(state)
    return [each for each in each_of if each.origin not in proven]


def _over(times: list[datetime], most: int, span: timedelta, at: datetime, message: str) -> Refusal | None:
    """A refusal where ``most`` of the times lie within the span; it passes when the first of these leaves it."""
    recent = [each for each in times if each > at - span]
    return _rate_limited(recent[-most] + span - at, message) if len(recent) >= most else None


def _rate_limited(wait: timedelta, message: str) -> Refusal:
    return Refusal(code="otp_rate_limited", message=message, retry_after_s=_seconds(wait))


def _tries_exceeded(wait: timedelta) -> Refusal:
    message = "Too many wrong codes were tried from here."
    return Refusal(code="otp_attempts_exceeded", message=message, retry_after_s=_seconds(wait))


def _seconds(wait: timedelta) -> int:
    return max(1, -(-wait // timedelta(seconds=1)))


def _tag(pepper: bytes, email: str, head: str) -> str:
    covered = f"otp id|{email}|{head}".encode(errors="replace")
    return hmac.new(pepper, covered, hashlib.sha256).hexdigest()[:_TAG_DIGITS]
