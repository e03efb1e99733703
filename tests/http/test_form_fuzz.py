"""Random forms: read as they were made, however they are cut into parts; and broken ones, which are refused alike.

``FUZZ_S=300`` goes on for five minutes from a seed of its own, which is printed; ``FUZZ_SEED`` repeats one.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from multipart import MultipartError

from holdfast.http.kit import uploads

ROUNDS = 300
BOUNDARY = "a-boundary"
LINE = b"--a-boundary"
PARTS = frozenset({"file", "image[]"})
PIECES = (
    LINE, LINE + b"--", b"\r\n" + LINE, b"\r\n" + LINE + b"\r\n", b"\r\n", b"\n", b"\r", b"--", b"-", b"\0",
    b'Content-Disposition: form-data; name="file"; filename="a"\r\n', b"Content-Length: 3\r\n", b";", b'"', b"\xff",
    b"Content-Type: multipart/mixed; boundary=b\r\n", b"filename*=UTF-8''%00", b"name=", b"\x80\xa0", b" " * 5000,
)  # fmt: skip

Found: TypeAlias = tuple[dict[str, list[str]], list[tuple[str, str | None, bytes]]]


class Refused(Exception):
    """The form was refused."""


@dataclass
class Call:
    """A call whose body comes in these parts."""

    parts: list[bytes]
    request: Any = field(init=False)

    def __post_init__(self) -> None:
        self.request = self

    def body_bytes_max(self) -> int:
        return 10**9

    async def read_part(self, _bytes_max: int) -> bytes | None:
        return self.parts.pop(0) if self.parts else None


@dataclass
class File:
    """What came of one file."""

    part: str
    filename: str | None
    content: bytes = b""

    async def add(self, block: bytes) -> None:
        self.content += block

    async def flush(self) -> None:
        pass


@dataclass
class Upload:
    """The files of a form, in memory."""

    files: list[File] = field(default_factory=list)

    async def begin(self, part: str, filename: str | None) -> File:
        self.files.append(File(part, filename))
        return self.files[-1]


async def read(body: bytes, cuts: list[int]) -> Found:
    """Read a body that comes cut at these places. Raises :class:`Refused`."""
    places = [0, *sorted(cuts), len(body)]
    call, upload = Call([body[start:end] for start, end in itertools.pairwise(places)]), Upload()
    try:
        fields = await uploads._read_form(call, upload, BOUNDARY, PARTS, ())  # type: ignore[arg-type]
    except (MultipartError, uploads._Refused) as fault:
        raise Refused from fault
    return fields, [(each.part, each.filename, each.content) for each in upload.files]


def content(rng: random.Random) -> bytes:
    """Bytes that may look like the lines of a form, but are not the line that ends a part."""
    pieces = [
        rng.choice((rng.randbytes(rng.randrange(40)), rng.choice(PIECES), LINE[: rng.randrange(len(LINE))]))
        for _ in range(rng.randrange(6))
    ]
    return b"".join(pieces).replace(b"\r\n" + LINE, b"")


def made(rng: random.Random) -> tuple[bytes, Found]:
    """A form, and what it has."""
    fields: dict[str, list[str]] = {}
    files: list[tuple[str, str | None, bytes]] = []
    body = rng.choice((b"", b"\r\n"))
    for _ in range(rng.randint(1, 5)):
        body += LINE + b'\r\nContent-Disposition: form-data; name="'
        if rng.random() < 0.5:
            name, filename, data = rng.choice(sorted(PARTS)), rng.choice((None, "a.png", "ü.png", "")), content(rng)
            extra = "" if filename is None else f'"; filename="{filename}'
            body += f'{name}{extra}"\r\n'.encode() + rng.choice((b"", b"Content-Type: image/png\r\n"))
            files.append((name, filename, data))
        else:
            name, text = rng.choice(("note", "größe", "a b")), rng.choice(("", "1", "ü\r\n--", "{}"))
            body += f'{name}"\r\n'.encode()
            fields.setdefault(name, []).append(text)
            data = text.encode()
        body += b"\r\n" + data + b"\r\n"
    return body + LINE + b"--" + rng.choice((b"", b"\r\n", b"\r\nan epilogue")), (fields, files)


def broken(rng: random.Random, body: bytes) -> bytes:
    """The body with a few pieces put in, taken out or changed."""
    raw = bytearray(body)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(raw) + 1)
        end = min(len(raw), at + rng.randint(0, 20))
        raw[at:end] = rng.choice((b"", rng.choice(PIECES), bytes([rng.randrange(256)])))
    return bytes(raw)


def cuts(rng: random.Random, body: bytes) -> list[int]:
    return [rng.randrange(len(body) + 1) for _ in range(rng.choice((0, 1, 3, 40)))]


async def outcome(body: bytes, places: list[int]) -> Found | None:
    try:
        return await read(body, places)
    except Refused:
        return None


async def test_forms_are_read_as_they_were_made_however_they_come() -> None:
    fuzz_s = float(os.environ.get("FUZZ_S", "0"))
    seed = int(os.environ.get("FUZZ_SEED", random.randrange(2**32) if fuzz_s else 20261123))
    rng, end_s, rounds, refusals = random.Random(seed), time.monotonic() + fuzz_s, 0, 0
    print(f"FUZZ_SEED={seed}")  # noqa: T201 - shown where the test fails, or with -s
    while rounds < ROUNDS or time.monotonic() < end_s:
        rounds += 1
        body, expected = made(rng)
        assert await read(body, cuts(rng, body)) == expected, body
        body = broken(rng, body)
        found = await outcome(body, cuts(rng, body))
        refusals += found is None
        assert await outcome(body, [*range(len(body))]) == await outcome(body, cuts(rng, body)) == found, body
    print(f"{rounds} forms, {refusals} broken ones refused")  # noqa: T201
    assert rounds // 10 < refusals < rounds
