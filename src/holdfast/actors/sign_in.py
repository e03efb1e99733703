"""The sign-in actor: one e-mail's codes and tries, or one address of origin's requests.

A code is six digits, stored only as an HMAC under a pepper. Tries and requests are counted in rows, so that a
new code, a restart or a second process resets nothing. An e-mailed code proves that somebody reads the address;
it is not a second factor.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.actors.actor import JournaledActor
from holdfast.actors.mailbox import Mailbox
from holdfast.actors.sign_in_messages import (
    AdmitOrigin,
    CodeIssued,
    OriginAdmitted,
    RequestCode,
    SignedIn,
    VerifyCode,
)
from holdfast.actors.turns import Commit
from holdfast.ledger.clock import Now
from holdfast.ledger.ids import new_id
from holdfast.ledger.operations import CHAIN_START
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.journal import Journal
from holdfast.persistence.loading import LoadedSignIn
from holdfast.persistence.rows import AccountRow, Row, SessionRow, SignInRow
from holdfast.persistence.units import Fence, Unit

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, repr=False)
class SignInRules:
    """The limits of signing in, the pepper of its codes, and what a new account is given."""

    pepper: bytes
    otp_ttl_s: int
    otp_attempts: int
    otp_failures_day: int
    otp_resend_s: int
    otp_per_email_hour: int
    otp_per_origin_hour: int
    session_ttl_s: int
    brand_id: str
    operators: frozenset[str]


class Code(msgspec.Struct, frozen=True, omit_defaults=True):
    """The newest code of an e-mail; older ones are forgotten. ``mac`` is hex."""

    otp_id: str
    mac: str
    expires_at: datetime
    wrong_tries: int = 0
    is_used: bool = False


class SignInState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the limits count: requests of the last hour, failed tries of the last day, and the newest code."""

    requests: tuple[datetime, ...] = ()
    failures: tuple[datetime, ...] = ()
    code: Code | None = None


