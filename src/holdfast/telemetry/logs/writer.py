"""The writer of log lines: a thread, so that an unread pipe or a slow disk never blocks the event loop.

Lines wait in a bounded queue. What does not fit, or a full disk does not take, is lost, counted, and shown in a
line of its own once lines are taken again.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

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
