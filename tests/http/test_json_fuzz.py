"""Random bodies: decoded as the reference decoder does, or refused for a known reason.

``FUZZ_S=300`` goes on for five minutes from a seed of its own, which is printed; ``FUZZ_SEED`` repeats one.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.http.kit.bodies import NESTING_MAX, fingerprint, parse_object
from holdfast.ledger.refusals import Refusal

ROUNDS = 4_000
VALUES_MAX = 120
PIECES = (
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b'"a"', b'"a":', b'{"a":1}', b"[1,2]", b"null", b"true", b"0",
    b"-1", b"1e5", b"1e400", b"-0.0", b"9223372036854775807", b"9223372036854775808", b"18446744073709551616",
    b"NaN", b"-Infinity", b"\\u0000", b"\\ud800", b"\\ud83d\\ude00", b"\\u0061", b"\\n", b"\x00", b"\n", b" ",
    b"\xff", b"\xc3\xa9",
    b"\xed\xa0\x80", b"\xef\xbb\xbf", b'"\\\\"', b"1" * 40, b"0.1" + b"3" * 60, b"[" * 66, b"]" * 66, b'{"a":' * 66,
)  # fmt: skip
BODIES = (
    b'{"model":"studio/image-1","input":{"prompt":"a lighthouse, at dusk","n":2},"metadata":{"a":"b"}}',
    b'{"email":"ada@example.com","otp_id":"otp_1","otp":"123456"}',
    b'{"a":[1,2.5,true,null,{"b":[[],{}]},"\\u00e9\\\\"],"c":"\\"[{,"}',
    b'{"deep":' + b"[" * 60 + b"1" + b"]" * 60 + b"}",
)


def mutated(rng: random.Random) -> bytes:
    """A body with a few pieces put in, taken out, repeated or changed."""
    raw = bytearray(rng.choice(BODIES))
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(raw) + 1)
        end = min(len(raw), at + rng.randint(0, 12))
        match rng.randrange(5):
            case 0:
                raw[at:at] = rng.choice(PIECES)
            case 1:
                raw[at:end] = rng.choice(PIECES)
            case 2:
                del raw[at:end]
            case 3:
                raw[at:at] = raw[at:end] * rng.randint(1, 30)
            case _:
                raw[at:at] = bytes([rng.randrange(256)])
    return bytes(raw)


def parts(value: Any, depth: int = 1) -> Iterator[tuple[Any, int]]:
    """Every value and key, with the number of objects and lists it stands in."""
    yield value, depth
    if isinstance(value, dict):
        for key, below in value.items():
            yield key, depth
            yield from parts(below, depth + 1)
    elif isinstance(value, list):
        for below in value:
            yield from parts(below, depth + 1)


def reasons(raw: bytes) -> set[str]:
    """Why a body may be refused, found the slow way and by other means."""
    found: set[str] = set()

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            found.add("a key twice")
        return dict(pairs)

    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
        msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        return {"not JSON"}
    if not isinstance(value, dict):
        found.add("no object")
    every = list(parts(value))
    # Keys are among them, and empty lists and objects count for two.
    if 2 * len(every) > VALUES_MAX:
        found.add("values")
    for part, depth in every:
        if isinstance(part, dict | list) and depth > NESTING_MAX:
            found.add("depth")
        if isinstance(part, str) and ("\0" in part or any("\ud800" <= sign <= "\udfff" for sign in part)):
            found.add("text")
        if isinstance(part, int) and not -(2**63) <= part < 2**63:
            found.add("integer")
        if isinstance(part, float) and not abs(part) < float("inf"):
            found.add("number")
    return found


def check(raw: bytes) -> bool:
    """Judge one body; whether it was taken."""
    parsed = parse_object(raw, values_max=VALUES_MAX)
    expected = reasons(raw)
    if isinstance(parsed, Refusal):
        assert parsed.code == "invalid_json"
        assert expected, raw
        return False
    assert expected <= {"values"}, raw
    assert parsed == json.loads(raw)
    assert fingerprint("/a", parsed) == fingerprint("/a", json.loads(json.dumps(parsed)))
    return True


def test_decoding_agrees_with_the_reference() -> None:
    fuzz_s = float(os.environ.get("FUZZ_S", "0"))
    seed = int(os.environ.get("FUZZ_SEED", random.randrange(2**32) if fuzz_s else 20261121))
    rng, end_s, rounds, taken = random.Random(seed), time.monotonic() + fuzz_s, 0, 0
    print(f"FUZZ_SEED={seed}")  # noqa: T201 - shown where the test fails, or with -s
    while rounds < ROUNDS or time.monotonic() < end_s:
        rounds += 1
        taken += check(mutated(rng))
    print(f"{rounds} bodies, {taken} taken")  # noqa: T201
    assert rounds // 50 < taken < rounds
