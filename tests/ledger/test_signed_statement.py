"""A signed statement proves itself: what was altered is named, and nothing else."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import os
import random
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import settings as with_settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.made_statements import (
    ALTERATIONS,
    ISSUED,
    KEY,
    OTHER_KEY,
    Alteration,
    expected,
    findings,
    key_file,
    made_history,
    made_statement,
)

from holdfast.ledger.credit import verify_statement
from holdfast.ledger.credit.operations import CHAIN_START, HASHED_FIELDS
from holdfast.ledger.credit.signed_statement import BrokenChain
from holdfast.ledger.credit.verify_statement import ORDER, Check, compare, is_signature, read_keys

PROGRAM = Path(verify_statement.__file__)
COUNT, MIDDLE = 60, 30
HISTORY = made_history(COUNT)
STATEMENT = made_statement(HISTORY)
LINES = STATEMENT.splitlines(keepends=True)


def check(statement: bytes) -> Check:
    return Check(io.BytesIO(statement), read_keys(key_file(KEY)))


def test_an_unaltered_statement_has_no_findings() -> None:
    checked = check(STATEMENT)
    assert checked.findings == []
    assert checked.number == COUNT
    assert {each.kind for each in made_history(400)} == {
        "credit", "hold", "capture", "release", "reversal", "adjustment", "grant", "expiry",
    }  # fmt: skip


def test_the_lines_are_what_the_chain_of_the_account_hashes() -> None:
    first, *operations, last = LINES
    about = json.loads(first)["statement"]
    assert tuple(about["fields"]) == HASHED_FIELDS
    head = CHAIN_START
    for line, operation in zip(operations, HISTORY, strict=True):
        content = line[len(b'{"operation":') : -len(',"hash":""}\n') - 64]
        head = hashlib.sha256(head + content).digest()
        values = dict(zip(about["fields"], json.loads(content), strict=True))
        assert head == operation.chain_hash == bytes.fromhex(json.loads(line)["hash"])
        assert values["balance_micro"] == operation.balance_after_micro
        assert values["reason"] == operation.reason
    assert json.loads(last)["end"] == {
        "statement_sha256": hashlib.sha256(first.removesuffix(b"\n")).hexdigest(),
        "operations": COUNT,
        "hash": head.hex(),
        "balance_micro": HISTORY[-1].balance_after_micro,
        "held_micro": HISTORY[-1].held_after_micro,
    }


@pytest.mark.parametrize("alteration", ALTERATIONS, ids=lambda each: each.name)
def test_each_alteration_is_named_and_nothing_else(alteration: Alteration) -> None:
    altered = b"".join(alteration.alter(list(LINES), MIDDLE))
    assert altered != STATEMENT
    assert findings(altered) == expected(alteration, k=MIDDLE, n=COUNT)


@given(seed=st.integers(0, 2**32), count=st.integers(0, 40), data=st.data())
@with_settings(max_examples=25)
def test_no_part_of_any_history_is_found_falsely(seed: int, count: int, data: st.DataObject) -> None:
    history = made_history(count, seed)
    first = data.draw(st.integers(1, count + 1))
    last = data.draw(st.integers(first - 1, count))
    assert findings(made_statement(history, first=first, last=last)) == []


@given(place=st.integers(0, len(STATEMENT) - 1), byte=st.integers(0, 255))
@with_settings(max_examples=120)
def test_every_changed_byte_is_found(place: int, byte: int) -> None:
    altered = STATEMENT[:place] + bytes([byte]) + STATEMENT[place + 1 :]
    assert bool(findings(altered)) == (altered != STATEMENT)


@given(st.binary(max_size=200), st.integers(0, len(STATEMENT)), st.integers(0, 300))
@with_settings(max_examples=80)
def test_every_replaced_part_is_found(part: bytes, start: int, length: int) -> None:
    altered = STATEMENT[:start] + part + STATEMENT[start + length :]
    assert bool(findings(altered)) == (altered != STATEMENT)


@given(st.permutations(LINES[1:-1]))
@with_settings(max_examples=20)
def test_every_order_of_the_lines_but_one_is_found(lines: list[bytes]) -> None:
    altered = b"".join([LINES[0], *lines, LINES[-1]])
    assert bool(findings(altered)) == (altered != STATEMENT)


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"\n",
        b"\0" * 1000,
        b"[" * 100_000,
        b'{"statement":' + b"[" * 100_000 + b"}\n",
        LINES[0] + b'{"operation":' + b"[" * 100_000 + b',"hash":"' + b"0" * 64 + b'"}\n',
        LINES[0] + b'{"operation":[' + b"1" * 10_000 + b'],"hash":"' + b"0" * 64 + b'"}\n',
        LINES[0] + b'{"operation":["acct_1",1,"","",1,[[[],1,1]],1,1],"hash":"' + b"0" * 64 + b'"}\n',
        LINES[0] + b'{"operation":["\xff"],"hash":"' + b"0" * 64 + b'"}\n',
        LINES[0].replace(b'"hash_before":"00', b'"hash_before":"zz') + b"".join(LINES[1:]),
        LINES[0].replace(b'"first_number":1', b'"first_number":true') + b"".join(LINES[1:]),
        LINES[0].replace(b'"first_number":1', b'"first_number":' + b"9" * 4000) + b"".join(LINES[1:]),
        LINES[0].replace(b'"issued_at":"2026', b'"issued_at":"never') + b"".join(LINES[1:]),
        LINES[0].replace(b'Z","key', b'","key') + b"".join(LINES[1:]),
        b"".join(LINES[:-1]) + b'{"end":{},"signature":"' + b"0" * 128 + b'"}\n',
        b"".join(LINES[:-1]) + b'{"end":[],"signature":"' + b"0" * 128 + b'"}\n',
        LINES[0] + b"x\n" * 100_000,
    ],
)
def test_garbage_has_findings_and_raises_nothing(garbage: bytes) -> None:
    assert 0 < len(findings(garbage)) <= verify_statement.FINDINGS_MAX + 1


def test_a_line_without_an_end_is_not_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_statement, "LINE_BYTES_MAX", 1000)
    assert findings(LINES[0] + b"x" * 50_000)[-1] == "More is wrong; the rest was not checked."


def test_a_history_that_does_not_follow_is_not_signed() -> None:
    history = list(HISTORY)
    history[MIDDLE] = replace(history[MIDDLE], reason="forged")
    with pytest.raises(BrokenChain, match=f"operation {MIDDLE + 1} of acct_1 does not follow"):
        made_statement(history)
    without = HISTORY[:MIDDLE] + HISTORY[MIDDLE + 1 :]
    with pytest.raises(BrokenChain, match=f"operation {MIDDLE + 1} of acct_1 does not follow"):
        made_statement(without)
    with pytest.raises(BrokenChain, match=f"operation {COUNT} is missing"):
        made_statement(HISTORY, operations=HISTORY[:-1])


# ------------------------------------------------------------------------------------------ keys and signatures


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=300), st.integers(0, 511))
@with_settings(max_examples=25)
def test_signatures_are_those_of_another_implementation(seed: bytes, message: bytes, bit: int) -> None:
    private = Ed25519PrivateKey.from_private_bytes(seed)
    public, signature = private.public_key().public_bytes_raw(), private.sign(message)
    assert is_signature(signature, message, public)
    assert not is_signature(signature, message + b"x", public)
    changed = bytearray(signature)
    changed[bit // 8] ^= 1 << bit % 8
    assert not is_signature(bytes(changed), message, public)
    # The same number modulo the order of the group is not a second signature.
    s = int.from_bytes(signature[32:], "little") + ORDER
    assert not is_signature(signature[:32] + s.to_bytes(32, "little"), message, public)


def test_the_vector_of_the_standard() -> None:
    """RFC 8032, 7.1, test 3."""
    public = bytes.fromhex("fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025")
    signature = bytes.fromhex(
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
    )
    assert is_signature(signature, b"\xaf\x82", public)
    assert not is_signature(signature, b"\xaf\x83", public)
    assert not is_signature(signature[:63], b"\xaf\x82", public)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({}, None),
        ({"valid_from": None, "valid_until": None}, None),
        ({"valid_from": "2026-11-20T12:00:00.000Z", "valid_until": "2026-11-20T12:00:00.000Z"}, None),
        ({"valid_from": "2026-11-20T12:00:00.001Z"}, "not valid"),
        ({"valid_until": "2026-11-20T11:59:59.999Z"}, "not valid"),
    ],
)
def test_a_key_is_valid_for_a_time(members: dict[str, Any], words: str | None) -> None:
    found = findings(STATEMENT, read_keys(key_file(OTHER_KEY, KEY, **members)))
    if words is None:
        assert found == []
    else:
        when = "2026-11-20T12:00:00.000Z"
        assert found == [f"The key was not valid when the statement says that it was issued: {when}"]


def test_another_key_under_the_same_id_is_refused() -> None:
    mixed = key_file(KEY).replace(KEY.key_id.encode(), OTHER_KEY.key_id.encode())
    with pytest.raises(ValueError, match="its id is not its fingerprint"):
        read_keys(mixed)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"keys":[1]}',
        b'{"keys":[{}]}',
        b'{"keys":5}',
        b"[" * 99_999,
        b"\xff",
        key_file(KEY)[:-5],
        key_file(KEY, valid_from=5),
        key_file(KEY, valid_from="x"),
        key_file(KEY).replace(b'"x":"', b'"x":"*\xc3\xbc'),
    ],
)
def test_what_is_no_file_of_keys_is_refused_in_words(content: bytes) -> None:
    with pytest.raises(ValueError):
        read_keys(content)


# ---------------------------------------------------------------------------------------------- two statements


def compared(older: bytes, newer: bytes) -> list[str]:
    assert findings(older) == findings(newer) == []
    return compare(io.BytesIO(older), io.BytesIO(newer))


def test_a_newer_statement_has_what_an_older_one_had() -> None:
    older = made_statement(HISTORY, last=MIDDLE)
    assert compared(older, STATEMENT) == compared(STATEMENT, STATEMENT) == []
    assert compared(older, made_statement(HISTORY, first=MIDDLE + 1)) == []
    assert compared(older, made_statement(HISTORY, first=10)) == []
    assert compared(made_statement(HISTORY, first=10, last=MIDDLE), STATEMENT) == []
    assert compared(made_statement([]), STATEMENT) == []


def test_what_was_signed_once_cannot_be_rewritten() -> None:
    """The service itself signs another history: each statement is valid, both are not."""
    other = made_history(COUNT, seed=1)
    older = made_statement(HISTORY, last=MIDDLE)
    rewritten = "Operation {}, or one before it, is another one in the newer statement."
    assert compared(older, made_statement(other)) == [rewritten.format(1)]
    assert compared(older, made_statement(other, first=10)) == [rewritten.format(9)]
    assert compared(older, made_statement(other, first=MIDDLE + 1)) == [rewritten.format(MIDDLE)]
    left_out = f"Operation {MIDDLE + 1} and those after it are not in the newer statement any more."
    assert compared(STATEMENT, older) == [left_out]
    gap = "The newer statement begins later than the older one ends; what is between is missing."
    assert compared(older, made_statement(HISTORY, first=MIDDLE + 2)) == [gap]


# ------------------------------------------------------------------------------------------------- the program


def run(*words: str | Path, cwd: Path) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-I", "-S", *words], cwd=cwd, capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


def test_the_program_runs_alone(tmp_path: Path) -> None:
    program = tmp_path / "verify_statement.py"
    program.write_bytes(PROGRAM.read_bytes())
    (tmp_path / "keys.json").write_bytes(key_file(KEY))
    (tmp_path / "old.jsonl").write_bytes(made_statement(HISTORY, last=MIDDLE))
    (tmp_path / "new.jsonl").write_bytes(STATEMENT)
    (tmp_path / "cut.jsonl").write_bytes(b"".join(LINES[:11]))
    keys = ("--keys", "keys.json")
    code, out, err = run(program, "new.jsonl", *keys, cwd=tmp_path)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "Nothing was altered."
    assert "account acct_1, operations 1 to 60, balance " in out
    assert run(program, "old.jsonl", "new.jsonl", *keys, cwd=tmp_path)[0] == 0
    code, out, err = run(program, "new.jsonl", "old.jsonl", *keys, cwd=tmp_path)
    assert (code, err) == (1, "")
    assert out.splitlines()[-1].startswith("Operation 31 and those after it are not in the newer")
    code, out, err = run(program, "cut.jsonl", *keys, cwd=tmp_path)
    assert (code, out, err) == (1, "cut.jsonl: The statement was cut off after operation 10 of 60.\n", "")
    for words in (("none.jsonl", *keys), (".", *keys), ("new.jsonl", "--keys", "new.jsonl"), ("new.jsonl",)):
        code, out, err = run(program, *words, cwd=tmp_path)
        assert (code, out) == (2, "")
        assert "Traceback" not in err
        assert err


def test_the_program_is_plain_python_of_older_versions() -> None:
    tree = ast.parse(PROGRAM.read_text("utf-8"), feature_version=(3, 9))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([each.name for each in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }
    assert imported <= sys.stdlib_module_names


@pytest.mark.slow
def test_many_operations_altered_in_every_way() -> None:
    count = int(os.environ.get("STATEMENT_OPERATIONS", "5000"))
    statement = made_statement(made_history(count, seed=5))
    lines = statement.splitlines(keepends=True)
    assert findings(statement) == []
    for alteration in ALTERATIONS:
        k = random.Random(alteration.name).randrange(100, count - 100)
        altered = b"".join(alteration.alter(list(lines), k))
        assert findings(altered) == expected(alteration, k=k, n=count), alteration.name


@pytest.mark.slow
@given(seed=st.integers(0, 2**32), count=st.integers(1, 60))
@with_settings(max_examples=2000)
def test_thousands_of_statements_are_found_unaltered(seed: int, count: int) -> None:
    assert findings(made_statement(made_history(count, seed), issued_at=ISSUED + timedelta(seconds=seed))) == []
