"""The sign-in actor: codes and wrong tries of one e-mail address, or requests and wrong tokens of one origin.

A code is six digits, stored only as an HMAC under a pepper. Tries and requests are counted in rows, so that a
new code, a restart or a second process resets nothing. A code proves that its sender reads the e-mail address; it
is not a second factor. The rules of counting are in :mod:`holdfast.ledger.sign_in_codes`.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias, TypeVar, assert_never

import msgspec

from holdfast.actors.runtime.faults import AccountAway
from holdfast.actors.runtime.journaled import Commit, JournaledActor, Turn
from holdfast.actors.runtime.mailbox import Mailbox
from holdfast.actors.sign_in.messages import (
    AddressGiven,
    AdmitOrigin,
    CodeIssued,
    CountWrongToken,
    GiveAddress,
    OriginAdmitted,
    RequestCode,
    SignedIn,
    VerifyCode,
)
from holdfast.ledger.public_types import Role
from holdfast.ledger.refusals import ACCOUNT_DISABLED, Refusal
from holdfast.ledger.sign_in_codes import (
    HOUR,
    WRONG_TOKENS_MAX,
    WRONG_TOKENS_WINDOW,
    CodeLimits,
    CodesState,
    admit_origin,
    admit_token,
    code_mac,
    new_otp_id,
    request_code,
    try_code,
    within,
)
from holdfast.ledger.values import Now, new_id, place_digits, place_of
from holdfast.persistence.journal.journal import Journal
from holdfast.persistence.journal.units import Fence, Unit
from holdfast.persistence.queries.loading import LoadedSignIn
from holdfast.persistence.queries.moves import sha256_of_email
from holdfast.persistence.records.rows import (
    AccountChangeRow,
    AccountHead,
    AccountKeptRow,
    AccountRow,
    GivenEmailRow,
    Row,
    SessionRow,
    SignInRow,
)
from holdfast.persistence.records.unreadable import read_row
from holdfast.telemetry.reports.conditions import LOCKOUTS, Conditions

R = TypeVar("R")

SignInCommand: TypeAlias = AdmitOrigin | CountWrongToken | GiveAddress | RequestCode | VerifyCode

NEW = "addresses without an account"
_ORIGIN_DIGITS = 16


@dataclass(frozen=True, slots=True, repr=False)
class SignInRules:
    """The limits of signing in, the pepper of its codes, and the properties of a new account."""

    pepper: bytes
    codes: CodeLimits
    otp_per_origin_hour: int
    session_ttl_s: int
    brand_id: str
    operators: frozenset[str]
    new_account_id: Callable[[], str] = lambda: new_id("acct")


class OriginState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The code requests of an origin within the last hour, and its wrong operators' tokens within their window."""

    requests: tuple[datetime, ...] = ()
    wrong_tokens: tuple[datetime, ...] = ()


S = TypeVar("S", CodesState, OriginState)


def new_session_token(account_id: str) -> str:
    """Return a new session token: ``hst_``, the account's place and 40 random base64url characters."""
    return "hst_" + place_digits(place_of(account_id)) + secrets.token_urlsafe(30)


