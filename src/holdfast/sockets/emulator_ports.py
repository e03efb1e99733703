"""The ports of the emulators, which stay the same from start to start."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

from holdfast.settings.checks import has_emulators
from holdfast.settings.settings import PREFIX, Settings, SettingsFault

EMULATOR_HOST: Final = "127.0.0.1"


def studio_port(settings: Settings) -> int:
    """Return the port of the built-in studio."""
    return _stored_port(settings.data_dir / "studio.port", configured=settings.studio_port)


def card_port_file(settings: Settings) -> Path:
    """Return the file that stores the port of the card emulator."""
    return settings.data_dir / "card.port"


def card_emulator_port(settings: Settings) -> int | None:
    """Return the port of the card emulator; None if these settings use none, or it is not installed."""
    if settings.card_api_key is not None or settings.is_production or not has_emulators():
        return None
    return _stored_port(card_port_file(settings), configured=settings.card_emulator_port)


def _stored_port(file: Path, *, configured: int) -> int:
    """Return the configured port, the one stored at the last start, or a free one.

    The stored one is preferred, because orders and jobs of the last start contain the emulator's URL. Raises
    :class:`SettingsFault` if it cannot be stored.
    """
    if configured:
        return configured
    try:
        last = file.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        last = ""
    port = _free_port(int(last) if last.isdigit() else 0) or _free_port(0)
    assert port is not None
    try:
        file.write_text(f"{port}\n")
    except OSError as exc:
        raise SettingsFault((f"{PREFIX}DATA_DIR: cannot write {file}: {exc.strerror}",)) from exc
    return port


def _free_port(port: int) -> int | None:
    """Return the port if it is free (0: any), else None."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((EMULATOR_HOST, port))
        except (OSError, OverflowError):
            return None
        return int(probe.getsockname()[1])