class SignInActor(JournaledActor):
    """One key of the sign-in directory: ``email:…`` or ``origin:…``."""

    own_fence = "sign_in"

    def __init__(
        self,
        key: str,
        mailbox: Mailbox,
        journal: Journal,
        *,
        load: Callable[[str], Any],
        now: Now,
        rules: SignInRules,
    ) -> None:
        super().__init__(mailbox, journal)
        self._key = key
        self._load = load
        self._now = now
        self._rules = rules
        self._version = 0
        self._state = SignInState()
        self._account_id: str | None = None
        self._role: str | None = None

    async def on_start(self) -> None:  # type: ignore[override]  # may await
        """Read what was counted, and the account the e-mail has."""
        loaded: LoadedSignIn = await self._load(self._key)
        self._version = loaded.version
        self._state = msgspec.convert(loaded.state, SignInState)
        self._account_id = loaded.account_id
        self._role = loaded.role

    def on_receive(self, message: Any) -> Any:
        """Decide one command."""
        if isinstance(message, AdmitOrigin):
            return self._admit_origin()
        if isinstance(message, RequestCode):
            return self._request_code()
        assert isinstance(message, VerifyCode)
        return self._verify_code(message)

    # -------------------------------------------------------------------------------------------------- requests

    def _admit_origin(self) -> Commit:
        """Refuses: 1. the hourly limit of an address of origin."""
        at = self._now()
        requests = _within(self._state.requests, at - HOUR)
        if len(requests) >= self._rules.otp_per_origin_hour:
            wait = requests[0] + HOUR - at
            return self._refuse(_too_soon(wait, "Too many codes were requested from this address."))
        return self._commit(SignInState(requests=(*requests, at)), OriginAdmitted(), at)

    def _request_code(self) -> Commit:
        """Refuses: 1. a code asked for moments ago; 2. the hourly limit of an e-mail."""
        at, rules = self._now(), self._rules
        requests = _within(self._state.requests, at - HOUR)
        if requests and at < requests[-1] + timedelta(seconds=rules.otp_resend_s):
            wait = requests[-1] + timedelta(seconds=rules.otp_resend_s) - at
            return self._refuse(_too_soon(wait, "A code was sent to this address a moment ago."))
        if len(requests) >= rules.otp_per_email_hour:
            wait = requests[0] + HOUR - at
            return self._refuse(_too_soon(wait, "Too many codes were requested for this address."))
        otp_id, digits = new_id("otp"), f"{secrets.randbelow(1_000_000):06d}"
        code = Code(otp_id, self._mac(otp_id, digits), at + timedelta(seconds=rules.otp_ttl_s))
        state = SignInState(requests=(*requests, at), failures=_within(self._state.failures, at - DAY), code=code)
        return self._commit(state, CodeIssued(otp_id, digits, rules.otp_ttl_s), at)

    # ------------------------------------------------------------------------------------------------------ tries

    def _verify_code(self, command: VerifyCode) -> Commit:
        """Refuses: 1. an unknown, superseded or used code; 2. an expired one; 3. too many wrong tries, of this
        code or of the day; 4. the wrong digits, which are counted."""
        at, rules, code = self._now(), self._rules, self._state.code
        if code is None or code.is_used or not _same(code.otp_id, command.otp_id):
            return self._refuse(_invalid())
        if at >= code.expires_at:
            return self._refuse(Refusal(code="otp_expired", message="This code has expired; request a new one."))
        failures = _within(self._state.failures, at - DAY)
        if len(failures) >= rules.otp_failures_day:
            return self._refuse(_exhausted(failures[0] + DAY - at))
        if code.wrong_tries >= rules.otp_attempts:
            return self._refuse(_exhausted(timedelta(seconds=rules.otp_resend_s)))
        if not _same(code.mac, self._mac(command.otp_id, command.code)):
            missed = msgspec.structs.replace(code, wrong_tries=code.wrong_tries + 1)
            state = msgspec.structs.replace(self._state, code=missed, failures=(*failures, at))
            return self._commit(state, _invalid(), at)
        return self._sign_in(code, at)

    def _sign_in(self, code: Code, at: datetime) -> Commit:
        """Use the code up, open a session, and with the first one the account."""
        rules, email = self._rules, self._key.removeprefix("email:")
        rows: list[Row] = []
        if self._account_id is None:
            self._account_id = new_id("acct")
            self._role = "Operator" if email in rules.operators else "User"
            rows.append(
                AccountRow(self._account_id, email, self._role, rules.brand_id, at, 0, 0, 0, 0, CHAIN_START)
            )
        assert self._role is not None
        token = "hst_" + secrets.token_urlsafe(32)
        session_id = new_id("ses")
        expires_at = at + timedelta(seconds=rules.session_ttl_s)
        token_sha256 = hashlib.sha256(token.encode()).digest()
        rows.append(SessionRow(self._account_id, session_id, token_sha256, at, expires_at))
        state = SignInState(requests=self._state.requests, code=msgspec.structs.replace(code, is_used=True))
        reply = SignedIn(self._account_id, email, self._role, session_id, token, expires_at)
        return self._commit(state, reply, at, *rows)

    # ----------------------------------------------------------------------------------------------- unit of work

    def _mac(self, otp_id: str, digits: str) -> str:
        covered = f"{otp_id}|{digits}".encode(errors="replace")
        return hmac.new(self._rules.pepper, covered, hashlib.sha256).hexdigest()

    def _refuse(self, refusal: Refusal) -> Commit:
        """Refuse once the rows have said that this memory is the newest: another process may serve this key too."""
        return Commit(Unit(fences=(Fence("sign_in", self._key, self._version),), moves=False), refusal)

    def _commit(self, state: SignInState, reply: Any, at: datetime, *rows: Row) -> Commit:
        fence = Fence("sign_in", self._key, self._version)
        self._version += 1
        self._state = state
        row = SignInRow(self._key, self._version, at, msgspec.json.encode(state).decode())
        return Commit(Unit(fences=(fence,), rows=(row, *rows)), reply)


def _same(ours: str, theirs: str) -> bool:
    """Compare in constant time; as bytes, because a text outside ASCII is refused with an exception."""
    return hmac.compare_digest(ours.encode(), theirs.encode(errors="replace"))


def _within(times: tuple[datetime, ...], oldest: datetime) -> tuple[datetime, ...]:
    return tuple(at for at in times if at > oldest)


def _seconds(wait: timedelta) -> int:
    return max(1, -(-wait // timedelta(seconds=1)))


def _too_soon(wait: timedelta, message: str) -> Refusal:
    return Refusal(code="otp_rate_limited", message=message, retry_after_s=_seconds(wait))


def _invalid() -> Refusal:
    return Refusal(code="invalid_otp", message="This code is not valid.")


def _exhausted(wait: timedelta) -> Refusal:
    return Refusal(
        code="otp_attempts_exceeded", message="Too many wrong codes were tried.", retry_after_s=_seconds(wait)
    )
