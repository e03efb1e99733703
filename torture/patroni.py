"""Three machines with etcd, Patroni and PostgreSQL each: network namespaces on a bridge, with a small disk each.

They run the shipped ``deploy/patroni.yaml``. It takes root. Everything here blocks.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from .postgres import LOG_TAIL_BYTES, PostgresFault, await_end, binaries, send, server_user

CONFIGURATION = Path(__file__).parent.parent / "deploy" / "patroni.yaml"
MACHINES = 3
FIRST_HOST = 8
"""The last part of the first machine's address, as in the shipped configuration."""
DISK_MIB = 700
CALM_S_MAX = 120.0
PAUSE_S = 0.1
PASSWORDS = {
    f"{role}_PASSWORD": f"{role.lower()}-of-the-torture" for role in ("SUPERUSER", "REPLICATION", "REWIND")
}


def _path_of(program: str) -> str | None:
    """Return the path of a program, first of those that were installed for the tests."""
    folders = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath), "/usr/sbin"))
    return shutil.which(program, path=folders)


def missing() -> str:
    """Return what this machine lacks for such a cluster; empty if nothing."""
    programs = ("patroni", "etcd", "ip", "nsenter", "setpriv", "mount", "unshare")
    if absent := [name for name in programs if _path_of(name) is None]:
        return f"{', '.join(absent)} not installed"
    try:
        _system("unshare", "--net", "--mount", "true")
    except PostgresFault:
        return "network namespaces and mounts need root"
    return ""


def _system(*words: str) -> str:
    done = subprocess.run([str(_path_of(words[0])), *words[1:]], capture_output=True, check=False)
    if done.returncode != 0:
        raise PostgresFault(f"{' '.join(words)}: {done.stderr.decode(errors='replace')}")
    return done.stdout.decode()


