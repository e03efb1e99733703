"""HAProxy with the shipped configuration, on loopback."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from tests.tools import path_of

CONFIGURATION = Path(__file__).parent.parent / "deploy" / "haproxy.cfg"
SERVERS = ("10.0.0.5:8000", "10.0.0.6:8000", "10.0.0.7:8000")
"""The servers of the shipped configuration."""
BIND = ":443 ssl crt /etc/haproxy/certs/ alpn h2,http/1.1"
PLAIN = "bind :80\n"
MAP = "/var/lib/holdfast-places/places.map"
CONTROL = "/run/haproxy/admin.sock"
LOOK_UP = f"    http-request set-var(txn.server) var(txn.place),map({MAP})\n"
LAST_SERVER = '    server "${MEMBER_3-10.0.0.7:8000}" "${MEMBER_3-10.0.0.7:8000}"\n'
START_S = 60.0


def configured(changes: Mapping[str, str]) -> str:
    """Return the shipped configuration with the addresses and paths of a test."""
    text = CONFIGURATION.read_text("utf-8")
    for shipped, used in changes.items():
        assert shipped in text, shipped
        text = text.replace(shipped, used)
    if os.geteuid() != 0:  # then it may not become another user
        text = text.replace("    user haproxy\n    group haproxy\n", "")
    return text


def write_configuration(folder: Path, changes: Mapping[str, str], servers: Sequence[str], cells: int) -> Path:
    """Write a configuration with these servers, and a map for all or for each cell, which may be empty."""
    added = "".join(f"    server {server} {server}\n" for server in servers[len(SERVERS) :])
    changes = {**changes, LAST_SERVER: LAST_SERVER + added}
    maps = [map_in(folder, cell) for cell in range(1, cells + 1)] or [map_in(folder)]
    for each in maps:
        each.touch()
    changes[LOOK_UP] = "".join(LOOK_UP.replace(MAP, str(each)) for each in maps)
    # An address that is blank is no server.
    changes |= dict(zip_longest(SERVERS, servers[: len(SERVERS)], fillvalue=""))
    file = folder / "haproxy.cfg"
    file.write_text(configured(changes))
    return file


def map_in(folder: Path, cell: int | None = None) -> Path:
    """Return the place map, or that of a cell."""
    return folder / f"places{'' if cell is None else cell}.map"


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running HAProxy: its URL, its folder, its process, and what else is changed in its configuration."""

    url: str
    folder: Path
    process: subprocess.Popen[bytes]
    changes: Mapping[str, str]

    @property
    def places(self) -> Path:
        """The place map."""
        return map_in(self.folder)

    @property
    def control(self) -> Path:
        """Its socket."""
        return self.folder / "admin.sock"

    @property
    def log(self) -> Path:
        """Its log."""
        return self.folder / "haproxy.log"

    def map_of(self, cell: int) -> Path:
        """Return the place map of a cell."""
        return map_in(self.folder, cell)

    def reload(self, servers: Sequence[str], *, cells: int) -> None:
        """Change its servers and maps, as ``systemctl reload`` does: a new process takes over the sockets."""
        write_configuration(self.folder, self.changes, servers, cells)
        before = self.process_id()
        self.process.send_signal(signal.SIGUSR2)
        deadline = time.monotonic() + START_S
        while self.process_id() == before:
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def process_id(self) -> int:
        """Return the id of the process that has the socket; 0 while there is none."""
        try:
            found = re.search(r"^Pid: (\d+)$", self.command("show info"), re.MULTILINE)
        except OSError:
            found = None
        return int(found[1]) if found else 0

    def served_by(self, path: str) -> list[str]:
        """Return the servers of all requests for a path, in the order in which they ended."""
        lines = self.log.read_text("utf-8", "replace").splitlines()
        return [
            line.split(" ready/")[1].split()[0] for line in lines if f" {path} HTTP/" in line and " ready/" in line
        ]

    def states(self) -> dict[str, str]:
        """Return the state of each server, as HAProxy sees it: UP, DOWN, or on the way from one to the other."""
        rows = [line.split(",") for line in self.command("show stat").splitlines()]
        return {row[1]: row[17] for row in rows if row[0] == "ready" and row[1] != "BACKEND"}

    def command(self, command: str) -> str:
        """Return the answer to a command of the Runtime API."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.control))
            connection.sendall(f"{command}\n".encode())
            with connection.makefile() as answer:
                return answer.read()


@contextmanager
def haproxy(
    folder: Path,
    servers: Sequence[str],
    listening: socket.socket,
    limits: Mapping[str, str] | None = None,
    *,
    cells: int = 0,
) -> Iterator[Proxy]:
    """Run HAProxy on a socket, which it takes, before some servers (host and port), with an empty map.

    ``limits`` are changes of the shipped configuration. With ``cells`` each has a map, as docs/scaling.md says.
    """
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    with listening:
        changes = {
            **(limits or {}),
            BIND: f"fd@{listening.fileno()}",
            PLAIN: f"bind {folder / 'plain.sock'}\n",
            CONTROL: str(folder / "admin.sock"),
        }
        file = write_configuration(folder, changes, servers, cells)
        with (folder / "haproxy.log").open("wb") as log:
            process = subprocess.Popen(
                [path_of("haproxy"), "-W", "-f", str(file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(listening.fileno(),),
            )
        proxy = Proxy(f"http://127.0.0.1:{listening.getsockname()[1]}", folder, process, changes)
    try:
        deadline = time.monotonic() + START_S
        while not proxy.process_id():
            assert process.poll() is None, proxy.log.read_text()
            assert time.monotonic() < deadline, proxy.log.read_text()
            time.sleep(0.02)
        yield proxy
    finally:
        process.terminate()
        process.wait(START_S)
