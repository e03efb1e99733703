"""The commands to a sign-in actor, whose key is an e-mail address or an origin, and their replies."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from holdfast.actors.runtime.messages import Command


@dataclass(frozen=True, slots=True)
class AdmitOrigin(Command["OriginAdmitted"]):
    """Count one code request of an origin (key ``origin:…``). Reply: :class:`OriginAdmitted`."""


@dataclass(frozen=True, slots=True)
class OriginAdmitted:
    """The origin is within its hourly limit."""


@dataclass(frozen=True, slots=True)
class RequestCode(Command["CodeIssued"]):
    """Issue a one-time code for an e-mail address (key ``email:…``). Reply: :class:`CodeIssued`."""

    origin: str


@dataclass(frozen=True, slots=True, repr=False)
class CodeIssued:
    """A code to send by e-mail; only its HMAC is stored."""

    otp_id: str
    code: str
    expires_in_s: int


@dataclass(frozen=True, slots=True, repr=False)
class VerifyCode(Command["SignedIn"]):
    """Check a code (key ``email:…``). Reply: :class:`SignedIn`."""

    otp_id: str
    code: str


@dataclass(frozen=True, slots=True, repr=False)
class SignedIn:
    """The code was right: the account exists and a session was created."""

    account_id: str
    email: str
    role: str
    session_id: str
    session_token: str
    session_expires_at: datetime
