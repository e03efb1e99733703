"""The server's process: starting, awaiting and stopping it, and finding one whose service has died.

PostgreSQL gets a signal to stop when the thread that started it ends (``PR_SET_PDEATHSIG`` counts threads, not
processes), so each run has a thread of its own that starts it and waits for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import pwd
import queue
import signal
import subprocess
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

LOG_BYTES_MAX = 16 * 1024 * 1024
STOPPING = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))
"""The signals that stop a server: fast shutdown, immediate shutdown, kill; with the seconds to wait after each."""


class EmbeddedFault(Exception):
    """The embedded server cannot be created, started or stopped; the message is a sentence with the reason."""


class EmbeddedMissing(EmbeddedFault):
    """The server's programs are not installed."""


class Postmaster:
    """One run of the server. Raises :class:`EmbeddedFault` when its program cannot be run."""

    def __init__(self, command: list[str], *, user: str | None, log_path: Path) -> None:
        self._ended = threading.Event()
        started: queue.SimpleQueue[subprocess.Popen[bytes] | BaseException] = queue.SimpleQueue()
        threading.Thread(
            target=self._keep, args=(command, user, log_path, started), name="holdfast-postgres", daemon=True
        ).start()
        outcome = started.get()
        if isinstance(outcome, BaseException):
            raise EmbeddedFault(f"The embedded PostgreSQL cannot be run: {outcome}") from outcome
        self._process = outcome
        self.pid = outcome.pid

    def stop(self) -> None:
        """Stop it by :data:`STOPPING`. Raises :class:`EmbeddedFault` if it still runs after the last signal."""
        for number, wait_s in STOPPING:
            self._process.send_signal(number)
            if self.wait(wait_s):
                return
        raise EmbeddedFault(f"The embedded PostgreSQL (pid {self.pid}) does not stop.")

    def wait(self, timeout_s: float | None) -> bool:
        """Whether it has ended within ``timeout_s``."""
        return self._ended.wait(timeout_s)

    def _keep(
        self,
        command: list[str],
        user: str | None,
        log_path: Path,
        started: queue.SimpleQueue[subprocess.Popen[bytes] | BaseException],
    ) -> None:
        try:
            if log_path.exists() and log_path.stat().st_size > LOG_BYTES_MAX:
                log_path.replace(log_path.with_suffix(".log.1"))
            with log_path.open("ab") as log, warnings.catch_warnings():
                # Since 3.12 Python warns of any preexec_fn in a process with threads; ours is one C call.
                warnings.simplefilter("ignore", DeprecationWarning)
                process = subprocess.Popen(  # noqa: S603 - our own binary, no shell
                    command,
                    user=user,
                    group=None if user is None else pwd.getpwnam(user).pw_gid,
                    extra_groups=None if user is None else [],
                    env=plain_environment(),
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    # A Ctrl-C at the terminal is for the service alone, which stops its database last.
                    start_new_session=True,
                    preexec_fn=die_with_parent(),  # noqa: PLW1509 - see above
                )
        except BaseException as exc:
            started.put(exc)
            return
        started.put(process)
        process.wait()
        self._ended.set()


def plain_environment() -> dict[str, str]:
    """Return an environment without PG… variables and locale."""
    return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


def die_with_parent() -> Callable[[], None] | None:
    """Return a function that has Linux send the server a smart shutdown when its starting thread ends.

    It then ends after its last connection: the workers of a killed parent may commit what they have begun.
    """
    if platform.system() != "Linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    pr_set_pdeathsig, number = 1, int(signal.SIGTERM)

    def ask() -> None:
        prctl(pr_set_pdeathsig, number, 0, 0, 0)

    return ask


def postmaster_pid(pgdata: Path) -> int | None:
    """Return the pid of the server that runs on ``pgdata``, or None. A reused pid is not mistaken for it."""
    try:
        pid = int((pgdata / "postmaster.pid").read_text().split("\n", 1)[0])
    except (OSError, ValueError):
        return None
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        if Path("/proc/self").exists():
            return None
        listing = subprocess.run(  # noqa: S603
            ["/bin/ps", "-o", "command=", "-p", str(pid)], capture_output=True, check=False
        )
        return pid if os.fsencode(pgdata) in listing.stdout else None
    return pid if os.fsencode(pgdata) in words else None


def stop_orphan(pgdata: Path) -> None:
    """Stop a server that outlived its service, and delete a stale pid file.

    The caller holds the data folder's lock, so no running service uses that server.
    """
    for number, wait_s in STOPPING:
        pid = postmaster_pid(pgdata)
        if pid is None:
            break
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + wait_s
        while postmaster_pid(pgdata) == pid and time.monotonic() < deadline:
            time.sleep(0.05)
    else:
        raise EmbeddedFault(f"An earlier PostgreSQL in {pgdata} does not stop.")
    (pgdata / "postmaster.pid").unlink(missing_ok=True)
