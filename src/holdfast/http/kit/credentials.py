"""Bearer credentials: session tokens, API keys and the operators' token, and how they are read from a request.

A session token is ``hst_`` and 43 base64url characters. An API key is ``hk_live_`` or ``hk_test_``, 32 base62
characters and six more that are the CRC32 of all before them: a mistyped or invented key is refused without a read.
The database has only the SHA-256 of both; with this much entropy a plain hash is enough.

Both carry their account's place (:mod:`holdfast.ledger.values`), by which a load balancer may choose a process: a
session token as its first three characters after ``hst_``, an API key as the last three before the CRC32.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
import zlib
from collections import OrderedDict
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

import msgspec
import trio

from holdfast.ledger.api_keys import has_scope, lacking_scope
from holdfast.ledger.refusals import ACCOUNT_CLOSING, ACCOUNT_DISABLED, Refusal
from holdfast.ledger.values import PLACE_DIGITS, Now, place_carried_by, place_digits, place_of
from holdfast.persistence.queries.credentials import FoundKey, SessionRecord
from holdfast.persistence.records.key_rows import ApiKeyRecord

CredentialKind = Literal["session", "api_key"]

KEY_PREFIX_CHARS: Final = 12
API_KEY_START: Final = "hk_"
"""How much of an API key is stored as text, so that its owner can distinguish keys."""

_BASE62: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
_SECRET_CHARS: Final = 32
_CHECKSUM_CHARS: Final = 6
_PAIRS: Final = tuple(high + low for high in _BASE62 for low in _BASE62)
"""The numbers below 62² as two base62 digits."""

_AUTHORIZATION = re.compile(r"(?i:bearer) +([A-Za-z0-9._~+/-]{1,256}=*)", re.ASCII)
_OPERATOR_AUTHORIZATION = re.compile(r"(?i:bearer) +([\x21-\x7e]{1,1024})", re.ASCII)
_SESSION_TOKEN = re.compile(r"hst_[A-Za-z0-9_-]{43}", re.ASCII)
_API_KEY = re.compile(r"hk_(?:live|test)_[0-9A-Za-z]{38}", re.ASCII)


@dataclass(frozen=True, slots=True, repr=False)
class MintedKey:
    """A new API key. ``secret`` is returned to its owner once and never stored."""

    secret: str
    sha256: bytes
    prefix: str


class Bearer(msgspec.Struct, frozen=True):
    """A well-formed credential, not yet verified against the database."""

    kind: CredentialKind
    sha256: bytes
    digits: str
    """How the place is written that it carries."""
    key_prefix: str | None = None
    """How the API key begins; None for a session."""

    @property
    def place(self) -> int:
        """The place that it carries."""
        return place_carried_by(self.digits)


def mint_api_key(account_id: str, *, live: bool) -> MintedKey:
    """Generate an API key for an account: ``hk_live_…``, or ``hk_test_…`` outside production."""
    head = "hk_live_" if live else "hk_test_"
    drawn = "".join(secrets.choice(_BASE62) for _ in range(_SECRET_CHARS - PLACE_DIGITS))
    body = head + drawn + place_digits(place_of(account_id))
    secret = body + _checksum(body)
    return MintedKey(secret=secret, sha256=digest(secret), prefix=secret[:KEY_PREFIX_CHARS])


def digest(credential: str) -> bytes:
    """Return the SHA-256 that the database has of a credential."""
    return hashlib.sha256(credential.encode("ascii")).digest()


def is_api_key(text: str) -> bool:
    """Whether a text has the form of an API key and a correct checksum."""
    return _API_KEY.fullmatch(text) is not None and _checksum(text[:-_CHECKSUM_CHARS]) == text[-_CHECKSUM_CHARS:]


def read_bearer(
    authorization: Sequence[str], wanted: CredentialKind | None, known: Container[bytes] = ()
) -> Bearer | Refusal:
    """Read the request's Authorization headers as one credential of the ``wanted`` kind (None: either kind).

    An API key whose hash is ``known`` is not checked for its form again.

    Refuses: 1. ``missing_credentials``; 2. ``invalid_credentials`` (several headers, another scheme, invalid
    characters); 3. ``wrong_credential_type``; 4. ``invalid_session`` or ``invalid_api_key`` (malformed).
    """
    if not authorization:
        return MISSING_CREDENTIALS
    match = _AUTHORIZATION.fullmatch(authorization[0]) if len(authorization) == 1 else None
    if match is None:
        return NOT_ONE_BEARER
    token = match.group(1)
    kind = _kind_of(token) or wanted
    if wanted is not None and kind != wanted:
        return NEEDS_SESSION if wanted == "session" else NEEDS_API_KEY
    if kind == "session" and _SESSION_TOKEN.fullmatch(token):
        return Bearer("session", digest(token), token[len("hst_") :][:PLACE_DIGITS])
    if kind == "api_key" and ((sha256 := digest(token)) in known or is_api_key(token)):
        digits = token[:-_CHECKSUM_CHARS][-PLACE_DIGITS:]
        return Bearer("api_key", sha256, digits, token[:KEY_PREFIX_CHARS])
    return INVALID_SESSION if kind == "session" else INVALID_API_KEY


def place_of_credential(authorization: Sequence[str]) -> int | None:
    """Return the place that a request's credential carries; None for another credential or none."""
    found = read_bearer(authorization, None)
    return None if isinstance(found, Refusal) else found.place


