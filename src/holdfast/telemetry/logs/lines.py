"""The form of a log line: JSON, or text for a terminal, with its fields in a fixed order."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeAlias

import msgspec

LogFormat = Literal["console", "json"]
Fields: TypeAlias = dict[str, object]
Render: TypeAlias = Callable[[Mapping[str, object]], str]

FIRST: Final = (
    "time", "level", "event", "path", "key", "task_id", "account_id", "order_id", "provider",
    "text", "trace_id", "request_id", "worker",
)  # fmt: skip
"""The fields that begin a line, in this order; all others follow in alphabetical order."""
LAST: Final = ("logger", "stack", "exception")

_ORDER: Final = {name: number for number, name in enumerate(FIRST)} | {
    name: len(FIRST) + 1 + number for number, name in enumerate(LAST)
}
_OUTSIDE_PAIRS: Final = frozenset({"time", "level", "event", "exception", "stack"})
_PLAIN: Final = re.compile(r'[^\s"=]+')
_COLOURS: Final = {"debug": "2", "info": "32", "warning": "33", "error": "31", "critical": "1;31"}

_encode: Final = msgspec.json.Encoder(enc_hook=str).encode


class _Second:
    """The current second and its text, kept because formatting a date costs more than the rest of a line."""

    number = -1
    text = ""


def time_of_line() -> str:
    """Return the current time in UTC with milliseconds, as in ``2026-11-22T03:00:00.000Z``."""
    now = time.time()
    number = int(now)
    if number != _Second.number:
        _Second.text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(number))
        _Second.number = number
    return f"{_Second.text}.{int((now - number) * 1000):03}Z"


def in_order(fields: Mapping[str, object]) -> Fields:
    """Return the fields that have a value, in the order of a line."""
    names = sorted(fields, key=lambda name: (_ORDER.get(name, len(FIRST)), name))
    return {name: fields[name] for name in names if fields[name] is not None}


def render_json(fields: Mapping[str, object]) -> str:
    """Render ordered fields as one JSON object."""
    try:
        return printable(_encode(fields).decode())
    except (UnicodeEncodeError, TypeError, ValueError):
        # A lone surrogate, from bytes that are not UTF-8, or a key that is not text.
        return json.dumps(fields, default=str)


def console_renderer(*, colours: bool) -> Render:
    """Return the renderer of text: ``time level event  name=value name=value``, a traceback on indented lines
    of its own.
    """

    def render(fields: Mapping[str, object]) -> str:
        level = str(fields["level"])
        shown_level = f"{level:<8}"
        event = str(fields["event"])
        if not event.isprintable():
            event = _quoted(event)[1:-1]
        if colours:
            shown_level = f"\x1b[{_COLOURS.get(level, '0')}m{shown_level}\x1b[0m"
            event = f"\x1b[1m{event}\x1b[0m"
        pairs = " ".join(
            [f"{name}={_value(value)}" for name, value in fields.items() if name not in _OUTSIDE_PAIRS]
        )
        head = f"{fields['time']} {shown_level} {event}"
        shown = f"{head}  {pairs}" if pairs else head
        for name in ("stack", "exception"):
            if name in fields:
                shown = "\n  ".join((shown, *map(printable, str(fields[name]).split("\n"))))
        return shown

    return render


def _value(value: object) -> str:
    if type(value) is int:
        return str(value)
    text = value if isinstance(value, str) else _render_json_value(value)
    return text if _PLAIN.fullmatch(text) and text.isprintable() else _quoted(text)


def _render_json_value(value: object) -> str:
    """Render one value that is not text, as JSON without blanks."""
    return json.dumps(value, default=str, separators=(",", ":"))


def _quoted(text: str) -> str:
    return printable(json.dumps(text, ensure_ascii=False))


def printable(text: str) -> str:
    """Escape what is not printable, as JSON may, so that no text moves the cursor or reorders what is around it."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(sign: str) -> str:
    if sign.isprintable():
        return sign
    units = sign.encode("utf-16-be", errors="surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))
