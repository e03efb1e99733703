"""Secrets as Standard Webhooks writes them: ``whsec_`` and the base64 of a key of 16 to 128 bytes."""

from __future__ import annotations

import base64
from typing import Final

SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - how secrets begin, not one of them
KEY_MIN_BYTES: Final = 16
KEY_MAX_BYTES: Final = 128


def standard_secret(key: bytes) -> str:
    """The secret that holds this key."""
    assert KEY_MIN_BYTES <= len(key) <= KEY_MAX_BYTES
    return SECRET_PREFIX + base64.b64encode(key).decode("ascii")


def standard_key(secret: str) -> bytes | None:
    """The key inside a secret, or None where the text is no such secret."""
    if not secret.startswith(SECRET_PREFIX) or not secret.isascii():
        return None
    text = secret[len(SECRET_PREFIX) :]
    try:
        # Secrets are handed about with and without the padding that base64 asks for.
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        return None
    return key if KEY_MIN_BYTES <= len(key) <= KEY_MAX_BYTES else None
