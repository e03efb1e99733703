"""Log lines: JSON, or text for a terminal, with their fields in a fixed order; and the thread that writes them.

With it an unread pipe or a slow disk never blocks the event loop. Lines wait in a bounded queue. What does not fit,
or a full disk does not take, is lost, counted, and shown in a line of its own once lines are taken again.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache
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
    return {name: value for name in _in_order(tuple(fields)) if (value := fields[name]) is not None}


@lru_cache(maxsize=1024)
def _in_order(names: tuple[str, ...]) -> list[str]:
    return sorted(names, key=lambda name: (_ORDER.get(name, len(FIRST)), name))


def render_json(fields: Mapping[str, object]) -> str:
    """Render ordered fields as one JSON object."""
    try:
        line = _encode(fields)
        # JSON has escaped all other control characters of ASCII; isprintable takes ten times as long.
        return line.decode() if line.isascii() and 0x7F not in line else printable(line.decode())
    except (UnicodeEncodeError, TypeError, ValueError):
        # A lone surrogate, from bytes that are not UTF-8, or a key that is not text.
        return json.dumps(fields, default=str, separators=(",", ":"))


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


CHARS_MAX: Final = 4 * 1024 * 1024
"""How much text may wait: a minute of a busy service."""
GATHER_S: Final = 0.05
"""How long the thread waits for more lines before it writes, so that many lines cost one write."""
TICK_S: Final = 1.0
BLOCKED_PAUSE_S: Final = 0.05


class LineWriter:
    """Writes to the descriptor ``fd``. ``tick`` is called in the thread about once a second.

    ``tell_lost`` returns the line that says how many lines were lost.
    """

    def __init__(self, fd: int, *, tick: Callable[[], None], tell_lost: Callable[[int], str]) -> None:
        self._fd = fd
        self._tick = tick
        self._tell_lost = tell_lost
        self._lines: deque[str] = deque()
        self._chars = 0
        self._lost = 0
        self._not_taken = 0
        self._is_within_line = False
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._all_written = threading.Event()
        self._all_written.set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue one line without its end. Never blocks."""
        with self._lock:
            if self._chars + len(line) > CHARS_MAX:
                self._lost += 1
                return
            self._chars += len(line)
            self._lines.append(line)
            is_first = self._all_written.is_set()
            self._all_written.clear()
        if is_first:
            self._wake.set()

    def flush(self, within_s: float) -> bool:
        """Wait until all lines are written; False if that takes too long."""
        self._wake.set()
        return self._all_written.wait(within_s)

    def stop(self, within_s: float) -> None:
        """Write what waits, and end the thread."""
        self._stopping.set()
        self.flush(within_s)
        self._wake.set()
        self._thread.join(within_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            if self._wake.wait(TICK_S):
                self._stopping.wait(GATHER_S)
            self._wake.clear()
            self._tick()
            self._write_waiting()
        self._write_waiting()

    def _write_waiting(self) -> None:
        while True:
            with self._lock:
                lines, lost = list(self._lines), self._lost
                self._lines.clear()
                self._lost = 0
                if not lines and not lost:
                    self._all_written.set()
                    return
            if lines:
                # Counted after the next lines: while a disk is full, it takes the count no more than others.
                lost, self._not_taken = lost + self._not_taken, 0
            if lost:
                lines.append(self._tell_lost(lost))
            left = self._put("".join(f"{line}\n" for line in lines).encode(errors="backslashreplace"))
            if left:
                self._not_taken += left - 1 + lost if lost else left
            with self._lock:
                # Only now: lines that are being written count as waiting.
                self._chars = sum(map(len, self._lines))

    def _put(self, data: bytes) -> int:
        """Write lines, and return how many were not taken: the reader is gone, or the disk is full."""
        end_of_line = b"\n" if self._is_within_line else b""
        data = end_of_line + data
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:
                time.sleep(BLOCKED_PAUSE_S)
            except OSError:
                break
        written = len(data) - len(view)
        if written:
            self._is_within_line = data[written - 1 : written] != b"\n"
        return data.count(b"\n", max(written, len(end_of_line)))
