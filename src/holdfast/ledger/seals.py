"""Sealed quotes: the whole quote travels inside its id, signed, so that quoting writes nothing anywhere.

The id reads ``quo_<32 hex>.<payload>.<mark>``: a nonce, the quote as MessagePack, and an HMAC-SHA256 over the
two as they are written, the latter two in base64url without padding. The mark covers the text, not what it
decodes to, so there is exactly one id for one quote and any changed character voids it.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import datetime

import msgspec

from holdfast.ledger.refusals import Refusal
from holdfast.ledger.terms import Terms

QUOTE_ID_CHARS_MAX = 8192
"""The longest text that is looked at as a quote id."""

_PURPOSE = b"holdfast quote 1\0"
"""Keeps marks of quotes apart from whatever else the same key may sign."""


class SealedQuote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A quote as promised. ``quote_id`` is the nonce; with ``account_id`` None anyone may use it."""

    quote_id: str
    terms: Terms
    account_id: str | None
    brand_id: str
    expires_at: datetime


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SealedQuote)


def seal_quote(quote: SealedQuote, key: bytes) -> str:
    """Write a quote as its public id."""
    assert quote.expires_at.tzinfo is not None
    signed = f"{quote.quote_id}.{_base64(_encoder.encode(quote))}"
    return f"{signed}.{_mark(signed, key)}"


def unseal_quote(quote_id: str, key: bytes, now: datetime) -> SealedQuote | Refusal:
    """Read a public quote id back.

    Refuses: 1. ``quote_mismatch`` (not an id that this key sealed); 2. ``quote_expired``.
    """
    if len(quote_id) > QUOTE_ID_CHARS_MAX or not quote_id.isascii():
        return _mismatch("This is not a quote id of this service.")
    signed, _, mark = quote_id.rpartition(".")
    if not hmac.compare_digest(mark, _mark(signed, key)):
        return _mismatch("This is not a quote id of this service.")
    nonce, _, payload = signed.partition(".")
    try:
        quote = _decoder.decode(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (msgspec.DecodeError, binascii.Error):
        # Sealed by a release whose quotes looked different.
        return _mismatch("This quote can no longer be read; ask for a new one.")
    if quote.quote_id != nonce:
        return _mismatch("This is not a quote id of this service.")
    if now >= quote.expires_at:
        return Refusal(
            code="quote_expired", message="The quote has expired; ask for a new one.", param="quote_id", final=True
        )
    return quote


def quote_matches(sealed: SealedQuote, *, model: str, input_hash: str, account_id: str) -> Refusal | None:
    """Whether a quote was made for this model, this input and this account, or for any account.

    Refuses: ``quote_mismatch``.
    """
    if sealed.terms.model != model:
        return _mismatch("The quote is for another model.")
    if sealed.terms.input_hash != input_hash:
        return _mismatch("The quote is for another input.")
    if sealed.account_id is not None and sealed.account_id != account_id:
        return _mismatch("The quote is for another account.")
    return None


def _mismatch(message: str) -> Refusal:
    return Refusal(code="quote_mismatch", message=message, param="quote_id")


def _mark(signed: str, key: bytes) -> str:
    return _base64(hmac.digest(key, _PURPOSE + signed.encode(), "sha256"))


def _base64(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")
