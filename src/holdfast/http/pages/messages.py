"""The message about an action, carried by a cookie to the page that follows.

Not in the page's address, where a link from elsewhere could put words into our mouth.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

import msgspec

MESSAGE_COOKIE: Final = "holdfast_message"
MESSAGE_CHARS_MAX: Final = 1_500
_COOKIE_CHARS_MAX: Final = 3_800
_VALID_S: Final = 60


class Message(msgspec.Struct, frozen=True):
    """What became of an action."""

    text: str
    is_failure: bool


def message_cookie(message: Message | None) -> str:
    """Return the Set-Cookie header that carries a message to the next page, or without one ends it."""
    value = "" if message is None else _encode(message)
    ttl_s = 0 if message is None else _VALID_S
    return f"{MESSAGE_COOKIE}={value}; Path=/ops; Max-Age={ttl_s}; HttpOnly; SameSite=Strict"


def read_message(cookie: str | None) -> Message | None:
    """Return the message of a cookie; None without one, and for anything else."""
    if not cookie or len(cookie) > _COOKIE_CHARS_MAX:
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cookie + "=" * (-len(cookie) % 4)), type=Message)
    except (msgspec.DecodeError, binascii.Error, ValueError):
        return None


def _encode(message: Message) -> str:
    cut = Message(message.text[:MESSAGE_CHARS_MAX], message.is_failure)
    return base64.urlsafe_b64encode(msgspec.json.encode(cut)).rstrip(b"=").decode()