class SignInActor(JournaledActor):
    """One key of the sign-in directory: ``email:…`` or ``origin:…``."""

    kind = "sign-in"
    own_fences = frozenset({"sign_in", "account"})

    def __init__(
        self,
        key: str,
        mailbox: Mailbox,
        journal: Journal,
        *,
        load: Callable[[str], Awaitable[LoadedSignIn]],
        now: Now,
        rules: SignInRules,
        conditions: Conditions,
    ) -> None:
        super().__init__(mailbox, journal)
        self._key = key
        self._load = load
        self._now = now
        self._rules = rules
        self._conditions = conditions
        self._version = 0
        self._codes = CodesState()
        self._origin = OriginState()
        self._account_id: str | None = None
        self._role: Role | None = None

    def state(self) -> tuple[int | None, object]:
        """The row's version alone."""
        return self._version, None

    async def on_start(self) -> None:  # type: ignore[override]  # may await
        """Read the counts and the account of the e-mail address."""
        loaded = await self._load(self._key)
        self._version = loaded.version
        if self._key.startswith("origin:"):
            self._origin = self._read(loaded.state, OriginState)
        else:
            self._codes = self._read(loaded.state, CodesState)
        self._account_id = loaded.account_id
        self._role = loaded.role

    def _read(self, state: object, shape: type[S]) -> S:
        return read_row(lambda each: msgspec.convert(each, shape), state, "sign_ins", self._key)

    def on_receive(self, message: SignInCommand) -> Turn[object] | Awaitable[Turn[object]]:
        """Decide one command."""
        match message:
            case AdmitOrigin():
                return self._admit_origin()
            case CountWrongToken():
                return self._count_wrong_token()
            case RequestCode():
                return self._request_code(message)
            case VerifyCode():
                return self._verify_code(message)
            case GiveAddress():
                return self._give_address(message)
            case _:
                assert_never(message)

    # -------------------------------------------------------------------------------------------------- requests

    def _admit_origin(self) -> Turn[OriginAdmitted]:
        at = self._now()
        requests = within(self._origin.requests, at - HOUR)
        refusal = admit_origin(requests, self._rules.otp_per_origin_hour, at)
        if refusal is not None:
            return self._confirm(refusal)
        self._origin = msgspec.structs.replace(self._origin, requests=(*requests, at))
        return self._change(self._origin, OriginAdmitted(), at)

    def _count_wrong_token(self) -> Turn[OriginAdmitted]:
        at = self._now()
        wrong = within(self._origin.wrong_tokens, at - WRONG_TOKENS_WINDOW)
        refusal = admit_token(wrong, at)
        if refusal is not None:
            self._report_lockout(refusal)
            # Without a look at the rows, which a guesser need not cause: more wrong tokens are all they could show.
            return refusal
        self._origin = msgspec.structs.replace(self._origin, wrong_tokens=(*wrong, at)[-WRONG_TOKENS_MAX:])
        locked = admit_token(self._origin.wrong_tokens, at)
        if locked is not None:
            self._report_lockout(locked)
        return self._change(self._origin, OriginAdmitted(), at)

    def _request_code(self, command: RequestCode) -> Turn[CodeIssued]:
        at, rules = self._now(), self._rules
        otp_id, digits = new_otp_id(rules.pepper, self._email), f"{secrets.randbelow(1_000_000):06d}"
        codes = request_code(
            self._codes,
            rules.codes,
            origin=self._origin_of(command.origin),
            otp_id=otp_id,
            mac=code_mac(rules.pepper, otp_id, digits, command.purpose),
            at=at,
        )
        if isinstance(codes, Refusal):
            self._report_lockout(codes)
            return self._confirm(codes)
        self._codes = codes
        return self._change(codes, CodeIssued(otp_id, digits, rules.codes.ttl_s), at)

    # ------------------------------------------------------------------------------------------------------ tries

    async def _verify_code(self, command: VerifyCode) -> Turn[SignedIn]:
        """Refuses: 1. what :func:`try_code` refuses; 2. a disabled account, whose code is used up."""
        at = self._now()
        mac = code_mac(self._rules.pepper, command.otp_id, command.code)
        codes, refusal = try_code(self._codes, otp_id=command.otp_id, mac=mac, at=at)
        if refusal is None:
            # Read again: an operator may have disabled the account since this actor started, or its owner left.
            loaded = await self._load(self._key)
            if loaded.is_away:
                raise AccountAway("the account of the address is in another cell")
            self._codes = codes
            return self._change(codes, ACCOUNT_DISABLED, at) if loaded.is_disabled else self._sign_in(loaded, at)
        self._report_lockout(refusal)
        if codes is self._codes:
            return self._confirm(refusal)
        self._codes = codes
        return self._change(codes, refusal, at)

    def _sign_in(self, loaded: LoadedSignIn, at: datetime) -> Commit[SignedIn]:
        """Create a session, and the account if the e-mail address has none. One that is to be closed is kept."""
        rules, email = self._rules, self._email
        rows: list[Row] = []
        fences: tuple[Fence, ...] = ()
        if loaded.account_id is not None:
            # It may have come from another cell since this actor started.
            self._account_id, self._role = loaded.account_id, loaded.role
            if loaded.closes_at is not None:
                # Its actor then finds its own state older than the rows.
                fences = (Fence("account", loaded.account_id, loaded.account_version),)
                rows.append(AccountKeptRow(loaded.account_id, loaded.account_version + 1))
                rows.append(AccountChangeRow(loaded.account_id, at, "kept"))
        if self._account_id is None:
            self._account_id = rules.new_account_id()
            self._role = "Operator" if email in rules.operators else "User"
            rows.append(AccountRow(AccountHead(self._account_id), email, self._role, rules.brand_id, at))
        assert self._role is not None
        token = new_session_token(self._account_id)
        session_id = new_id("ses")
        expires_at = at + timedelta(seconds=rules.session_ttl_s)
        token_sha256 = hashlib.sha256(token.encode()).digest()
        rows.append(SessionRow(self._account_id, session_id, token_sha256, at, expires_at))
        reply = SignedIn(self._account_id, email, self._role, session_id, token, expires_at, was_kept=bool(fences))
        return self._change(self._codes, reply, at, *rows, fences=fences)

    async def _give_address(self, command: GiveAddress) -> Turn[AddressGiven]:
        """Its codes and this share a fence: an account is opened before, and then found, or not at all."""
        at = self._now()
        loaded = await self._load(self._key)
        if loaded.account_id is not None or loaded.is_away:
            raise AccountAway("the address has an account, or was given away")
        given = GivenEmailRow(sha256_of_email(self._email), command.cell, at)
        return self._change(self._codes, AddressGiven(), at, given)

    def _report_lockout(self, refusal: Refusal) -> None:
        """Report a refusal after too many wrong tries, by account or origin; only the owner of the key does."""
        if refusal.code == "sign_in_locked":
            self._conditions.failed(LOCKOUTS, self._key, refusal.message)
        elif refusal.code == "otp_attempts_exceeded":
            account_id = self._account_id
            self._conditions.failed(LOCKOUTS, account_id or NEW, refusal.message, account_id=account_id)

    # ----------------------------------------------------------------------------------------------- unit of work

    @property
    def _email(self) -> str:
        return self._key.removeprefix("email:")

    def _origin_of(self, origin: str) -> str:
        """Return a digest that identifies an origin in an e-mail address's row without revealing it."""
        return hmac.new(self._rules.pepper, b"origin|" + origin.encode(), hashlib.sha256).hexdigest()[
            :_ORIGIN_DIGITS
        ]

    def _confirm(self, reply: R) -> Commit[R]:
        """Reply once the rows confirm that the state is the newest: another process may serve this key too."""
        return Commit(Unit(fences=(Fence("sign_in", self._key, self._version),), advances=False), reply)

    def _change(
        self,
        state: CodesState | OriginState,
        reply: R,
        at: datetime,
        *rows: Row,
        fences: tuple[Fence, ...] = (),
    ) -> Commit[R]:
        fence = Fence("sign_in", self._key, self._version)
        self._version += 1
        row = SignInRow(self._key, self._version, at, state)
        return Commit(Unit(fences=(fence, *fences), rows=(row, *rows)), reply)
