"""What is asked of a sign-in, by e-mail address or by address of origin, and what it replies."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from holdfast.actors.runtime.messages import Command


@dataclass(frozen=True, slots=True)
class AdmitOrigin(Command["OriginAdmitted"]):
    """Count one code request against an address of origin (key ``origin:…``). Reply: :class:`OriginAdmitted`."""


@dataclass(frozen=True, slots=True)
class OriginAdmitted:
    """The address of origin is within its hourly limit."""


@dataclass(frozen=True, slots=True)
class RequestCode(Command["CodeIssued"]):
    """Draw a one-time code for an e-mail (key ``email:…``) at the wish of an origin. Reply: :class:`CodeIssued`."""

    origin: str


@dataclass(frozen=True, slots=True, repr=False)
class CodeIssued:
    """A code to be mailed; only its HMAC is stored."""

    otp_id: str
    code: str
    expires_in_s: int


@dataclass(frozen=True, slots=True, repr=False)
class VerifyCode(Command["SignedIn"]):
    """Try a code (key ``email:…``). Reply: :class:`SignedIn`."""

    otp_id: str
    code: str


@dataclass(frozen=True, slots=True, repr=False)
class SignedIn:
    """The e-mail is proved; its account exists and a session is open."""

    account_id: str
    email: str
    role: str
    session_id: str
    session_token: str
    session_expires_at: datetime
