"""The listening sockets: one a worker, a port in use, orphans of a killed parent, and those that systemd passes."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.settings.settings import Settings, load_settings
from holdfast.sockets import listening
from holdfast.sockets.listening import CannotListen, open_sockets, url_of


def settings_of(folder: Path, **given: str) -> Settings:
    values = {"DATA_DIR": str(folder), "PORT": "0", **given}
    return load_settings({f"HOLDFAST_{name}": value for name, value in values.items()})


@contextmanager
def listener(*options: int) -> Iterator[socket.socket]:
    with socket.socket() as found:
        for option in options:
            found.setsockopt(socket.SOL_SOCKET, option, 1)
        found.bind(("127.0.0.1", 0))
        found.listen()
        yield found


def port_of(found: socket.socket) -> str:
    return str(found.getsockname()[1])


class FakeTime:
    """A clock that only its own ``sleep`` moves. At ``act_at_s`` it acts."""

    def __init__(self, act_at_s: float, act: object) -> None:
        self.now_s = 0.0
        self._act_at_s, self._act = act_at_s, act

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        if self.now_s >= self._act_at_s and callable(self._act):
            self._act()


def test_each_worker_has_a_socket_of_its_own_on_one_address(tmp_path: Path) -> None:
    opened = open_sockets(settings_of(tmp_path, PROCESSES="3", OPS_PORT="0"), {})
    assert list(opened.of_slots) == [0, 1, 2]
    assert len(opened.each()) == 6
    assert len({each.public.getsockname() for each in opened.of_slots.values()}) == 1
    assert len({each.getsockname() for each in opened.each()}) == 2
    with socket.create_connection(opened.of_slots[0].public.getsockname()):
        pass
    opened.close()


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_port_in_use_is_reported_at_once(tmp_path: Path, processes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "time", clock := FakeTime(0.0, None))
    with listener(socket.SO_REUSEADDR) as taken:
        settings = settings_of(tmp_path, PORT=port_of(taken), PROCESSES=processes)
        with pytest.raises(CannotListen, match=rf"Cannot listen on 127.0.0.1:{port_of(taken)}: Address already"):
            open_sockets(settings, {})
    assert clock.now_s == 0


@pytest.mark.parametrize("processes", ["0", "2"])
def test_the_workers_of_a_killed_parent_are_waited_for(
    tmp_path: Path, processes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listener(socket.SO_REUSEADDR, socket.SO_REUSEPORT) as orphan:
        settings = settings_of(tmp_path, PORT=port_of(orphan), PROCESSES=processes)
        clock = FakeTime(1.0, orphan.close)
        monkeypatch.setattr(listening, "time", clock)
        opened = open_sockets(settings, {})
        assert clock.now_s == pytest.approx(1.0, abs=0.1)
        opened.close()


def test_another_service_of_this_user_is_not_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listener(socket.SO_REUSEADDR, socket.SO_REUSEPORT) as other:
        monkeypatch.setattr(listening, "time", FakeTime(0.0, None))
        with pytest.raises(CannotListen):
            open_sockets(settings_of(tmp_path, PORT=port_of(other), PROCESSES="2"), {})


# Descriptor 3 and the process id are fixed by the protocol, so it is tested in a process of its own.
PASSED = """
import os, socket, sys
from holdfast.sockets.listening import CannotListen, open_sockets, url_of
from holdfast.settings.settings import load_settings
os.environ["LISTEN_PID"] = str(os.getpid())
settings = load_settings(os.environ)
try:
    found = open_sockets(settings, os.environ)
except CannotListen as fault:
    print(fault)
else:
    print(found.is_shared, *(" ".join(map(url_of, slot.each())) for slot in found.of_slots.values()), sep=" | ")
    print(any(os.get_inheritable(each.fileno()) for each in found.each()))
"""


def with_passed(folder: Path, sockets: list[socket.socket], names: str, **given: str) -> list[str]:
    """Run :data:`PASSED` with sockets from descriptor 3 on, and return its lines, those of the log first."""
    values = {"DATA_DIR": str(folder), "PORT": "1", **given}
    environ = {**os.environ, **{f"HOLDFAST_{name}": value for name, value in values.items()}}
    environ |= {"LISTEN_FDS": str(len(sockets)), "LISTEN_FDNAMES": names}
    moves = " ".join(f"{3 + index}<&{each.fileno()}" for index, each in enumerate(sockets))
    done = subprocess.run(
        ["bash", "-c", f'exec {moves} && exec "$0" -c "$1"', sys.executable, PASSED],
        env=environ,
        pass_fds=[each.fileno() for each in sockets],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def two_listeners() -> Iterator[list[socket.socket]]:
    with listener() as one, listener() as other:
        # Free ones above the descriptors that the shell assigns; dup2 would close those of others.
        yield [socket.socket(fileno=fcntl.fcntl(each, fcntl.F_DUPFD, 60)) for each in (one, other)]


def test_sockets_of_systemd_are_used(tmp_path: Path, two_listeners: list[socket.socket]) -> None:
    one, other = two_listeners
    assert with_passed(tmp_path, [one], "public", PROCESSES="2")[-2:] == [
        f"True | {url_of(one)} | {url_of(one)}",
        "False",
    ]
    assert with_passed(tmp_path, [one, other], "public:operators", OPS_PORT="9")[-2:] == [
        f"True | {url_of(one)} {url_of(other)}",
        "False",
    ]
    for each in two_listeners:
        each.close()


def test_an_address_that_is_not_that_of_systemds_sockets_is_a_warning(
    tmp_path: Path, two_listeners: list[socket.socket]
) -> None:
    one, other = two_listeners
    ports = {"PORT": str(one.getsockname()[1]), "OPS_PORT": str(other.getsockname()[1])}

    def warned(**given: str) -> list[str]:
        lines = with_passed(tmp_path, [one, other], "public:operators", **{**ports, **given})
        return [line for line in lines if "is ignored" in line]

    assert warned() == warned(HOST="127.0.0.1") == []
    [line] = warned(HOST="10.0.0.5")
    assert "HOLDFAST_HOST is ignored" in line
    assert url_of(one) in line
    [public, operators] = warned(PORT="1", OPS_HOST="10.0.0.5")
    assert "HOLDFAST_PORT is ignored" in public
    assert "HOLDFAST_OPS_HOST is ignored" in operators
    assert url_of(other) in operators
    for each in two_listeners:
        each.close()


def test_sockets_of_systemd_that_do_not_fit_are_refused(tmp_path: Path, two_listeners: list[socket.socket]) -> None:
    one, other = two_listeners
    assert with_passed(tmp_path, [one, other], "a:b", PROCESSES="1") == [
        "systemd passed 2 public sockets; one to 1 can be used."
    ]
    [line] = with_passed(tmp_path, [one], "public", OPS_PORT="9")
    assert "with the name operators if HOLDFAST_OPS_PORT is set" in line
    one.close()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        [line] = with_passed(tmp_path, [silent], "public")
        assert "does not listen" in line
    other.close()


def test_variables_for_another_process_are_ignored(tmp_path: Path) -> None:
    opened = open_sockets(settings_of(tmp_path), {"LISTEN_PID": "1", "LISTEN_FDS": "1"})
    assert not opened.is_shared
    opened.close()