@dataclass
class Machine:
    """One machine: ``name`` is its member's, ``space`` its network namespace, ``link`` its cable at the bridge."""

    name: str
    address: str
    folder: Path
    space: str
    link: str
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def disk(self) -> Path:
        """The small file system of its PostgreSQL."""
        return self.folder / "disk"

    def boot(self, cluster: str) -> None:
        """Start etcd and Patroni, which starts PostgreSQL. ``cluster`` are etcd's members."""
        peer, client = f"http://{self.address}:2380", f"http://{self.address}:2379"
        urls = ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        urls += ["--listen-client-urls", client, "--advertise-client-urls", client]
        times = ["--heartbeat-interval", "250", "--election-timeout", "2500"]
        data = str(self.folder / "etcd")
        self._start("etcd", "--name", self.name, "--data-dir", data, "--initial-cluster", cluster, *urls, *times)
        self._start("patroni", str(self.folder / "patroni.yaml"))

    def pids(self) -> list[int]:
        """Return all its processes."""
        return [int(word) for word in _system("ip", "netns", "pids", self.space).split()]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all its processes, also to those that start meanwhile."""
        sent: set[int] = set()
        while new := set(self.pids()) - sent:
            for pid in new:
                send(pid, number)
            sent |= new
        if number == signal.SIGKILL:
            while self._started:
                self._started.pop().wait()
            await_end(sorted(sent))

    def set_link(self, state: str) -> None:
        """Plug its network cable: ``up`` or ``down``; packets of a cut machine are lost without a word."""
        _system("ip", "link", "set", self.link, state)

    def set_routes(self, action: str, others: Sequence[Machine]) -> None:
        """``add`` or ``del`` routes that lose all packets to the other machines, and none to the service."""
        for other in others:
            _system("ip", "-n", self.space, "route", action, "blackhole", f"{other.address}/32")

    def member(self) -> dict[str, Any]:
        """Return what its Patroni says about it; empty if that does not answer."""
        # Also a standby's answer has another status than 200.
        with (
            suppress(OSError, ValueError),
            urllib.request.urlopen(f"http://{self.address}:8008/patroni", timeout=2) as got,
        ):
            found: dict[str, Any] = json.load(got)
            return found
        return {}

    def is_primary(self) -> bool:
        """Whether its Patroni says that it has the primary."""
        return self.member().get("role") == "primary"

    def _start(self, program: str, *words: str) -> None:
        user = str(server_user())
        command = ["nsenter", f"--net=/run/netns/{self.space}", "setpriv", "--reuid", user, "--regid", user]
        # The tests' Python may be in a folder of root's, which the servers' user could not read.
        command += ["--clear-groups", "--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
        with (self.folder / f"{program}.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, str(_path_of(program)), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env={"PATH": os.defpath, "HOME": str(self.folder), "LC_ALL": "C", "TZ": "UTC"},
            )
        self._started.append(process)


@dataclass
class PatroniCluster:
    """The machines, their bridge, and their database."""

    folder: Path
    machines: list[Machine] = field(default_factory=list)
    _undo: ExitStack = field(default_factory=ExitStack)

    @property
    def url(self) -> str:
        """The URL of the service's database, which names all machines."""
        return self._url("holdfast")

    def create(self) -> None:
        """Start the machines with an empty database. Raises :class:`PostgresFault`."""
        number = os.getpid()
        net, bridge = f"10.{number >> 8 & 127 | 128}.{number & 255}", f"hf{number}"
        self._undo.callback(_system, "ip", "link", "del", bridge)
        _system("ip", "link", "add", bridge, "type", "bridge")
        _system("ip", "addr", "add", f"{net}.1/24", "dev", bridge)
        _system("ip", "link", "set", bridge, "up")
        for each in range(MACHINES):
            self.machines.append(self._make(each, net, bridge))
        self.boot(*self.machines)
        self.await_calm()
        with psycopg.connect(self._url("postgres"), connect_timeout=5, autocommit=True) as connection:
            connection.execute("create database holdfast")

    def boot(self, *machines: Machine) -> None:
        """Start these machines."""
        for machine in machines:
            machine.boot(",".join(f"{each.name}=http://{each.address}:2380" for each in self.machines))

    def others(self, machine: Machine) -> list[Machine]:
        """Return the other machines."""
        return [each for each in self.machines if each is not machine]

    def await_successor(self, old: Machine) -> None:
        """Wait until another machine says that it has the primary. Raises :class:`PostgresFault`."""
        deadline = time.monotonic() + CALM_S_MAX
        while not any(each.is_primary() for each in self.others(old)):
            if time.monotonic() > deadline:
                raise PostgresFault(f"no other machine than {old.name} has the primary\n{self._log_tails()}")
            time.sleep(PAUSE_S)

    def await_calm(self) -> Machine:
        """Wait until there is a primary that two standbys follow, one synchronously; return its machine.

        Raises :class:`PostgresFault`.
        """
        deadline = time.monotonic() + CALM_S_MAX
        while time.monotonic() < deadline:
            primaries = [each for each in self.machines if each.is_primary()]
            if len(primaries) == 1:
                followers = primaries[0].member().get("replication", [])
                states = sorted(f"{each['state']} {each['sync_state']}" for each in followers)
                if states == ["streaming async", "streaming sync"]:
                    return primaries[0]
            time.sleep(PAUSE_S)
        members = [each.member() for each in self.machines]
        raise PostgresFault(f"not calm after {CALM_S_MAX:.0f} s: {members}\n{self._log_tails()}")

    def stop(self, _: str) -> None:
        """Kill the machines and remove them."""
        for machine in self.machines:
            machine.signal(signal.SIGKILL)
        self._undo.close()

    def _log_tails(self) -> str:
        return "\n".join(
            f"{path}:\n{path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors='replace')}"
            for path in sorted(self.folder.glob("machine-*/patroni.log"))
        )

    def _url(self, database: str) -> str:
        hosts = ",".join(machine.address for machine in self.machines)
        secret = PASSWORDS["SUPERUSER_PASSWORD"]
        return f"postgresql://postgres:{secret}@{hosts}/{database}?target_session_attrs=read-write"

    def _make(self, number: int, net: str, bridge: str) -> Machine:
        """Make a machine's network, disk and configuration."""
        space = f"{bridge}-{number}"
        folder = self.folder / f"machine-{number}"
        machine = Machine(
            f"database-{number + 1}", f"{net}.{FIRST_HOST + number}", folder, space, f"{bridge}v{number}"
        )
        for path in (folder, machine.disk):
            path.mkdir(parents=True)
        _system("ip", "netns", "add", space)
        self._undo.callback(_system, "ip", "netns", "del", space)
        _system("ip", "link", "add", machine.link, "type", "veth", "peer", "name", "eth0", "netns", space)
        _system("ip", "link", "set", machine.link, "master", bridge, "up")
        for words in (f"addr add {machine.address}/24 dev eth0", "link set eth0 up", "link set lo up"):
            _system("ip", "-n", space, *words.split())
        _system("mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "holdfast-torture", str(machine.disk))
        self._undo.callback(_system, "umount", "-l", str(machine.disk))
        text = CONFIGURATION.read_text("utf-8")
        changes = {
            "name: database-1": f"name: {machine.name}",
            **{f"{key}: 10.0.0.8:": f"{key}: {machine.address}:" for key in ("listen", "connect_address")},
            "10.0.0.": f"{net}.",
            "/var/run/postgresql": str(folder),
            "/usr/lib/postgresql/15/bin": str(binaries()),
            "/var/lib/postgresql/15/holdfast": str(machine.disk / "postgres"),
            **PASSWORDS,
        }
        for shipped, used in changes.items():
            assert shipped in text, shipped
            text = text.replace(shipped, used)
        (folder / "patroni.yaml").write_text(text)
        user = pwd.getpwnam(server_user() or "")
        for path in (folder, machine.disk):
            os.chown(path, user.pw_uid, user.pw_gid)
        return machine
