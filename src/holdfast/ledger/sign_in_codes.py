"""One-time codes of one e-mail address: the limits of requests and of wrong tries; and those of origins.

Any client may request a code for any address, so a limit per address alone could be used up by an attacker.
Requests, wrong tries and the replacement of older codes are therefore counted per origin (where a request comes
from). An origin that has redeemed a code of this address is *proven*: other origins never limit it.

Guessing is bounded as follows (computed in ``docs/decisions.md``): unproven origins share a number of codes a day,
and once their wrong tries reach the day's limit each further code of theirs allows a single try. The right digits
of a live code fail only because of that code's own wrong tries.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeVar

import msgspec

from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import new_id

T = TypeVar("T", "Occurrence", "Code")

HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)
PROVEN_FOR: Final = timedelta(days=30)
PROVEN_MAX: Final = 8
CODES_MAX: Final = 64
"""The most live codes of one address; beyond it the oldest end."""
WRONG_TOKENS_MAX: Final = 10
"""With so many wrong operators' tokens within the window, an origin is locked."""
WRONG_TOKENS_WINDOW: Final = timedelta(minutes=15)

_TIME_DIGITS: Final = 12
_TAG_DIGITS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLimits:
    """The limits of one-time codes. Those without ``all_origins`` apply to each e-mail address and origin.

    ``per_day_max`` and both ``all_origins`` limits do not apply to origins that are proven for the address.
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
    """The time of a counted event, and the origin it is counted for."""

    at: datetime
    origin: str


class Code(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A code that was sent and not redeemed. ``mac`` is hex; ``origin`` requested it and has its wrong tries."""

    otp_id: str
    mac: str
    origin: str
    expires_at: datetime
    tries_max: int
    wrong_tries: int = 0


class CodesState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of an e-mail address. ``proven`` contains when each origin last redeemed a code."""

    code_requests: tuple[Occurrence, ...] = ()
    wrong_tries: tuple[Occurrence, ...] = ()
    codes: tuple[Code, ...] = ()
    proven: tuple[Occurrence, ...] = ()


def new_otp_id(pepper: bytes, email: str) -> str:
    """Return an identifier of a code; its last digits prove that it was created here for this address."""
    drawn = new_id("otp")
    # The time, like in every identifier; then random digits; then digits derived from both.
    head = drawn[: -32 + _TIME_DIGITS] + secrets.token_hex(16)[: 32 - _TIME_DIGITS - _TAG_DIGITS]
    return head + _tag(pepper, email, head)


def is_otp_id_of(pepper: bytes, email: str, otp_id: str) -> bool:
    """Whether a code with this identifier may have been sent to the address; reads no state."""
    head, tag = otp_id[:-_TAG_DIGITS], otp_id[-_TAG_DIGITS:]
    return hmac.compare_digest(_tag(pepper, email, head).encode(), tag.encode(errors="replace"))


def code_mac(pepper: bytes, otp_id: str, digits: str, purpose: str = "") -> str:
    """Return what is stored of a code. One for another purpose than signing in is of no use for that."""
    covered = f"{otp_id}|{digits}" + (purpose and f"|{purpose}")
    return hmac.new(pepper, covered.encode(errors="replace"), hashlib.sha256).hexdigest()


def email_purpose(account_id: str, email: str) -> str:
    """Return the purpose of the codes by which an account's address is changed to this one."""
    return f"email|{account_id}|{email}"


def request_code(
    state: CodesState, limits: CodeLimits, *, origin: str, otp_id: str, mac: str, at: datetime
) -> CodesState | Refusal:
    """Add a code; it replaces the origin's older ones.

    Refuses: 1. within ``resend_s`` of this origin's last code; 2. this origin's hourly limit; 3. its limit of wrong
    tries a day; and if it is not proven 4. its daily limit, 5. the hourly and 6. the daily limit of all unproven
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
        unproven = [each.at for each in _of_unproven(state, state.code_requests)]
        refusal = (
            _over(own, limits.per_day_max, DAY, at, _TOO_MANY_CODES)
            or _over(unproven, limits.all_origins_hour_max, HOUR, at, _TOO_MANY_CODES)
            or _over(unproven, limits.all_origins_day_max, DAY, at, _TOO_MANY_CODES)
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
        tries_max=limits.tries_max if is_proven else _tries_left_to_unproven(replaced, limits, at),
    )
    return msgspec.structs.replace(
        replaced,
        code_requests=(*state.code_requests, Occurrence(at, origin)),
        codes=(*others, code)[-CODES_MAX:],
    )


def try_code(state: CodesState, *, otp_id: str, mac: str, at: datetime) -> tuple[CodesState, Refusal | None]:
    """Redeem a code; return the state afterwards, and None if the digits were right.

    Refuses: 1. an unknown, replaced or redeemed code; 2. an expired one; 3. one whose own tries are used up;
    4. wrong digits, which are counted.
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
    """Check an origin's hourly limit for all addresses together. ``requests`` are its last times."""
    return _over(list(requests), per_hour_max, HOUR, at, "Too many codes were requested from here.")


def admit_token(wrong_tokens: tuple[datetime, ...], at: datetime) -> Refusal | None:
    """Check whether an origin may try an operators' token, given the times of wrong ones within the window."""
    if len(wrong_tokens) < WRONG_TOKENS_MAX:
        return None
    return Refusal(
        code="sign_in_locked",
        message="Too many wrong tokens came from this address.",
        retry_after_s=_seconds(wrong_tokens[-WRONG_TOKENS_MAX] + WRONG_TOKENS_WINDOW - at),
    )


def within(times: tuple[datetime, ...], oldest: datetime) -> tuple[datetime, ...]:
    """Return the times later than ``oldest``."""
    return tuple(at for at in times if at > oldest)


def same_text(known: str, given: str) -> bool:
    """Compare in constant time; as bytes, because ``compare_digest`` raises for text outside ASCII."""
    return hmac.compare_digest(known.encode(), given.encode(errors="replace"))


INVALID_OTP: Final = Refusal(code="invalid_otp", message="This code is not valid.")

_TOO_MANY_CODES: Final = "Too many codes were requested for this address."


def _tries_left_to_unproven(state: CodesState, limits: CodeLimits, at: datetime) -> int:
    """Return how many wrong tries a new code of an unproven origin allows, less what live codes may still use."""
    live = [code for code in _of_unproven(state, state.codes) if at < code.expires_at]
    open_tries = sum(code.tries_max - code.wrong_tries for code in live)
    used = len(_of_unproven(state, state.wrong_tries)) + open_tries
    return max(1, min(limits.tries_max, limits.failures_day_max - used))


def _current(state: CodesState, at: datetime) -> CodesState:
    """Return the state without entries that are too old for every limit."""
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


def _of_unproven(state: CodesState, each_of: tuple[T, ...]) -> list[T]:
    proven = _proven_origins(state)
    return [each for each in each_of if each.origin not in proven]


def _over(times: list[datetime], most: int, span: timedelta, at: datetime, message: str) -> Refusal | None:
    """Refuse if ``most`` of the times are within the span; until the first of them has left it."""
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
