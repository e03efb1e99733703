r"""Read a file of environment variables as systemd reads an ``EnvironmentFile``; nothing in it is evaluated.

- ``NAME=value`` up to the end of the line; blanks around the name and the value are no part of them.
- Outside of quotes a backslash makes the next character part of the value, and joins a line with the next one.
- A value may begin with texts in quotes, which may have several lines. Within ``'…'`` every character stands for
  itself; within ``"…"`` a backslash is removed before ``"``, ``\``, `````, ``$`` and the end of a line.
- Lines that begin with ``#`` or ``;`` are comments. The later of two values of a name counts.
- What systemd leaves out is left out: lines without ``=``, and names that are none.

A quote that is not closed, which systemd ends with the file, is refused, and so is a comment that ends with a
backslash: only before version 254 systemd reads the next line as a part of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_BLANKS = " \t"
_QUOTED = r"""'[^']*'|"(?:[^"\\]|\\.)*\""""
_PLAIN = r"""(?:\\(?:.|\Z)|[^ \t\n\r'"\\])(?:\\(?:.|\Z)|[^\n\r\\])*"""
_ENTRY = re.compile(
    rf"""
    [ \t\n\r]*
    (?: (?P<comment>[#;][^\n\r]*)
    |   (?P<name>[^ \t\n\r#;][^=\n\r]*)
        (?: = (?P<quoted>(?:[ \t]*(?:{_QUOTED}))*) [ \t]* (?P<plain>{_PLAIN})? )?
    )
    """,
    re.VERBOSE | re.DOTALL,
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_UNREADABLE = re.compile(r"[\udc80-\udcff]")
_NONCHARACTERS = frozenset(
    map(chr, (*range(0xFDD0, 0xFDF0), *(plane << 16 | end for plane in range(17) for end in (0xFFFE, 0xFFFF))))
)


class EnvFileFault(ValueError):
    """The file cannot be used: the number of a line, and what is wrong in it, without its content."""

    def __init__(self, line: int, trouble: str) -> None:
        super().__init__(f"line {line} {trouble}")


class EnvFile(NamedTuple):
    """The variables, and for each entry that was left out a sentence, without its content."""

    variables: dict[str, str]
    left_out: list[str]


def parse_env_file(content: bytes) -> EnvFile:
    """Return the variables in the file's order. Raises :class:`EnvFileFault`."""
    found = EnvFile({}, [])
    # What is not UTF-8 is a fault in names and values alone.
    text = content.decode("utf-8", "surrogateescape")
    position = 0
    while (entry := _ENTRY.match(text, position)) is not None:
        position = entry.end()
        line = 1 + text.count("\n", 0, entry.start("comment" if entry["comment"] else "name"))
        if "\0" in entry[0]:
            raise EnvFileFault(line, "has a NUL character")
        if entry["comment"]:
            backslashes = len(entry["comment"]) - len(entry["comment"].rstrip("\\"))
            if position < len(text) and backslashes % 2:
                raise EnvFileFault(line, "is a comment that ends with a backslash")
            continue
        if position < len(text) and text[position] in "'\"":
            raise EnvFileFault(line, "begins a quotation that does not end")
        name = entry["name"].rstrip(_BLANKS)
        if entry["quoted"] is None:
            found.left_out.append(f"line {line} has no =, and is left out")
            continue
        value = "".join((*_unquoted(entry["quoted"]), *_unescaped(entry["plain"] or "")))
        if _UNREADABLE.search(name + value):
            raise EnvFileFault(line, "is not UTF-8")
        if not _NONCHARACTERS.isdisjoint(value):
            raise EnvFileFault(line, "has a code point that is no character, which systemd refuses")
        if not _NAME.fullmatch(name):
            found.left_out.append(f"line {line} has no valid name before =, and is left out")
        else:
            found.variables[name] = value
    return found


def _unquoted(text: str) -> Iterator[str]:
    for quoted in re.findall(_QUOTED, text, re.DOTALL):
        inside = quoted[1:-1]
        yield inside if quoted[0] == "'" else re.sub(r"""\\(?:(["\\`$])|\n)""", r"\1", inside)


def _unescaped(text: str) -> list[str]:
    parts = re.findall(r"\\(?:.|\Z)|[^\\]", text, re.DOTALL)
    while parts and parts[-1] in _BLANKS:
        del parts[-1]
    return ["" if part in ("\\", "\\\n", "\\\r") else part[-1] for part in parts]
