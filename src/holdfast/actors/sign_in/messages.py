"""The commands to a sign-in actor, whose key is an e-mail address or an origin, and their replies."""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.actors.runtime.messages import Command
from holdfast.ledger.public_types import Role


class AdmitOrigin(Command["OriginAdmitted"], frozen=True):
    """Count one code request of an origin (key ``origin:…``). Reply: :class:`OriginAdmitted`."""


class CountWrongToken(Command["OriginAdmitted"], frozen=True):
    """Count a wrong operators' token of an origin (key ``origin:…``).

    Reply: :class:`OriginAdmitted`. Refused: ``sign_in_locked``, and then not counted.
    """


class OriginAdmitted(msgspec.Struct, frozen=True):
    """The origin is within its limit."""


class RequestCode(Command["CodeIssued"], frozen=True):
    """Issue a one-time code for an e-mail address (key ``email:…``). Reply: :class:`CodeIssued`.

    One that has a ``purpose`` is of use for that alone, not for signing in.
    """

    origin: str
    purpose: str = ""


class GiveAddress(Command["AddressGiven"], frozen=True):
    """Leave an address without an account (key ``email:…``) to another cell. Reply: :class:`AddressGiven`."""

    cell: int


class AddressGiven(msgspec.Struct, frozen=True):
    """No account is opened for the address here any more."""


class CodeIssued(msgspec.Struct, frozen=True):
    """A code to send by e-mail; only its HMAC is stored."""

    otp_id: str
    code: str
    expires_in_s: int

    __repr__ = object.__repr__


class VerifyCode(Command["SignedIn"], frozen=True):
    """Check a code (key ``email:…``). Reply: :class:`SignedIn`."""

    otp_id: str
    code: str

    __repr__ = object.__repr__


class SignedIn(msgspec.Struct, frozen=True):
    """The code was right: the account exists and a session was created."""

    account_id: str
    email: str
    role: Role
    session_id: str
    session_token: str
    session_expires_at: datetime
    was_kept: bool = False
    """Whether the account was to be closed, and is not any more."""

    __repr__ = object.__repr__
