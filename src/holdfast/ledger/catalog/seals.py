"""Sealed quotes: the whole quote is contained in its signed id, so that quoting stores nothing.

The id is ``quo_<32 hex>.<payload>.<signature>``: a nonce, the quote as MessagePack, and an HMAC-SHA256 over those
two as encoded, the last two parts in base64url without padding. The signature covers the text, not the decoded
quote, so there is exactly one id for one quote and any changed character invalidates it.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from datetime import datetime

import msgspec

from holdfast.ledger.catalog.terms import Terms
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.values import format_time

QUOTE_ID_CHARS_MAX = 8192
"""The longest text that is parsed as a quote id."""

_PURPOSE = b"holdfast quote 1\0"
"""Separates signatures of quotes from anything else signed with the same key."""


class SealedQuote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A quote as promised. ``quote_id`` is the nonce; if ``account_id`` is None any account may use it."""

    quote_id: str
    terms: Terms
    account_id: str | None
    brand_id: str
    expires_at: datetime


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SealedQuote)


def seal_quote(quote: SealedQuote, key: bytes) -> str:
    """Encode a quote as its public id."""
    assert quote.expires_at.tzinfo is not None
    signed = f"{quote.quote_id}.{_base64(_encoder.encode(quote))}"
    return f"{signed}.{_signature(signed, key)}"


def unseal_quote(quote_id: str, keys: Sequence[bytes], now: datetime) -> SealedQuote | Refusal:
    """Decode a public quote id.

    Refuses: 1. ``quote_mismatch`` (not an id that one of the keys signed); 2. ``quote_expired``.
    """
    if len(quote_id) > QUOTE_ID_CHARS_MAX or not quote_id.isascii():
        return _mismatch("The quote id was not issued by this service.")
    signed, _, signature = quote_id.rpartition(".")
    if not any(hmac.compare_digest(signature, _signature(signed, key)) for key in keys):
        return _mismatch("The quote id was not issued by this service.")
    nonce, _, payload = signed.partition(".")
    try:
        quote = _decoder.decode(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (msgspec.DecodeError, binascii.Error):
        # Sealed by a release with another quote format.
        return _mismatch("The quote was issued by an earlier release; request a new one.")
    if quote.quote_id != nonce:
        return _mismatch("The quote id was not issued by this service.")
    if now >= quote.expires_at:
        message = f"The quote expired at {format_time(quote.expires_at)}; request a new one."
        return Refusal(code="quote_expired", message=message, param="quote_id", final=True)
    return quote


def quote_matches(sealed: SealedQuote, *, model: str, input_hash: str, account_id: str) -> Refusal | None:
    """Check that a quote was issued for this model, this input and this account, or for any account.

    Refuses: ``quote_mismatch``.
    """
    if sealed.terms.model != model:
        return _mismatch(f"The quote is for the model '{sealed.terms.model}', not '{model}'.")
    if sealed.terms.input_hash != input_hash:
        return _mismatch("The quote is for another input.")
    if sealed.account_id is not None and sealed.account_id != account_id:
        return _mismatch("The quote is for another account.")
    return None


def _mismatch(message: str) -> Refusal:
    return Refusal(code="quote_mismatch", message=message, param="quote_id")


def _signature(signed: str, key: bytes) -> str:
    return _base64(hmac.digest(key, _PURPOSE + signed.encode(), "sha256"))


def _base64(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")
