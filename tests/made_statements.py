"""Histories of one account, their signed statements, and every kind of alteration of these."""

from __future__ import annotations

import hashlib
import io
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final, TypeAlias

import msgspec

from holdfast.ledger.credit.account import (
    AccountState,
    decide_adjustment,
    decide_capture,
    decide_credit,
    decide_expiry,
    decide_grant,
    decide_hold,
    decide_release,
    decide_reversal,
)
from holdfast.ledger.credit.operations import CHAIN_START, HASHED_FIELDS, Operation
from holdfast.ledger.credit.signed_statement import (
    ChainPoint,
    SigningKey,
    StatementRange,
    StatementWriter,
    base64url,
)
from holdfast.ledger.credit.verify_statement import Check, Key, read_keys

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
ISSUED: Final = datetime(2026, 11, 20, 12, tzinfo=UTC)
REASONS: Final = (
    "",
    "paid",
    'says "no"',
    "back\\slash",
    "\u00fc\u4e16\U0001f600",
    "tab\tand\nline",
    "\x7f\u2028</x>",
)
KEY: Final = SigningKey(b"\1" * 32)
OTHER_KEY: Final = SigningKey(b"\2" * 32)

Lines: TypeAlias = list[bytes]


def made_history(count: int, seed: int = 0, account_id: str = "acct_1") -> list[Operation]:
    """Return ``count`` operations of every kind, as the ledger decides them."""
    chance = random.Random(seed)
    state, made, at = AccountState(account_id), list[Operation](), START
    while len(made) < count:
        at += timedelta(milliseconds=chance.randrange(120_000))
        number = state.number + 1
        about: dict[str, Any] = {"operation_id": f"op_{account_id}_{number:09d}", "at": at}
        stated = {**about, "reference": f"ord_{number}", "reason": chance.choice(REASONS)}
        some = chance.randrange(9, 10**7)
        expired = state.lots.expired(at)
        kind = chance.choice("cgahhhhssssrx")
        if kind in "cga" and state.balance_micro > 10**8:
            # So that few lots are open.
            continue
        match kind:
            case "c":
                decided: Any = decide_credit(state, amount_micro=some, source="sandbox", **stated)
            case "g":
                end = at + timedelta(minutes=chance.randrange(1, 99))
                decided = decide_grant(state, amount_micro=some, lot_source="grant", expires_at=end, **stated)
            case "a":
                decided = decide_adjustment(state, amount_micro=chance.choice((some, -some // 9)), **stated)
            case "h":
                hold: dict[str, Any] = {
                    "hold_id": f"hold_{number}",
                    "reference": f"task_{number}",
                    "amount_micro": some // 9,
                }
                decided = decide_hold(state, **hold, **about)
            case "s" if state.holds:
                hold_id = chance.choice(list(islice(state.holds, 20)))
                charge_micro = chance.randrange(state.holds[hold_id] + 1)
                decided = (
                    decide_capture(state, hold_id=hold_id, charge_micro=charge_micro, **stated)
                    if chance.random() < 0.7
                    else decide_release(state, hold_id=hold_id, **stated)
                )
            case "r" if chance.random() < 0.5:
                decided = decide_reversal(state, amount_micro=some // 9, source="sandbox", **stated)
            case "x" if expired:
                decided = decide_expiry(state, expired[0], **about)
            case _:
                continue
        if isinstance(decided, Operation):
            state.apply(decided)
            made.append(decided)
    return made


def made_statement(
    history: Sequence[Operation],
    *,
    first: int = 1,
    last: int | None = None,
    operations: Sequence[Operation] | None = None,
    key: SigningKey = KEY,
    issued_at: datetime = ISSUED,
) -> bytes:
    """Return the signed statement of these numbers of a history; ``operations`` are read instead of them."""

    def point(number: int) -> ChainPoint:
        if number == 0:
            return ChainPoint(0, 0, 0, CHAIN_START)
        each = history[number - 1]
        return ChainPoint(each.number, each.balance_after_micro, each.held_after_micro, each.chain_hash)

    last = len(history) if last is None else last
    writer = StatementWriter(
        key,
        StatementRange(point(first - 1), point(last)),
        issuer="https://holdfast.example",
        account_id=history[0].account_id if history else "acct_1",
        since=None,
        until=None,
        issued_at=issued_at,
    )
    found = history[first - 1 : last] if operations is None else operations
    return writer.first_line + writer.lines(found, up_to=last) + writer.last_line()


def key_file(*keys: SigningKey, **members: object) -> bytes:
    """Return the file of public keys, each with these members besides its own."""
    return msgspec.json.encode(
        {
            "keys": [
                {"kty": "OKP", "crv": "Ed25519", "x": base64url(each.public), "kid": each.key_id, **members}
                for each in keys
            ]
        }
    )


def findings(statement: bytes, keys: Mapping[str, Key] | None = None) -> list[str]:
    """Return what the check finds in a statement."""
    return Check(io.BytesIO(statement), dict(read_keys(key_file(KEY)) if keys is None else keys)).findings


# ------------------------------------------------------------------------------------------------- alterations


def changed(line: bytes, change: Callable[[Any], Any]) -> bytes:
    """Return a line whose content was changed and written in the same form."""
    body = json.loads(line)
    name = next(iter(body))
    body[name] = change(body[name])
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def with_field(line: bytes, path: Sequence[int | str], value: object) -> bytes:
    """Return a line one of whose fields was replaced."""

    def change(content: Any) -> Any:
        inner = content
        for step in path[:-1]:
            inner = inner[step]
        assert inner[path[-1]] != value
        inner[path[-1]] = value
        return content

    return changed(line, change)


def rehashed(lines: Lines, start: int) -> Lines:
    """Return lines whose hashes were computed again from that of index ``start`` on, but for the last line."""
    before = json.loads(lines[start - 1])
    digest = bytes.fromhex(before["hash"] if "hash" in before else before["statement"]["hash_before"])
    made = lines[:start]
    for line in lines[start:-1]:
        content = line[len(b'{"operation":') : line.rindex(b',"hash":"')]
        digest = hashlib.sha256(digest + content).digest()
        made.append(b'{"operation":' + content + b',"hash":"' + digest.hex().encode() + b'"}\n')
    return [*made, lines[-1]]


def signed(lines: Lines, key: SigningKey) -> Lines:
    """Return lines whose last one states what they have, and was signed."""
    end = {
        "statement_sha256": hashlib.sha256(lines[0][:-1]).hexdigest(),
        "operations": len(lines) - 2,
        "hash": json.loads(lines[-2])["hash"],
        "balance_micro": json.loads(lines[-2])["operation"][6],
        "held_micro": json.loads(lines[-2])["operation"][7],
    }
    content = msgspec.json.encode(end)
    return [
        *lines[:-1],
        b'{"end":' + content + b',"signature":"' + key.sign(content).hex().encode() + b'"}\n',
    ]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Alteration:
    """An alteration of the lines of a statement: exactly ``words`` are found, with the numbers filled in.

    Line ``k + 1`` has operation ``k``, which is in the middle; ``n`` is the last one.
    """

    name: str
    alter: Callable[[Lines, int], Iterable[bytes]]
    words: tuple[str, ...] = field(default_factory=tuple)


NOT_FOLLOWING = (
    "Line {l}, operation {k}, was altered, or the line before it: by its hash it does not follow from that."
)
NO_LINE = "Line {l} is not a line of a statement: it was altered, added or cut off."
SIGNATURE = "The signature is wrong: the last line was altered, or another key has signed it."
FIRST_LINE = "Line 1 was altered, or the last line: it states another SHA-256 of line 1."
BALANCE = "Line {l}, operation {k}: its balance does not follow from its postings and the balance before it."
SUM = "Line {l}, operation {k}: its postings do not sum to zero."
CUT_OFF = "The statement was cut off after operation {before} of {n}."
NO_FIRST = "Line 1 is not the first line of a statement (holdfast-statement-1), so nothing else was checked."
NO_LINE_FEED = "Line {0} is cut off: no line feed ends it."


def at(k: int, change: Callable[[bytes], bytes], lines: Lines) -> Lines:
    return [*lines[:k], change(lines[k]), *lines[k + 1 :]]


def _fields() -> Iterable[Alteration]:
    """Yield an alteration of each field of an operation."""
    words = {
        "account_id": (NOT_FOLLOWING, "Line {l}, operation {k}, is of another account."),
        "number": ("Line {l}, operation 7777777, was added: the first line states the numbers 1 to {n}.",),
        "postings": (NOT_FOLLOWING, BALANCE),
        "balance_micro": (NOT_FOLLOWING, BALANCE),
        "held_micro": (NOT_FOLLOWING, BALANCE),
    }
    values: dict[str, object] = {
        **dict.fromkeys(("number", "amount_micro", "balance_micro", "held_micro", "at_ms"), 7_777_777),
        "postings": [["available", 5, None], ["revenue", -5, None]],
        "lot": ["paid", "order", 5],
    }
    for index, name in enumerate(HASHED_FIELDS):
        value = values.get(name, "changed")
        found = words.get(name, (NOT_FOLLOWING,))
        if name == "number":
            found = ("Line {l}, operation 7777777, was altered: its number was {k}.",)

        def alter(lines: Lines, k: int, index: int = index, value: object = value) -> Lines:
            return at(k, lambda line: with_field(line, [index], value), lines)

        yield Alteration(name=f"field {name}", alter=alter, words=found)


def _ends() -> Iterable[Alteration]:
    """Yield an alteration of each field of the first and of the last line."""
    first: dict[str, tuple[object, tuple[str, ...]]] = {
        "format": ("holdfast-statement-0", (NO_FIRST,)),
        "issuer": ("https://other.example", (FIRST_LINE,)),
        "account_id": (
            "acct_2",
            (*(f"Line {n + 1}, operation {n}, is of another account." for n in range(1, 21)),
             "More is wrong; the rest was not checked."),
        ),
        "from": ("2026-01-01T00:00:00.000Z", (FIRST_LINE,)),
        "to": ("2026-01-01T00:00:00.000Z", (FIRST_LINE,)),
        "issued_at": ("2026-11-20T12:00:00.001Z", (FIRST_LINE,)),
        "key_id": ("unknown", (FIRST_LINE, "The key is not in the file of keys: unknown")),
        "first_number": (
            2,
            (
                "Line 2, operation 1, was added: the first line states the numbers 2 to {n}.",
                NOT_FOLLOWING.format(l=3, k=2),
                "Line 3, operation 2: its balance does not follow from its postings and the balance before it.",
                FIRST_LINE,
                "The last line states {n} operations, line 1 another number.",
            ),
        ),
        "hash_before": (
            "1" * 64,
            (
                NOT_FOLLOWING.format(l=2, k=1),
                FIRST_LINE,
            ),
        ),
        "balance_before_micro": (
            5,
            (
                "Line 2, operation 1: its balance does not follow from its postings and the balance before it.",
                FIRST_LINE,
            ),
        ),
        "held_before_micro": (
            5,
            (
                "Line 2, operation 1: its balance does not follow from its postings and the balance before it.",
                FIRST_LINE,
            ),
        ),
        "fields": ([], (FIRST_LINE,)),
    }  # fmt: skip
    end: dict[str, tuple[object, tuple[str, ...]]] = {
        "statement_sha256": ("1" * 64, (FIRST_LINE, SIGNATURE)),
        "operations": (7, ("The last line states 7 operations, line 1 another number.", SIGNATURE)),
        "hash": (
            "1" * 64,
            ("The operations were rewritten with their hashes: the last line states another hash.", SIGNATURE),
        ),
        "balance_micro": (7, ("The last line states another balance than the last operation.", SIGNATURE)),
        "held_micro": (-7, ("The last line states another balance than the last operation.", SIGNATURE)),
    }
    for index, facts in ((0, first), (-1, end)):
        for name, (value, words) in facts.items():

            def alter(lines: Lines, k: int, index: int = index, name: str = name, value: object = value) -> Lines:
                return at(index % len(lines), lambda line: with_field(line, [name], value), lines)

            yield Alteration(name=f"{'first' if index == 0 else 'last'} line's {name}", alter=alter, words=words)


def _forged(lines: Lines, k: int) -> Lines:
    """Rewrite an operation so that no sum shows it, and all hashes after it."""
    return rehashed(at(k, lambda line: with_field(line, [10], "forged"), lines), k)


def _own_posting(line: bytes) -> int:
    """Return the place of a posting on a ledger account of the customer's."""
    accounts = [account for account, _, _ in json.loads(line)["operation"][5]]
    return next(place for place, account in enumerate(accounts) if account in ("available", "held"))


ALTERATIONS: Final[tuple[Alteration, ...]] = (
    *_fields(),
    *_ends(),
    Alteration(
        name="an amount in the postings",
        alter=lambda lines, k: at(k, lambda line: with_field(line, [5, _own_posting(line), 1], 5), lines),
        words=(NOT_FOLLOWING, SUM, BALANCE),
    ),
    Alteration(
        name="the hash of an operation",
        alter=lambda lines, k: at(k, lambda line: line[:-67] + b"0" * 64 + line[-3:], lines),
        words=(NOT_FOLLOWING,),
    ),
    Alteration(
        name="an operation and its hash",
        alter=lambda lines, k: [
            *rehashed([*at(k, lambda line: with_field(line, [10], "forged"), lines)[: k + 1], b""], k)[:-1],
            *lines[k + 1 :],
        ],
        words=(
            "Line {m}, operation {after}, was altered, or the line before it: "
            "by its hash it does not follow from that.",
        ),
    ),
    Alteration(
        name="a blank in an operation",
        alter=lambda lines, k: at(k, lambda line: line.replace(b",", b", ", 1), lines),
        words=(NOT_FOLLOWING,),
    ),
    Alteration(
        name="a blank in a line",
        alter=lambda lines, k: at(k, lambda line: b" " + line, lines),
        words=(NO_LINE,),
    ),
    Alteration(
        name="an operation of another form",
        alter=lambda lines, k: at(k, lambda line: with_field(line, [5], [["available", "5", None]]), lines),
        words=(NO_LINE,),
    ),
    Alteration(
        name="the first operation left out",
        alter=lambda lines, k: [lines[0], *lines[2:]],
        words=("Operation 1 is missing after operation 0.",),
    ),
    Alteration(
        name="an operation left out",
        alter=lambda lines, k: [*lines[:k], *lines[k + 1 :]],
        words=("Operation {k} is missing after operation {before}.",),
    ),
    Alteration(
        name="some operations left out",
        alter=lambda lines, k: [*lines[:k], *lines[k + 3 :]],
        words=("Operations {k} to {k2} are missing after operation {before}.",),
    ),
    Alteration(
        name="the last operation left out",
        alter=lambda lines, k: [*lines[:-2], lines[-1]],
        words=("Operation {n} is missing after operation {n1}.",),
    ),
    Alteration(
        name="the first line left out",
        alter=lambda lines, k: lines[1:],
        words=(NO_FIRST,),
    ),
    Alteration(
        name="an operation repeated",
        alter=lambda lines, k: [*lines[: k + 1], *lines[k:]],
        words=("Line {m}, operation {k}, was added: this operation is there twice.",),
    ),
    Alteration(
        name="an operation repeated later",
        alter=lambda lines, k: [*lines[: k + 3], lines[k], *lines[k + 3 :]],
        words=("Line {m3}, operation {k}, was added: this operation is there twice.",),
    ),
    Alteration(
        name="an operation of another number inserted",
        alter=lambda lines, k: [*lines[:k], with_field(lines[k], [1], 7_777_777), *lines[k:]],
        words=("Line {l}, operation 7777777, was added: the first line states the numbers 1 to {n}.",),
    ),
    Alteration(
        name="an operation added at the end",
        alter=lambda lines, k: rehashed(
            [*lines[:-1], with_field(lines[-2], [1], len(lines) - 1), lines[-1]], len(lines) - 1
        ),
        words=("Line {n2}, operation {n_1}, was added: the first line states the numbers 1 to {n}.",),
    ),
    Alteration(
        name="two operations swapped",
        alter=lambda lines, k: [*lines[:k], lines[k + 1], lines[k], *lines[k + 2 :]],
        words=(
            "Line {l}, operation {after}, is not in its place: "
            "it was added, or the order of the lines was changed.",
            "Operation {after} is missing after operation {k}.",
        ),
    ),
    Alteration(
        name="an operation moved to the end",
        alter=lambda lines, k: [*lines[:k], *lines[k + 1 : -1], lines[k], lines[-1]],
        words=(
            "Operation {k} is missing after operation {before}.",
            "Line {n1_}, operation {k}, is not in its place: the order of the lines was changed.",
        ),
    ),
    Alteration(
        name="a blank line",
        alter=lambda lines, k: [*lines[:k], b"\n", *lines[k:]],
        words=(NO_LINE,),
    ),
    Alteration(
        name="a line after the last",
        alter=lambda lines, k: [*lines, b"\n"],
        words=("Line {n3} was added: it follows the last line of the statement.",),
    ),
    Alteration(
        name="the last line twice",
        alter=lambda lines, k: [*lines, lines[-1]],
        words=("Line {n3} was added: it follows the last line of the statement.",),
    ),
    Alteration(name="cut off between lines", alter=lambda lines, k: lines[:k], words=(CUT_OFF,)),
    Alteration(
        name="cut off within a line",
        alter=lambda lines, k: [*lines[:k], lines[k][:40]],
        words=("Line {l} is cut off: no line feed ends it.", NO_LINE, CUT_OFF),
    ),
    Alteration(
        name="the last line feed cut off",
        alter=lambda lines, k: [*lines[:-1], lines[-1][:-1]],
        words=("Line {n2} is cut off: no line feed ends it.",),
    ),
    Alteration(
        name="the last line cut off",
        alter=lambda lines, k: lines[:-1],
        words=("The statement was cut off after operation {n} of {n}.",),
    ),
    Alteration(
        name="CR LF",
        alter=lambda lines, k: [line[:-1] + b"\r\n" for line in lines],
        words=("Line 1 ends with CR LF, not LF: a program has saved the file again.",),
    ),
    Alteration(
        name="one CR LF",
        alter=lambda lines, k: at(k, lambda line: line[:-1] + b"\r\n", lines),
        words=("Line {l} ends with CR LF, not LF: a program has saved the file again.",),
    ),
    Alteration(
        name="a byte order mark",
        alter=lambda lines, k: [b"\xef\xbb\xbf", *lines],
        words=("The file begins with a byte order mark: a program has saved it again.",),
    ),
    Alteration(
        name="UTF-16",
        alter=lambda lines, k: ["".join(line.decode() for line in lines).encode("utf-16")],
        words=(NO_FIRST,),
    ),
    Alteration(
        name="rewritten with its hashes",
        alter=_forged,
        words=("The operations were rewritten with their hashes: the last line states another hash.",),
    ),
    Alteration(
        name="rewritten, with the last line",
        alter=lambda lines, k: [*signed(_forged(lines, k), KEY)[:-1],
                                signed(_forged(lines, k), KEY)[-1][:-131] + lines[-1][-131:]],
        words=(SIGNATURE,),
    ),
    Alteration(
        name="signed by another key",
        alter=lambda lines, k: signed(_forged(lines, k), OTHER_KEY),
        words=(SIGNATURE,),
    ),
    Alteration(
        name="signed by another key of its own name",
        alter=lambda lines, k: signed(
            at(0, lambda line: with_field(line, ["key_id"], OTHER_KEY.key_id), lines), OTHER_KEY
        ),
        words=(f"The key is not in the file of keys: {OTHER_KEY.key_id}",),
    ),
    Alteration(
        name="the signature",
        alter=lambda lines, k: [*lines[:-1], lines[-1][:-131] + b"0" * 128 + lines[-1][-3:]],
        words=(SIGNATURE,),
    ),
    Alteration(
        name="the signature in capitals",
        alter=lambda lines, k: [*lines[:-1], lines[-1][:-131] + lines[-1][-131:-3].upper() + lines[-1][-3:]],
        words=("Line {n2} is not a line of a statement: it was altered, added or cut off.",
               "The statement was cut off after operation {n} of {n}."),
    ),
    Alteration(name="nothing left", alter=lambda lines, k: [], words=(NO_FIRST,)),
)  # fmt: skip


def expected(alteration: Alteration, *, k: int, n: int) -> list[str]:
    """Return what is found of an alteration at operation ``k`` of ``n``."""
    numbers = {
        "k": k, "l": k + 1, "m": k + 2, "m3": k + 4, "before": k - 1, "after": k + 1, "k2": k + 2,
        "n": n, "n1": n - 1, "n_1": n + 1, "n1_": n + 1, "n2": n + 2, "n3": n + 3,
    }  # fmt: skip
    return [words.format(**numbers) for words in alteration.words]