def key_prefix_sent(authorization: Sequence[str]) -> str | None:
    """Return how the API key begins that a request has; None for another credential or none."""
    match = _AUTHORIZATION.fullmatch(authorization[0]) if len(authorization) == 1 else None
    return match[1][:KEY_PREFIX_CHARS] if match is not None and is_api_key(match[1]) else None


def read_tried_token(authorization: Sequence[str]) -> str | Refusal:
    """Read the request's Authorization headers as what may be the operators' token.

    Refuses: 1. ``missing_credentials``; 2. ``invalid_credentials`` (several headers, another scheme).
    """
    if not authorization:
        return MISSING_CREDENTIALS
    match = _OPERATOR_AUTHORIZATION.fullmatch(authorization[0]) if len(authorization) == 1 else None
    return NOT_ONE_BEARER if match is None else match.group(1)


def matches_operator_token(sent: str, operator_token: str) -> bool:
    """Compare in constant time."""
    assert operator_token, "the settings always have a token"
    return hmac.compare_digest(sent.encode(errors="replace"), operator_token.encode())


MISSING_CREDENTIALS: Final = Refusal(
    code="missing_credentials", message="The header Authorization: Bearer <token> is missing."
)
NOT_ONE_BEARER: Final = Refusal(
    code="invalid_credentials", message="The Authorization header must be sent once, as Bearer <token>."
)
NEEDS_SESSION: Final = Refusal(
    code="wrong_credential_type", message="This endpoint requires a session token; no scope of an API key opens it."
)
NEEDS_API_KEY: Final = Refusal(code="wrong_credential_type", message="This endpoint requires an API key.")
INVALID_SESSION: Final = Refusal(code="invalid_session", message="The session does not exist or has ended.")
SESSION_EXPIRED: Final = Refusal(code="session_expired", message="The session has expired; sign in again.")
INVALID_API_KEY: Final = Refusal(code="invalid_api_key", message="The API key does not exist or was revoked.")


class KnownKey(msgspec.Struct, frozen=True):
    """The immutable facts of an API key or a session; whether it is valid is not one of them."""

    account_id: str
    key_id: str
    """The key's id or the session's; empty for the owner's own requests."""
    scopes: frozenset[str] = frozenset()
    """What the key may do; a session has none."""


USE_RECORDED_EVERY_S: Final = 60.0


