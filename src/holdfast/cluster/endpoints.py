"""Where members reach each other: Unix sockets on one machine, TCP with mutual TLS between machines."""

from __future__ import annotations

import hashlib
import os
import socket
import ssl
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import structlog
import trio

from holdfast.persistence.claims.processes import Member

log = structlog.get_logger(__name__)

Listener: TypeAlias = trio.abc.Listener[trio.abc.Stream]

UNIX: Final = "unix:"
TCP: Final = "tcp:"
HTTP: Final = "http:"
"""Where a load balancer reaches the member; other members do not use it."""
PORTS_TRIED: Final = 64
SOCKET_PATH_BYTES_MAX: Final = 107
"""The most that the system allows (``sun_path``)."""
DIAL_TIMEOUT_S: Final = 3.0
BACKLOG: Final = 128
NEW_SOCKET_S: Final = 60.0
"""A socket younger than this may belong to a process that does not listen yet."""


@dataclass(frozen=True, slots=True)
class MutualTls:
    """The settings of connections between machines, in which both sides show a certificate.

    ``accept``: the other side's certificate must be one of the authority. ``dial``: it must name the host as well.
    """

    accept: ssl.SSLContext
    dial: ssl.SSLContext


class UnusableFile(Exception):
    """A file for TLS cannot be read, or has no certificate or key that fits. The text names it."""


def mutual_tls(*, certificate: Path, key: Path, authority: Path) -> MutualTls:
    """Return the settings for this member's certificate and the authority of all. Raises :class:`UnusableFile`."""
    try:
        accept = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority)
        dial = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authority)
    except OSError as fault:
        raise UnusableFile(f"{authority} is not the certificate of an authority: {fault.strerror}") from None
    accept.verify_mode = ssl.CERT_REQUIRED
    for context in (accept, dial):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_cert_chain(certificate, key)
        except OSError as fault:
            raise UnusableFile(
                f"{certificate} and {key} are not a certificate and its key: {fault.strerror}"
            ) from None
    return MutualTls(accept, dial)


@dataclass(frozen=True, slots=True)
class MemberEndpoint:
    """Where this member listens for others: in a folder of sockets, and at ``address`` (host and port) if given.

    Several processes of one machine may have the same address; each takes the next free port from there on.
    ``http`` is where clients reach it, also host and port.
    """

    folder: Path
    machine: str | None = None
    address: tuple[str, int] | None = None
    tls: MutualTls | None = None
    http: str | None = None

    def listen(self, name: str) -> tuple[Sequence[Listener], tuple[str, ...]]:
        """Open the listeners, and return them with their addresses.

        Raises OSError if ``address`` cannot be used. Without the folder only other machines reach this member.
        """
        listeners: list[Listener] = []
        addresses: list[str] = []
        if self.machine is not None:
            path = socket_path(self.folder, name)
            try:
                listeners.append(_listen_unix(path))
                addresses.append(f"{UNIX}{path}")
            except OSError as exc:
                log.warning(
                    "no socket for other processes of this machine", folder=str(path.parent), reason=str(exc)
                )
        if self.address is not None:
            host, first = self.address
            listener = _listen_tcp(host, first)
            addresses.append(f"{TCP}{host}:{listener.socket.getsockname()[1]}")
            listeners.append(_with_tls(listener, self.tls))
        if self.http is not None:
            addresses.append(f"{HTTP}{self.http}")
        return listeners, tuple(addresses)

    @staticmethod
    def forget(addresses: Sequence[str]) -> None:
        """Remove what closed listeners leave in the file system."""
        for address in addresses:
            if address.startswith(UNIX):
                Path(address.removeprefix(UNIX)).unlink(missing_ok=True)

    async def dial(self, member: Member) -> trio.abc.Stream:
        """Open a connection. Raises OSError or ``trio.BrokenResourceError`` if the member cannot be reached."""
        is_here = self.machine is not None and member.machine == self.machine
        for address in member.membership.addresses:
            if address.startswith(UNIX) and is_here:
                return await trio.open_unix_socket(address.removeprefix(UNIX))
            if address.startswith(TCP) and not is_here:
                host, _, port = address.removeprefix(TCP).rpartition(":")
                return await self._dial_tcp(host, int(port))
        raise OSError("the member has no address that can be reached from here")

    async def _dial_tcp(self, host: str, port: int) -> trio.abc.Stream:
        stream = await trio.open_tcp_stream(host, port)
        if self.tls is None:
            return stream
        secured = trio.SSLStream(stream, self.tls.dial, server_hostname=host, https_compatible=True)
        await secured.do_handshake()
        return secured


def socket_path(folder: Path, name: str) -> Path:
    """Return the path of a member's socket: in ``folder``, or in a short private one if that path is too long."""
    path = folder / f"{name}.sock"
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
        path = Path(tempfile.gettempdir()) / f"holdfast-members-{os.geteuid()}-{digest}" / path.name
    return path


def _listen_unix(path: Path) -> Listener:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.parent.lstat()
    if found.st_uid != os.geteuid():
        raise OSError(f"{path.parent} belongs to another user")
    path.parent.chmod(0o700)
    _remove_abandoned(path.parent)
    raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    raw.bind(str(path))
    raw.listen(BACKLOG)
    return trio.SocketListener(trio.socket.from_stdlib_socket(raw))


def _remove_abandoned(folder: Path) -> None:
    """Remove the sockets of killed processes."""
    for path in folder.glob("*.sock"):
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if time.time() - path.lstat().st_mtime < NEW_SOCKET_S:
                continue
            probe.setblocking(False)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()


def _listen_tcp(host: str, first: int) -> trio.SocketListener:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in range(first, min(first + PORTS_TRIED, 65536)):
        raw = socket.socket(family, socket.SOCK_STREAM)
        # A member that was killed and starts again keeps its port, though connections to it are still in TIME_WAIT.
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            raw.bind((host, port))
            raw.listen(BACKLOG)
        except OSError:
            raw.close()
            continue
        return trio.SocketListener(trio.socket.from_stdlib_socket(raw))
    raise OSError(f"no port from {first} on is free on {host}")


def _with_tls(listener: trio.SocketListener, tls: MutualTls | None) -> Listener:
    if tls is None:
        return listener
    return trio.SSLListener(listener, tls.accept, https_compatible=True)
