"""The bounds of the server. None of them depends on what a client does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

RECEIVE_BYTES: Final = 64 * 1024
"""What is read from a socket at once."""

READ_AHEAD_BYTES: Final = 64 * 1024
"""How much of a body may wait for its handler; the client is not read from beyond that (and one receive)."""

SEND_BYTES: Final = 64 * 1024
"""What must be taken by the client within one send timeout."""

PIPELINED_MAX: Final = 64
"""How many requests may wait behind one that is being answered. What a client sends beyond is not read as requests:
the last of them is answered with ``Connection: close``, and the client may send the others again."""

REFUSED_AT_ONCE_MAX: Final = 64
"""How many connections beyond the limit get an answer that says so; others are closed without one."""

SWEEP_INTERVAL_S: Final = 0.5
"""How often deadlines are looked at, so all of them are late by up to this much."""

CHUNK_OVERHEAD_BYTES_MAX: Final = 64 * 1024
"""How much a chunked body may spend on chunk sizes, extensions and trailers beyond what its data explains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """How long, how large and how many.

    ``head_timeout_s`` runs from a head's first byte to its end, ``body_timeout_s`` from the head's end to the
    body's, ``send_timeout_s`` for each 64 KiB of an answer, ``idle_timeout_s`` while no request is under way.
    ``header_bytes_max`` counts names and values of headers, and separately the request's target.
    ``rest_of_body_s``: how long an answer waits for the rest of a body that nobody reads; then the connection is
    closed after it. ``linger_s``: how long a closed connection is still read from, so that the client gets the
    answer rather than a reset; also how long an idle one may still send a request once the server stops.
    ``finish_requests_s``: how long a stop waits for requests under way.
    """

    connections_max: int = 2048
    connections_per_peer_max: int = 512
    head_timeout_s: float = 15.0
    body_timeout_s: float = 60.0
    send_timeout_s: float = 20.0
    idle_timeout_s: float = 60.0
    header_bytes_max: int = 32 * 1024
    header_count_max: int = 100
    rest_of_body_s: float = 2.0
    linger_s: float = 2.0
    finish_requests_s: float = 5.0
