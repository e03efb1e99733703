"""Listening sockets: opened here, or passed by systemd.

Each worker process accepts on a socket of its own, all bound to one address with SO_REUSEPORT: the system spreads
new connections evenly over them, which it does not over the waiters for one socket. A socket that closes resets the
connections that wait in its queue, so the sockets belong to the parent of the workers and stay open when a worker
ends.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

import structlog

from holdfast.settings.settings import PREFIX, Settings

log = structlog.get_logger(__name__)

BACKLOG: Final = 1024
ORPHANS_S: Final = 10.0
"""How long the workers of a killed parent may take to close their sockets."""
ORPHANS_POLL_S: Final = 0.05

_FIRST_PASSED_FD: Final = 3
_OPERATORS: Final = "operators"


class CannotListen(Exception):
    """The sockets cannot be opened or used; the message is a sentence."""


class SlotSockets(NamedTuple):
    """What one process accepts on. ``operators`` None: the operators' routes are on the public socket."""

    public: socket.socket
    operators: socket.socket | None = None

    def each(self) -> tuple[socket.socket, ...]:
        """Return them, the public one first."""
        return (self.public,) if self.operators is None else (self.public, self.operators)


@dataclass(frozen=True, slots=True)
class Sockets:
    """The listening sockets that a process has, by worker slot; without workers there is slot 0 alone.

    ``is_shared``: systemd or other processes have them too, and they stay open when this process closes them.
    """

    of_slots: Mapping[int, SlotSockets]
    is_shared: bool

    def each(self) -> frozenset[socket.socket]:
        """Return all of them; slots may share one."""
        return frozenset(chain.from_iterable(slot.each() for slot in self.of_slots.values()))

    def close(self) -> None:
        """Close them in this process."""
        for listening in self.each():
            listening.close()


def open_sockets(settings: Settings, variables: Mapping[str, str]) -> Sockets:
    """Return the sockets that systemd passed, or open one a worker for each configured address.

    Raises :class:`CannotListen`.
    """
    count, is_parent = max(1, settings.processes), settings.processes > 0
    passed = _passed_sockets(variables)
    if passed is not None:
        public, operators = passed
        _check_passed(public, operators, settings, count)
        _warn_of_ignored(public, settings, variables, "host", "port")
        _warn_of_ignored(operators, settings, variables, "ops_host", "ops_port")
    else:
        with ExitStack() as opened:
            public, operators = _bind(opened, settings.host, settings.port, count, is_parent), []
            if settings.ops_port is not None:
                operators = _bind(opened, settings.ops_host, settings.ops_port, count, is_parent)
            opened.pop_all()
    of_slots = {
        slot: SlotSockets(public[slot % len(public)], operators[slot % len(operators)] if operators else None)
        for slot in range(count)
    }
    return Sockets(of_slots, is_shared=passed is not None)


def url_of(listening: socket.socket) -> str:
    """Return the URL of a socket on this machine."""
    host, port = listening.getsockname()[:2]
    if host in {"0.0.0.0", "::"}:  # noqa: S104 - only recognised
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def inherited_socket(fd: int) -> socket.socket:
    """Return the socket of a descriptor that this process has from its parent."""
    os.set_inheritable(fd, False)
    return socket.socket(fileno=fd)


def _passed_sockets(variables: Mapping[str, str]) -> tuple[list[socket.socket], list[socket.socket]] | None:
    """Return the public and the operators' sockets passed by systemd's protocol (sd_listen_fds), or None."""
    if variables.get("LISTEN_PID") != str(os.getpid()):
        return None
    count = int(variables.get("LISTEN_FDS", "0"))
    names = variables.get("LISTEN_FDNAMES", "").split(":")
    public: list[socket.socket] = []
    operators: list[socket.socket] = []
    for index in range(count):
        named_operators = index < len(names) and names[index] == _OPERATORS
        (operators if named_operators else public).append(inherited_socket(_FIRST_PASSED_FD + index))
    return public, operators


def _check_passed(
    public: list[socket.socket], operators: list[socket.socket], settings: Settings, count: int
) -> None:
    for listening in (*public, *operators):
        if not listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise CannotListen("systemd passed a socket that does not listen: its unit needs Accept=no.")
    if not 1 <= len(public) <= count:
        raise CannotListen(f"systemd passed {len(public)} public sockets; one to {count} can be used.")
    if (settings.ops_port is None) != (not operators) or len(operators) > count:
        raise CannotListen(
            "systemd must pass sockets with the name operators if HOLDFAST_OPS_PORT is set, and only then."
        )


def _warn_of_ignored(
    passed: list[socket.socket], settings: Settings, variables: Mapping[str, str], *names: str
) -> None:
    """Warn of a host or port that was set, and is another than that of the sockets of systemd."""
    for listening in passed:
        for name, actual in zip(names, listening.getsockname(), strict=False):
            variable = f"{PREFIX}{name.upper()}"
            if variables.get(variable, "").strip() and getattr(settings, name) != actual:
                log.warning(f"{variable} is ignored", systemd_listens_on=url_of(listening))


def _bind(opened: ExitStack, host: str, port: int, count: int, reuse_port: bool) -> list[socket.socket]:
    """Open ``count`` sockets on one address; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        if port:
            _await_free(family, host, port)
        listening = []
        for _ in range(count):
            each = opened.enter_context(socket.socket(family, socket.SOCK_STREAM))
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, reuse_port)
            each.bind((host, port))
            port = each.getsockname()[1]
            listening.append(each)
        for each in listening:
            each.listen(BACKLOG)
    except OSError as exc:
        raise CannotListen(f"Cannot listen on {host}:{port}: {exc.strerror}.") from exc
    return listening


def _await_free(family: int, host: str, port: int) -> None:
    """Raise OSError if another service listens on the address.

    SO_REUSEPORT would let this user's services share a port unnoticed. The workers of a killed parent have the same
    option, and close their sockets soon: they are waited for.
    """
    deadline_s = time.monotonic() + ORPHANS_S
    while True:
        try:
            _try_bind(family, host, port, socket.SO_REUSEADDR)
        except OSError:
            _try_bind(family, host, port, socket.SO_REUSEADDR, socket.SO_REUSEPORT)
            if time.monotonic() >= deadline_s:
                raise
            time.sleep(ORPHANS_POLL_S)
        else:
            return


def _try_bind(family: int, host: str, port: int, *options: int) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        for option in options:
            probe.setsockopt(socket.SOL_SOCKET, option, 1)
        probe.bind((host, port))
