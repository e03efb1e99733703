"""The newest log lines of this process, in memory and not folded: what happened to one thing is found in them.

A line is kept as JSON. The oldest are dropped when lines take too many bytes or are too old, and the ring knows
from when on it has all. Who follows one thing asks for the same again and again, so a search that is repeated looks
only at the lines that have come since.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple

import msgspec
import trio

SLOT_BYTES: Final = 8
"""What a line takes in the ring beside its own bytes."""
AT_ONCE: Final = 500
"""How many lines are searched before other work goes on: about a millisecond."""
SEARCHES_MAX: Final = 8
"""How many searches are known, for the next one with the same texts."""
_TIME: Final = slice(len('{"time":"'), len('{"time":"2026-11-22T03:00:00.000Z'))


def _text_of(at_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at_s)) + f".{int(at_s * 1000) % 1000:03}Z"


class FoundLines(NamedTuple):
    """Lines, newest first, and the time from which on all that fit are among them; ``is_cut`` if older ones were
    dropped or are left out, and not because the process is younger.
    """

    lines: list[str]
    complete_from: str
    is_cut: bool


class _Search(NamedTuple):
    """What a search among the first ``number`` lines found from ``since`` on: the newest ``limit``, or all."""

    number: int
    since: str
    limit: int
    lines: list[str]
    is_all: bool


class LineRing:
    """The lines of the last ``age_max_s`` seconds, as far as they fit into ``bytes_max``; 0 keeps none.

    Safe for threads. A line begins with its time, as :func:`~holdfast.telemetry.logs.lines.render_json` writes it.
    """

    def __init__(self, bytes_max: int, age_max_s: float) -> None:
        self.bytes_max = bytes_max
        self._age_max_s = age_max_s
        self._lines: deque[str] = deque()
        self._lock = threading.Lock()
        self._second = 0
        self.bytes = 0
        self._appended = 0
        self._complete_from = _text_of(time.time())
        self._is_cut = False
        self._searches: dict[tuple[str, ...], _Search] = {}

    def append(self, line: str) -> None:
        """Keep a line."""
        with self._lock:
            self._lines.append(line)
            self._appended += 1
            self.bytes += sys.getsizeof(line) + SLOT_BYTES
            while self.bytes > self.bytes_max:
                self._drop_oldest()
            if int(time.time()) != self._second:
                self._drop_old()

    def _drop_oldest(self) -> None:
        oldest = self._lines.popleft()
        self.bytes -= sys.getsizeof(oldest) + SLOT_BYTES
        self._complete_from, self._is_cut = oldest[_TIME], True

    def _drop_old(self) -> None:
        now_s = time.time()
        self._second, least = int(now_s), _text_of(now_s - self._age_max_s)
        while self._lines and self._lines[0][_TIME] < least:
            self._drop_oldest()

    async def find(self, texts: Sequence[str], *, since: str, until: str, limit: int) -> FoundLines:
        """Return the newest lines from ``since`` to before ``until`` that have any of ``texts``; at most ``limit``.

        All lines have the text ``""``. Other work of the loop goes on meanwhile.
        """
        key = (until, *texts)
        known = self._searches.get(key)
        if known is not None and (known.since > since or known.limit < limit):
            known = None
        with self._lock:
            self._drop_old()
            number, complete_from, is_cut = self._appended, self._complete_from, self._is_cut
            lines = [*islice(reversed(self._lines), None if known is None else number - known.number)]
        # As in the lines: what JSON escapes is escaped.
        sought = [msgspec.json.encode(each).decode()[1:-1] for each in texts]
        found: list[str] = []
        for count, line in enumerate(lines, 1):
            if count % AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            at = line[_TIME]
            if at < since:
                break
            if at >= until:
                continue
            for each in sought:  # a generator would take most of the time
                if each in line:
                    found.append(line)
                    break
            if len(found) > limit:
                break
        is_all = True
        if known is not None:
            oldest = max(since, complete_from) if is_cut else since
            still = [line for line in known.lines if line[_TIME] >= oldest]
            is_all = known.is_all or len(still) < len(known.lines)
            found += still
        is_all = is_all and len(found) <= limit
        found = found[:limit]
        self._searches.pop(key, None)
        self._searches[key] = _Search(number, since, limit, found, is_all)
        if len(self._searches) > SEARCHES_MAX:
            del self._searches[next(iter(self._searches))]
        if not is_all:
            return FoundLines(found, found[-1][_TIME], is_cut=True)
        return FoundLines(found, max(complete_from, since), is_cut=is_cut and complete_from > since)


def newest_of(one: FoundLines, other: FoundLines, limit: int) -> FoundLines:
    """Return the lines of both, newest first, at most ``limit``."""
    lines = sorted([*one.lines, *other.lines], key=lambda line: line[_TIME], reverse=True)
    complete_from = max(one.complete_from, other.complete_from)
    if len(lines) > limit:
        return FoundLines(lines[:limit], max(complete_from, lines[limit - 1][_TIME]), is_cut=True)
    return FoundLines(lines, complete_from, one.is_cut or other.is_cut)
