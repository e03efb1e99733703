"""Closing a listening socket without resetting a connection."""

from __future__ import annotations

import ctypes
import socket
import struct
from contextlib import suppress
from typing import Final

_SO_ATTACH_FILTER: Final = 26


def refuse_new_connections(listening: socket.socket) -> None:
    """Let the system ignore new connections on a socket that is about to close for good, if it can.

    Otherwise a connection between the last accept and the close would be reset. It applies to the socket in every
    process that has it.
    """
    instruction = struct.pack("HBBI", 0x06, 0, 0, 0)  # a socket filter that drops every packet
    program = ctypes.create_string_buffer(instruction)
    with suppress(OSError):  # not Linux; the window is short
        listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(program)))
