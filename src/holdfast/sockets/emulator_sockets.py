"""The sockets of the emulators, whose ports stay the same from start to start.

They are bound before anything is given their ports, and kept for as long as the service runs: a port that was only
found free could be another process's before the emulator takes it. Each listens from the emulator's start on.
"""

from __future__ import annotations

import random
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.settings.checks import has_emulators
from holdfast.settings.settings import PREFIX, Settings, SettingsFault
from holdfast.sockets.listening import ORPHANS_POLL_S, ORPHANS_S, CannotListen

EMULATOR_HOST: Final = "127.0.0.1"
PORTS: Final = range(10_240, 32_768)
"""Where a new port is taken from. Outgoing connections have higher ones, which might not be free at the next start;
browsers refuse some lower ones."""
PORTS_TRIED: Final = 1_000


@dataclass(frozen=True, slots=True)
class EmulatorSockets:
    """Bound sockets; None for an emulator that is not installed or that these settings do not use."""

    studio: socket.socket | None = None
    card: socket.socket | None = None

    @property
    def ports(self) -> dict[str, int]:
        """Return their ports by the names of the settings."""
        named = {"studio_port": self.studio, "card_emulator_port": self.card}
        return {name: int(each.getsockname()[1]) for name, each in named.items() if each is not None}

    def close(self) -> None:
        """Close them in this process."""
        for each in (self.studio, self.card):
            if each is not None:
                each.close()


def open_emulator_sockets(settings: Settings) -> EmulatorSockets:
    """Bind the sockets of the emulators that are installed; the card emulator's only where it is the card provider.

    Raises :class:`CannotListen` if a configured port is taken, :class:`SettingsFault` if a port cannot be stored.
    """
    if not has_emulators():
        return EmulatorSockets()
    with ExitStack() as opened:
        studio = opened.enter_context(_open(settings.studio_port, settings.data_dir / "studio.port"))
        card = None
        if settings.card_api_key is None and not settings.is_production:
            card = opened.enter_context(_open(settings.card_emulator_port, _card_port_file(settings)))
        opened.pop_all()
    return EmulatorSockets(studio, card)


def card_emulator_port(settings: Settings) -> int | None:
    """Return the card emulator's port: the configured one, or that of the last start. None: there was no start."""
    return settings.card_emulator_port or _stored_port(_card_port_file(settings))


def _card_port_file(settings: Settings) -> Path:
    return settings.data_dir / "card.port"


def _open(configured: int, file: Path) -> socket.socket:
    """Bind the configured port, the one stored at the last start, or a new one, which is stored.

    The stored one is preferred, because orders and jobs of the last start contain the emulator's URL.
    """
    if configured:
        bound = _bind_when_free(configured)
        if bound is None:
            raise CannotListen(f"Cannot listen on {EMULATOR_HOST}:{configured}: it is taken.")
        return bound
    stored = _stored_port(file)
    bound = (None if stored is None else _bind_when_free(stored)) or _bind_new()
    try:
        file.write_text(f"{bound.getsockname()[1]}\n")
    except OSError as exc:
        bound.close()
        raise SettingsFault((f"{PREFIX}DATA_DIR: cannot write {file}: {exc.strerror}",)) from exc
    return bound


def _bind_when_free(port: int) -> socket.socket | None:
    """Bind the port, or return None if it is taken. The emulators of a killed service are waited for."""
    deadline_s = time.monotonic() + ORPHANS_S
    while (bound := _bind(port, reuse=True)) is None and time.monotonic() < deadline_s:
        time.sleep(ORPHANS_POLL_S)
    return bound


def _bind_new() -> socket.socket:
    """Bind any free port. Without reuse, so that two services that start cannot both have it."""
    for port in random.sample(PORTS, PORTS_TRIED):
        if (bound := _bind(port, reuse=False)) is not None:
            return bound
    raise CannotListen(f"No port of {EMULATOR_HOST} is free for an emulator.")


def _bind(port: int, *, reuse: bool) -> socket.socket | None:
    """Return a socket on the port, or None if it is taken. ``reuse``: it may have connections in TIME_WAIT."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
    try:
        found.bind((EMULATOR_HOST, port))
    except OSError:
        found.close()
        return None
    return found


def _stored_port(file: Path) -> int | None:
    try:
        stored = file.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return int(stored) if stored.isdigit() and 0 < int(stored) < 65_536 else None
