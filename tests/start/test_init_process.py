"""A first process passes signals to the command, reaps orphans, and exits as the command does.

Outside of a container a process becomes the parent of orphans by ``PR_SET_CHILD_SUBREAPER``;
``tests/journeys/test_image.py`` has a real PID 1.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.orphans import orphan_program

BEFORE = """
import ctypes, os, signal, sys
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1) == 0
first = os.getpid()
from holdfast.start.init_process import run_in_child
run_in_child()
assert os.getppid() == first
"""
LIMIT_S = 60


def start(command: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", BEFORE + command], stdout=subprocess.PIPE, text=True)


def test_it_reaps_orphans_and_exits_with_the_code_of_the_command() -> None:
    process = start(orphan_program("os.getppid()") + "sys.exit(7)")
    assert process.communicate(timeout=2 * LIMIT_S)[0] == "reaped\n"
    assert process.returncode == 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2])
def test_it_passes_each_signal_once(number: signal.Signals) -> None:
    command = f"""
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
print("ready", flush=True)
assert signal.sigwait(signal.valid_signals()) == {int(number)}
assert {int(number)} not in signal.sigpending()
sys.exit(5)
"""
    process = start(command)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(LIMIT_S) == 5


def test_it_exits_like_a_shell_if_a_signal_ended_the_command() -> None:
    process = start("os.kill(os.getpid(), signal.SIGKILL)")
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + signal.SIGKILL


def test_the_command_handles_signals_as_if_there_were_no_first_process() -> None:
    process = start("print(signal.pthread_sigmask(signal.SIG_BLOCK, []) == set(), os.getsid(0) == os.getpid())")
    assert process.communicate(timeout=LIMIT_S)[0] == "True True\n"


def test_only_the_first_process_of_a_container_is_one(tmp_path: Path) -> None:
    program = """
import os, sys
import holdfast.start.init_process as init_process
init_process.run_in_child = lambda: sys.exit("an init")
pid = int(sys.argv.pop())
os.getpid = lambda: pid
from holdfast.__main__ import main
main()
"""
    for pid, stderr in ((1, "an init\n"), (os.getpid(), "")):
        done = subprocess.run(
            [sys.executable, "-c", program, "--version", str(pid)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.stderr, done.returncode) == (stderr, 1 if stderr else 0)


@pytest.mark.parametrize("pid", [1, 2])
def test_a_caller_that_ignores_ends_of_children_hides_none(pid: int) -> None:
    command = f"""
import subprocess
import holdfast.commands.cli as cli
from holdfast.__main__ import main
os.getpid = lambda: {pid}
cli.main = lambda: sys.exit(subprocess.call([sys.executable, "-c", "exit(3)"]))
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
main()
"""
    program = "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(36, 1)" + command
    done = subprocess.run([sys.executable, "-c", program], timeout=LIMIT_S, check=False)
    assert done.returncode == 3
