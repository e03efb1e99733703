"""The first process of a container, PID 1, whose duties are those of an init.

Linux makes it the parent of every orphan, and stops all others at its end. So the command itself runs in a child,
which need not know all of its children, and keeps the exit code of those that it has.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Final

SIGNALED: Final = 128
"""Added to the number of the signal that ended the command, as shells do."""


def run_in_child() -> None:
    """Return in a child process. This process passes it all signals, reaps every child that ends, and exits as the
    first one does.

    There must be no other thread.
    """
    # Blocked, so that each one waits until it is taken: PID 1 would lose those that it does not handle.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    child = os.fork()
    if child == 0:
        # With a session of its own it gets a Ctrl-C at the terminal once, from its parent.
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    while True:
        number = signal.sigwait(signal.valid_signals())
        if number != signal.SIGCHLD:
            with suppress(ProcessLookupError):
                os.kill(child, number)
            continue
        # One signal may stand for several ends.
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            pid, status = ended
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
                os._exit(code if code >= 0 else SIGNALED - code)
