"""Signed statements: a history that proves itself. ``verify_statement.py`` defines the format, and checks it.

A statement has the operations of an account in the order of their numbers, each with the bytes that the account's
chain hashes, and with its hash. Its last line has what follows from them, and is signed. It is written while the
operations are read, and nothing is signed that does not follow from its chain.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from holdfast.ledger.credit.operations import HASHED_FIELDS, Operation
from holdfast.ledger.credit.verify_statement import FORMAT
from holdfast.ledger.values import format_time, time_or_none

_encode = msgspec.json.encode


class BrokenChain(Exception):
    """An operation does not follow from the one before it, so that no statement of the account is signed."""


class ChainPoint(NamedTuple):
    """An account's totals and the chain's hash after its operation ``number``; before its first, 0."""

    number: int
    balance_micro: int
    held_micro: int
    chain_hash: bytes


class StatementRange(NamedTuple):
    """The operations of a statement: those after ``before``, up to ``end``."""

    before: ChainPoint
    end: ChainPoint


class SigningKey:
    """The key that signs statements. Its seed is 32 bytes."""

    def __init__(self, seed: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # loaded with the first key

        self._private = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = self._private.public_key().public_bytes_raw()
        self.key_id = key_id_of(self.public)

    def sign(self, content: bytes) -> bytes:
        """Return the 64 bytes of a signature."""
        return self._private.sign(content)


@lru_cache(maxsize=4)
def signing_key(seed: bytes) -> SigningKey:
    """Return the key of a seed."""
    return SigningKey(seed)


def key_id_of(public: bytes) -> str:
    """Return a public key's fingerprint (RFC 7638)."""
    named = _encode({"crv": "Ed25519", "kty": "OKP", "x": base64url(public)})
    return base64url(hashlib.sha256(named).digest())


def base64url(raw: bytes) -> str:
    """Encode without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")


class StatementWriter:
    """Writes a statement: :attr:`first_line`, then :meth:`lines` of all its operations, then :meth:`last_line`."""

    def __init__(
        self,
        key: SigningKey,
        part: StatementRange,
        *,
        issuer: str,
        account_id: str,
        since: datetime | None,
        until: datetime | None,
        issued_at: datetime,
    ) -> None:
        self._key = key
        self._part = part
        self.newest = part.before
        """The totals after what was written last."""
        facts = {
            "format": FORMAT,
            "issuer": issuer,
            "account_id": account_id,
            "from": time_or_none(since),
            "to": time_or_none(until),
            "issued_at": format_time(issued_at),
            "key_id": key.key_id,
            "first_number": part.before.number + 1,
            "last_number": part.end.number,
            "hash_before": part.before.chain_hash.hex(),
            "balance_before_micro": part.before.balance_micro,
            "held_before_micro": part.before.held_micro,
            "fields": HASHED_FIELDS,
        }
        content = _encode({"statement": facts})
        self._sha256 = hashlib.sha256(content).hexdigest()
        self.first_line: Final = content + b"\n"

    def lines(self, operations: Iterable[Operation], *, up_to: int) -> bytes:
        """Return the lines of the next operations, of which ``up_to`` is the last. Raises :class:`BrokenChain`."""
        parts: list[bytes] = []
        number, _, _, before = self.newest
        for each in operations:
            content = each.hashed_json()
            computed = hashlib.sha256(before + content)
            before, number = computed.digest(), number + 1
            if each.number != number or each.chain_hash != before:
                raise BrokenChain(f"operation {number} of {each.account_id} does not follow from those before it")
            parts += (b'{"operation":', content, b',"hash":"', computed.hexdigest().encode(), b'"}\n')
            self.newest = ChainPoint(number, each.balance_after_micro, each.held_after_micro, before)
        if number != up_to:
            raise BrokenChain(f"operation {number + 1} is missing")
        return b"".join(parts)

    def last_line(self) -> bytes:
        """Return the last line, after all operations."""
        before, end = self._part
        assert self.newest == end
        facts = {
            "statement_sha256": self._sha256,
            "operations": end.number - before.number,
            "hash": end.chain_hash.hex(),
            "balance_micro": end.balance_micro,
            "held_micro": end.held_micro,
        }
        content = _encode(facts)
        return b'{"end":' + content + b',"signature":"' + self._key.sign(content).hex().encode() + b'"}\n'
