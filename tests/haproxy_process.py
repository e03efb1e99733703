"""HAProxy with the shipped configuration, on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Proxy:
    """A running HAProxy: its URL, its place map, its socket, and its log."""

    url: str
    places: Path
    control: Path
    log: Path

    def map_of(self, cell: int) -> Path:
        """Return the place map of a cell."""
        return self.places.with_name(f"places{cell}.map")

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
    """Run HAProxy on a socket, which it takes, before three servers (host and port) or more, with an empty map.

    ``limits`` are changes of the shipped configuration. With ``cells`` each has a map, as docs/scaling.md says.
    """
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    with listening:
        port = listening.getsockname()[1]
        proxy = Proxy(
            f"http://127.0.0.1:{port}", folder / "places.map", folder / "admin.sock", folder / "haproxy.log"
        )
        maps = [proxy.map_of(cell) for cell in range(1, cells + 1)]
        for file in (proxy.places, *maps):
            file.touch()
        added = "".join(f"    server {server} {server}\n" for server in servers[len(SERVERS) :])
        changes = {**(limits or {}), LAST_SERVER: LAST_SERVER + added}
        if maps:
            changes[LOOK_UP] = "".join(LOOK_UP.replace(MAP, str(file)) for file in maps)
        changes |= {
            **dict(zip(SERVERS, servers[: len(SERVERS)], strict=True)),
            BIND: f"fd@{listening.fileno()}",
            PLAIN: f"bind {folder / 'plain.sock'}\n",
            **({} if maps else {MAP: str(proxy.places)}),
            CONTROL: str(proxy.control),
        }
        file = folder / "haproxy.cfg"
        file.write_text(configured(changes))
        with proxy.log.open("wb") as log:
            process = subprocess.Popen(
                [path_of("haproxy"), "-db", "-f", str(file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(listening.fileno(),),
            )
    try:
        deadline = time.monotonic() + START_S
        while not _answers(proxy):
            assert process.poll() is None, proxy.log.read_text()
            assert time.monotonic() < deadline, proxy.log.read_text()
            time.sleep(0.02)
        yield proxy
    finally:
        process.kill()
        process.wait(START_S)


def _answers(proxy: Proxy) -> bool:
    try:
        return "Uptime" in proxy.command("show info")
    except OSError:
        return False
