"""A screen that is drawn again and again until ``q`` is pressed."""

from __future__ import annotations

import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console, RenderableType
from rich.live import Live


def show_until_quit(draw: Callable[[], RenderableType], *, every_s: float, console: Console) -> None:
    """Draw on the whole terminal every few seconds, until ``q`` or Ctrl-C. Input and output must be a terminal."""
    live = Live(console=console, screen=True, auto_refresh=False)
    with suppress(KeyboardInterrupt), _keys_at_once(), live:
        while True:
            live.update(draw(), refresh=True)
            ready, _, _ = select.select([sys.stdin], [], [], every_s)
            if ready and sys.stdin.read(1).lower() in ("q", ""):
                return


@contextmanager
def _keys_at_once() -> Iterator[None]:
    """Read keys without waiting for a line, and without showing them."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
