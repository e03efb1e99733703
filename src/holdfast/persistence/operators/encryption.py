"""Encryption of what is stored and must not be read in the rows: AES-256-GCM under a key derived from SERVER_KEY.

A text is bound to its row: moved to another one it cannot be decrypted.
"""

from __future__ import annotations

import hmac
import secrets

_NONCE_BYTES = 12


class CannotDecrypt(Exception):
    """The text was encrypted with another key, for another row, or was altered."""


class RowCipher:
    """``key`` has 32 bytes."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def encrypt(self, text: bytes, row: str) -> bytes:
        """Encrypt a text for the row that ``row`` names."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # loaded when the first one is needed

        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + AESGCM(self._key).encrypt(nonce, text, row.encode())

    def decrypt(self, encrypted: bytes, row: str) -> bytes:
        """Return the text that was encrypted for this row. Raises :class:`CannotDecrypt`."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        try:
            return AESGCM(self._key).decrypt(encrypted[:_NONCE_BYTES], encrypted[_NONCE_BYTES:], row.encode())
        except (InvalidTag, ValueError) as exc:
            raise CannotDecrypt(row) from exc

    def digest(self, text: bytes) -> bytes:
        """Return a digest by which equal texts are recognised, and nothing else."""
        return hmac.digest(self._key, b"digest\0" + text, "sha256")
