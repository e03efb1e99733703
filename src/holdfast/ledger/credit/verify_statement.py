"""Check a signed statement of a prepaid account: python verify_statement.py FILE [NEWER] --keys KEYS

This needs Python 3.9 or newer and nothing else: no network, and not the service that issued the statement. KEYS is
the service's file of public keys; keep a copy of your own. Exit codes: 0 the statement is as it was signed, 1 it is
not, 2 a file cannot be read.

A statement is a text file. Its lines are JSON, and each ends with a line feed:

    {"statement":{…}}                  the first: whose, which numbers, and the totals and the hash before them
    {"operation":[…],"hash":"…"}       one for each operation, in the order of their numbers
    {"end":{…},"signature":"…"}        the last: how many, the totals and the hash after them, line 1's SHA-256

An operation's hash is the SHA-256 of the hash before it (32 bytes) and of the bytes of its JSON, from "[" to "]".
So the last hash covers all operations, and the signature, Ed25519 of the bytes of the last line's {…}, the file.
Two statements are compared, too: what was signed once must still be in the newer one, unchanged.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

FORMAT = "holdfast-statement-1"
LINE_BYTES_MAX = 16 * 1024 * 1024
FINDINGS_MAX = 20
FIRST = re.compile(rb'\{"statement":(\{.*\})\}')
OPERATION = re.compile(rb'\{"operation":(\[.*\]),"hash":"([0-9a-f]{64})"\}')
END = re.compile(rb'\{"end":(\{.*\}),"signature":"([0-9a-f]{128})"\}')
HASH = re.compile("[0-9a-f]{64}")
FIRST_FIELDS = {
    **dict.fromkeys(("format", "account_id", "issued_at", "key_id", "hash_before"), str),
    **dict.fromkeys(("first_number", "last_number", "balance_before_micro", "held_before_micro"), int),
}
END_FIELDS = {"statement_sha256": str, "operations": int, "hash": str, "balance_micro": int, "held_micro": int}

# --------------------------------------------------------------------------------- Ed25519, as RFC 8032 defines it

Point = tuple[int, int, int, int]  # X, Y, Z, T with x = X/Z, y = Y/Z, x*y = T/Z
P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
ROOT_OF_MINUS_1 = pow(2, (P - 1) // 4, P)


def add(p: Point, q: Point) -> Point:
    """Add two points of the curve (RFC 8032, 5.1.4)."""
    a, b = (p[1] - p[0]) * (q[1] - q[0]) % P, (p[1] + p[0]) * (q[1] + q[0]) % P
    c, d = 2 * p[3] * q[3] * D % P, 2 * p[2] * q[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def multiply(factor: int, point: Point) -> Point:
    """Add a point to itself, `factor` times in all."""
    total = (0, 1, 1, 0)
    while factor:
        if factor & 1:
            total = add(total, point)
        point = add(point, point)
        factor >>= 1
    return total


def point_of(encoded: bytes) -> Point | None:
    """Return the point that 32 bytes encode (RFC 8032, 5.1.3), or None."""
    y = int.from_bytes(encoded, "little")
    is_odd, y = y >> 255, y & (2**255 - 1)
    if y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * ROOT_OF_MINUS_1 % P
    if (x * x - square) % P or (x == 0 and is_odd):
        return None
    if x & 1 != is_odd:
        x = P - x
    return x, y, 1, x * y % P


BASE = point_of((4 * pow(5, -1, P) % P).to_bytes(32, "little"))


def is_signature(signature: bytes, message: bytes, public_key: bytes) -> bool:
    """Whether a signature of a message was made with the private half of a public key (RFC 8032, 5.1.7)."""
    key, r, s = point_of(public_key), point_of(signature[:32]), int.from_bytes(signature[32:], "little")
    if key is None or r is None or BASE is None or len(signature) != 64 or s >= ORDER:
        return False
    k = int.from_bytes(hashlib.sha512(signature[:32] + public_key + message).digest(), "little") % ORDER
    left, right = multiply(s, BASE), add(r, multiply(k, key))
    return (left[0] * right[2] - right[0] * left[2]) % P == 0 == (left[1] * right[2] - right[1] * left[2]) % P


# ------------------------------------------------------------------------------------------------- the public keys


class Key(NamedTuple):
    """A public key, and from when until when the service has signed with it; None is not yet."""

    public: bytes
    valid_from: datetime | None
    valid_until: datetime | None


def read_keys(content: bytes) -> dict[str, Key]:
    """Read the public keys, a JSON Web Key Set; a key's id is its fingerprint (RFC 7638). Raises ValueError."""
    keys = {}
    try:
        for each in json.loads(content)["keys"]:
            named = json.dumps({name: each[name] for name in ("crv", "kty", "x")}, separators=(",", ":"))
            public = base64.urlsafe_b64decode(each["x"] + "=")
            digest = base64.urlsafe_b64encode(hashlib.sha256(named.encode()).digest()).decode()
            if (each["kty"], each["crv"], len(public), each["kid"] + "=") != ("OKP", "Ed25519", 32, digest):
                raise ValueError("one of the keys is not an Ed25519 key, or its id is not its fingerprint")
            keys[each["kid"]] = Key(public, time_of(each.get("valid_from")), time_of(each.get("valid_until")))
    except (KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("the file of keys is not a JSON Web Key Set") from None
    return keys


def time_of(text: str | None) -> datetime | None:
    """Read a time as 2026-11-20T18:40:00.123Z. Raises ValueError."""
    return None if text is None else datetime.fromisoformat(text.replace("Z", "+00:00"))


# --------------------------------------------------------------------------------------------------- the statement


class OperationLine(NamedTuple):
    """A line with an operation: its number in the file, its JSON, its hash as it states it, and what is checked."""

    line: int
    content: bytes
    hash: str
    account_id: str
    number: int
    postings: list[Any]
    totals: tuple[int, int]  # the balance and what is held, after it
    unreadable: int  # how many lines just before it are none


class TooMuchError(Exception):
    """So much is wrong that reading on says nothing new."""


class Check:
    """The check of one statement: `findings` says in words what is wrong with it; if it is empty, nothing is.

    `first` and `end` are what the first and the last line state, as far as they can be read.
    """

    def __init__(self, file: BinaryIO, keys: dict[str, Key]) -> None:
        self.findings: list[str] = []
        self.first: dict[str, Any] = {}
        self.end: dict[str, Any] = {}
        self.end_line = (b"", b"")
        self.lines = 0
        self.unreadable = 0  # lines that are none since the last one that was read
        self.gaps: list[range] = []
        try:
            lines = self.read_lines(file)
            line = next(lines, b"")
            self.first = object_of(FIRST, line, FIRST_FIELDS)
            if not self.first or self.first["format"] != FORMAT or not HASH.fullmatch(self.first["hash_before"]):
                self.first = {}
                self.found(f"Line 1 is not the first line of a statement ({FORMAT}), so nothing else was checked.")
                return
            self.number = self.first["first_number"] - 1
            self.hashes = {self.first["hash_before"]}
            self.totals: tuple[int, int] | None = (
                self.first["balance_before_micro"], self.first["held_before_micro"]
            )  # fmt: skip
            self.check_operations(self.read_operations(lines))
            self.check_end(line)
            self.check_signature(keys)
        except TooMuchError:
            self.findings.append("More is wrong; the rest was not checked.")

    def found(self, what: str) -> None:
        """Add a finding."""
        self.findings.append(what)
        if len(self.findings) == FINDINGS_MAX:
            raise TooMuchError

    def read_lines(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield the lines without their ends; say if an end, or the beginning, is not the service's."""
        returns = 0
        while line := file.readline(LINE_BYTES_MAX):
            self.lines += 1
            if self.lines == 1 and line.startswith(b"\xef\xbb\xbf"):
                self.found("The file begins with a byte order mark: a program has saved it again.")
                line = line[3:]
            if not line.endswith(b"\n"):
                self.found(f"Line {self.lines} is cut off: no line feed ends it.")
            elif line.endswith(b"\r\n"):
                returns += 1
                if returns == 1:
                    self.found(f"Line {self.lines} ends with CR LF, not LF: a program has saved the file again.")
                line = line[:-2]
            yield line[:-1] if line.endswith(b"\n") else line

    def read_operations(self, lines: Iterator[bytes]) -> Iterator[OperationLine]:
        """Yield the operations until the last line of the statement; say what is none, and what follows that."""
        for line in lines:
            match, end = OPERATION.fullmatch(line), END.fullmatch(line)
            values: Any = json_of(match[1]) if match else None
            if self.end:
                self.found(f"Line {self.lines} was added: it follows the last line of the statement.")
                return
            if match and is_operation(values):
                account_id, number, _, _, _, postings, balance, held, *_ = values
                checked, unreadable, self.unreadable = (account_id, number, postings), self.unreadable, 0
                yield OperationLine(self.lines, match[1], match[2].decode(), *checked, (balance, held), unreadable)
            elif end and (fields := object_of(END, line, END_FIELDS)):
                self.end, self.end_line = fields, (end[1], end[2])
            else:
                self.unreadable += 1
                self.found(f"Line {self.lines} is not a line of a statement: it was altered, added or cut off.")

    def check_operations(self, operations: Iterator[OperationLine]) -> None:
        """Check the order of the operations, and that each which comes next follows from the one before it."""
        each = next(operations, None)
        while each is not None:
            after = next(operations, None)
            if self.is_in_place(each, after):
                self.check_next(each)
            each = after
        last = self.first["last_number"]
        if not self.end:
            self.found(f"The statement was cut off after operation {self.number} of {last}.")
        else:
            self.check_gap(self.number + 1, last + 1, self.unreadable)

    def is_in_place(self, each: OperationLine, after: OperationLine | None) -> bool:
        """Whether an operation is the next one; if not, say why, for which the line after it is needed, too."""
        what, due = f"Line {each.line}, operation {each.number}", self.number + 1
        first, last = self.first["first_number"], self.first["last_number"]
        if each.number == due <= last:
            return True
        is_followed = self.end.get("hash") == each.hash
        if after:
            is_followed = hash_after(each.hash, after.content) == after.hash
        number_after = after.number if after else last + 1
        if is_followed and number_after == due + 1 <= last + 1:
            self.found(f"{what}, was altered: its number was {due}.")
            self.go_on(each, due)
        elif not first <= each.number <= last:
            self.found(f"{what}, was added: the first line states the numbers {first} to {last}.")
        elif any(each.number in gap for gap in self.gaps):
            self.found(f"{what}, is not in its place: the order of the lines was changed.")
        elif each.number < due:
            self.found(f"{what}, was added: this operation is there twice.")
        elif number_after == due:
            self.found(f"{what}, is not in its place: it was added, or the order of the lines was changed.")
        else:
            # What came before it is not known: it is checked by those that follow.
            self.check_gap(due, each.number, each.unreadable)
            self.go_on(each, each.number)
        return False

    def go_on(self, each: OperationLine, number: int) -> None:
        """Check the next operation against this one, as it is."""
        self.number, self.hashes, self.totals = number, {each.hash}, each.totals

    def check_gap(self, start: int, stop: int, unreadable: int) -> None:
        """Say which operations are missing, unless there are as many lines that could not be read."""
        if start < stop and stop - start != unreadable:
            self.gaps.append(range(start, stop))
            which = f"Operation {start} is" if stop == start + 1 else f"Operations {start} to {stop - 1} are"
            self.found(f"{which} missing after operation {start - 1}.")

    def check_next(self, each: OperationLine) -> None:
        """Check the next operation against the one before it: its hash, and that its totals follow."""
        what, count = f"Line {each.line}, operation {each.number}", len(self.findings)
        computed = {hash_after(before, each.content) for before in self.hashes}
        if each.hash not in computed:
            self.found(f"{what}, was altered, or the line before it: by its hash it does not follow from that.")
        if each.account_id != self.first["account_id"]:
            self.found(f"{what}, is of another account.")
        moved = {"available": 0, "held": 0, "": 0}
        for account, micro, _ in each.postings:
            moved[account if account in moved else ""] += micro
        if sum(moved.values()) != 0:
            self.found(f"{what}: its postings do not sum to zero.")
        del moved[""]
        if self.totals and (self.totals[0] + sum(moved.values()), self.totals[1] + moved["held"]) != each.totals:
            self.found(f"{what}: its balance does not follow from its postings and the balance before it.")
        self.go_on(each, each.number)
        # If only the hash was altered, the next operation follows from the right one.
        self.hashes |= computed
        self.totals = each.totals if len(self.findings) == count else None

    def check_end(self, first_line: bytes) -> None:
        """Check what the last line states against the other lines."""
        first, end = self.first, self.end
        if not end:
            return
        if hashlib.sha256(first_line).hexdigest() != end["statement_sha256"]:
            self.found("Line 1 was altered, or the last line: it states another SHA-256 of line 1.")
        if first["last_number"] - first["first_number"] + 1 != end["operations"]:
            self.found(f"The last line states {end['operations']} operations, line 1 another number.")
        if self.number == first["last_number"] and self.totals:
            if end["hash"] not in self.hashes:
                self.found("The operations were rewritten with their hashes: the last line states another hash.")
            if (end["balance_micro"], end["held_micro"]) != self.totals:
                self.found("The last line states another balance than the last operation.")

    def check_signature(self, keys: dict[str, Key]) -> None:
        """Check the signature of the last line, and that its key was valid then."""
        if not self.end:
            return
        key = keys.get(self.first["key_id"])
        if key is None:
            self.found(f"The key is not in the file of keys: {self.first['key_id']}")
            return
        if not is_signature(bytes.fromhex(self.end_line[1].decode()), self.end_line[0], key.public):
            self.found("The signature is wrong: the last line was altered, or another key has signed it.")
        try:
            issued_at = time_of(self.first["issued_at"])
            assert issued_at
            is_valid = (key.valid_from or issued_at) <= issued_at <= (key.valid_until or issued_at)
        except (ValueError, TypeError):
            is_valid = False
        if not is_valid:
            self.found(
                f"The key was not valid when the statement says that it was issued: {self.first['issued_at']}"
            )


def json_of(content: bytes) -> Any:
    """Return the value of a JSON text, or None."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def object_of(form: re.Pattern[bytes], line: bytes, fields: dict[str, type]) -> dict[str, Any]:
    """Return the object in a line of this form, if it has these fields, or else an empty one."""
    match = form.fullmatch(line)
    value: Any = json_of(match[1]) if match else None
    is_whole = isinstance(value, dict) and all(type(value.get(name)) is kind for name, kind in fields.items())
    return dict(value) if is_whole else {}


def is_operation(values: Any) -> bool:
    """Whether a value has the form of an operation, as far as it is checked."""
    return (
        isinstance(values, list)
        and [type(value) for value in values[:8]] == [str, int, str, str, int, list, int, int]
        and all(
            isinstance(posting, list) and [type(value) for value in posting[:2]] == [str, int] and len(posting) == 3
            for posting in values[5]
        )
    )


def hash_after(before: str, content: bytes) -> str:
    """Return the hash of an operation, given the one before it."""
    return hashlib.sha256(bytes.fromhex(before) + content).hexdigest()


# ------------------------------------------------------------------------------------- a statement and a newer one


def hashes_of(file: BinaryIO) -> Iterator[tuple[int, str]]:
    """Yield the numbers and hashes of a checked statement, beginning with those before its first operation."""
    first = json.loads(file.readline())["statement"]
    yield first["first_number"] - 1, first["hash_before"]
    for number, line in enumerate(file, first["first_number"]):
        if match := OPERATION.fullmatch(line[:-1]):
            yield number, match[2].decode()


def compare(older: BinaryIO, newer: BinaryIO) -> list[str]:
    """Say what keeps a statement from having, or continuing, the operations of an older one; both were checked."""
    new = hashes_of(newer)
    number, hash_ = next(new)
    has_met = False
    for old_number, old_hash in hashes_of(older):
        while number < old_number:
            number, hash_ = next(new, (sys.maxsize, ""))
        if number == sys.maxsize:
            return [f"Operation {old_number} and those after it are not in the newer statement any more."]
        if number == old_number and hash_ != old_hash:
            return [f"Operation {number}, or one before it, is another one in the newer statement."]
        has_met = has_met or number == old_number
    return (
        [] if has_met else ["The newer statement begins later than the older one ends; what is between is missing."]
    )


# ------------------------------------------------------------------------------------------------ the command line


def amount(micro: int) -> str:
    """Return millionths of a credit as a decimal number."""
    return f"{'-' * (micro < 0)}{abs(micro) // 1_000_000}.{abs(micro) % 1_000_000:06d}"


def run(paths: list[str], keys_path: str) -> int:
    """Check a statement, or an older and a newer one; print what was found, and return the exit code."""
    findings, accounts = [], set()
    try:
        with Path(keys_path).open("rb") as file:
            keys = read_keys(file.read(LINE_BYTES_MAX))
        for path in paths:
            with Path(path).open("rb") as file:
                check = Check(file, keys)
            findings += [f"{path}: {finding}" for finding in check.findings]
            accounts.add(check.first.get("account_id"))
            if not check.findings:
                totals = (
                    f"balance {amount(check.totals[0])}, held {amount(check.totals[1])}" if check.totals else ""
                )
                sys.stdout.write(
                    f"{path}: account {check.first['account_id']}, operations {check.first['first_number']} to "
                    f"{check.number}, {totals}, issued at {check.first['issued_at']}, key {check.first['key_id']}\n"
                )
        if len(accounts) > 1:
            findings.append("The statements are of different accounts.")
        if len(paths) == 2 and not findings:
            with Path(paths[0]).open("rb") as older, Path(paths[1]).open("rb") as newer:
                findings = compare(older, newer)
    except (OSError, ValueError) as fault:
        sys.stderr.write(f"{fault}\n")
        return 2
    sys.stdout.write("".join(f"{finding}\n" for finding in findings) or "Nothing was altered.\n")
    return 1 if findings else 0


def main() -> int:
    """Read the command line."""
    import argparse  # only here: the service imports this module for its checks, and has another command line

    parser = argparse.ArgumentParser(description="Check a signed statement.")
    parser.add_argument("file", help="the statement")
    parser.add_argument("newer", nargs="?", help="a newer one, which must have its operations or go on from them")
    parser.add_argument("--keys", required=True, help="the file of the service's public keys")
    given = parser.parse_args()
    return run([path for path in (given.file, given.newer) if path], given.keys)


if __name__ == "__main__":
    sys.exit(main())
