"""Secrets as keys of signatures: any text, or ``whsec_`` and the base64 of 16 to 128 bytes (Standard Webhooks)."""

from __future__ import annotations

import base64
from typing import Final

SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - a prefix, not a secret
KEY_MIN_BYTES: Final = 16
KEY_MAX_BYTES: Final = 128


def key_bytes(secret: bytes | str) -> bytes:
    """Return a secret of any text as key bytes; a blank one counts as empty."""
    raw = secret.encode("utf-8", "surrogatepass") if isinstance(secret, str) else secret
    return raw if raw.strip() else b""


def standard_secret(key: bytes) -> str:
    """Return the secret of a key."""
    assert KEY_MIN_BYTES <= len(key) <= KEY_MAX_BYTES
    return SECRET_PREFIX + base64.b64encode(key).decode("ascii")


def standard_key(secret: str) -> bytes | None:
    """Return the key of a secret, or None if the text is not a secret."""
    if not secret.startswith(SECRET_PREFIX) or not secret.isascii():
        return None
    text = secret[len(SECRET_PREFIX) :]
    try:
        # Secrets are common with and without base64 padding.
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        return None
    return key if KEY_MIN_BYTES <= len(key) <= KEY_MAX_BYTES else None