class KeyCache:
    """The account and key of a hash, for the ``entries_max`` most recently used keys and session tokens.

    The facts are immutable, so an entry is never stale; the account's actor checks whether the key is still valid.
    """

    def __init__(self, *, entries_max: int = 50_000) -> None:
        self._entries_max = entries_max
        self._known: OrderedDict[bytes, KnownKey] = OrderedDict()
        self._reading: dict[bytes, trio.Event] = {}
        """Set when a key has been read."""
        self._recorded_s: dict[bytes, float] = {}

    def is_use_due(self, sha256: bytes) -> bool:
        """Return whether to record a use of this key, at most once in ``USE_RECORDED_EVERY_S``."""
        now_s, recorded_s = trio.current_time(), self._recorded_s.get(sha256)
        if recorded_s is not None and now_s - recorded_s < USE_RECORDED_EVERY_S:
            return False
        if len(self._recorded_s) >= self._entries_max:
            self._recorded_s.clear()
        self._recorded_s[sha256] = now_s
        return True

    def get(self, sha256: bytes) -> KnownKey | None:
        """Return the key of a hash, None if it is not cached."""
        known = self._known.get(sha256)
        if known is not None:
            self._known.move_to_end(sha256)
        return known

    async def get_when_read(self, sha256: bytes) -> KnownKey | None:
        """Return the key of a hash. If it is being read this waits, and then None means that it was not found."""
        if (read := self._reading.get(sha256)) is not None:
            await read.wait()
        return self.get(sha256)

    @contextmanager
    def reading(self, sha256: bytes) -> Iterator[None]:
        """Let others wait for the key until this has ended: however many requests come at once, one reads it."""
        if sha256 in self._reading:
            yield
            return
        self._reading[sha256] = trio.Event()
        try:
            yield
        finally:
            self._reading.pop(sha256).set()

    def account_of(self, sha256: bytes) -> str | None:
        """Return the account of a hash, None if it is not cached."""
        known = self.get(sha256)
        return None if known is None else known.account_id

    def put(self, sha256: bytes, known: KnownKey) -> None:
        """Cache a key that was read."""
        self._known[sha256] = known
        if len(self._known) > self._entries_max:
            self._known.popitem(last=False)

    def forget(self, sha256: bytes) -> None:
        """Read the key again before its next use."""
        self._known.pop(sha256, None)

    def __contains__(self, sha256: object) -> bool:
        return sha256 in self._known

    def __len__(self) -> int:
        return len(self._known)


def _kind_of(token: str) -> CredentialKind | None:
    if token.startswith("hst_"):
        return "session"
    return "api_key" if token.startswith("hk_") else None


def _checksum(body: str) -> str:
    high, low = divmod(zlib.crc32(body.encode("ascii")), len(_PAIRS))
    highest, high = divmod(high, len(_PAIRS))
    return _PAIRS[highest] + _PAIRS[high] + _PAIRS[low]


def valid_session(session: SessionRecord | None, now: datetime) -> SessionRecord | Refusal:
    """Return a token's session, if it is valid.

    Refuses: 1. ``invalid_session`` (unknown or ended); 2. ``session_expired``; 3. ``account_disabled``;
    4. ``account_closing``, of an account in which a process of the release before has let its owner sign in.
    """
    if session is None or session.revoked_at is not None:
        return INVALID_SESSION
    if session.expires_at <= now:
        return SESSION_EXPIRED
    if session.disabled_at is not None:
        return ACCOUNT_DISABLED
    return session if session.closes_at is None else ACCOUNT_CLOSING


def valid_key(found: FoundKey | None, scope: str | None, now: Now) -> ApiKeyRecord | Refusal:
    """Return an API key that was found, if it is valid.

    Refuses: 1. ``invalid_api_key`` (unknown or revoked); 2. ``account_disabled``; 3. ``account_closing``;
    4. ``api_key_expired``; 5. ``api_key_paused``; 6. ``insufficient_scope``.
    """
    if found is None or found.key.revoked_at is not None:
        return INVALID_API_KEY
    key = found.key
    if found.disabled_at is not None:
        return ACCOUNT_DISABLED
    if found.closes_at is not None:
        return ACCOUNT_CLOSING
    unusable = key.terms.refuse_use(now)
    if unusable is not None:
        return unusable
    if scope is not None and not has_scope(key.terms.scopes, scope):
        return lacking_scope(scope)
    return key
