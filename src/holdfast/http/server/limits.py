"""The limits of the server, and the limit of open files that bounds its connections."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from typing import Final

READ_AHEAD_BYTES: Final = 64 * 1024
"""How much is buffered of a body for its handler, and of requests that wait for their turn; beyond that (and one
receive) the socket is not read."""

SEND_BYTES: Final = 64 * 1024
"""The amount that the client must read within one send timeout."""

BODY_STEP_BYTES: Final = 1024 * 1024
"""The amount of a body that the client must send within one body timeout."""

PIPELINED_MAX: Final = 64
"""How many pipelined requests may wait. The last of them gets ``Connection: close``, and the client sends further
ones again."""

REFUSED_AT_ONCE_MAX: Final = 64
"""How many refused connections are served their error in full; others get what the kernel takes at once."""

BYTES_PER_PEER_MAX: Final = 64 * 1024 * 1024
"""With so many bytes of bodies and responses in flight, a client behind proxies gets no further requests served."""

STALLED_S: Final = 5.0
"""At the limit of connections, one whose client has neither sent nor read for so long makes room for another."""

SWEEP_INTERVAL_S: Final = 0.5
"""How often deadlines are checked, which is also how late they may be noticed."""

READS_MAX: Final = 64
"""How often the socket is read on, after a request, in search of the end of its connection."""

CHUNK_OVERHEAD_BYTES_MAX: Final = 64 * 1024
"""The bytes that a chunked body may have beyond eight times its data, for extensions and trailers."""


RESERVED_FILES: Final = 512
"""Open files reserved for the database, stored results and outgoing calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """The configurable limits.

    ``operators_connections_max`` of ``connections_max`` are for the operators' listener alone, and the rest for the
    public one. ``connections_per_peer_max``: of one address, or requests of one client behind proxies.
    ``head_timeout_s`` runs from a head's first byte to its end, ``body_timeout_s`` for each MiB of its
    body, ``send_timeout_s`` for each 64 KiB of a response, ``idle_timeout_s`` between requests.
    ``header_bytes_max`` limits the names and values of headers, and separately the request's target.
    ``body_bytes_max``: the largest body that is held in memory; of a larger one the handler takes part by part.
    ``rest_of_body_s``: how long a response waits for the rest of an unread body before it closes the connection.
    ``linger_s``: how long a closed connection is still read, so that the client gets the response rather than a
    reset; also how long an idle one may still send a request when the server stops. ``finish_requests_s``: how long
    a stop waits for current requests.
    """

    connections_max: int = 4096
    operators_connections_max: int = 0
    connections_per_peer_max: int = 512
    head_timeout_s: float = 15.0
    body_timeout_s: float = 60.0
    send_timeout_s: float = 20.0
    idle_timeout_s: float = 60.0
    header_bytes_max: int = 32 * 1024
    body_bytes_max: int = 2 * 1024 * 1024
    header_count_max: int = 100
    rest_of_body_s: float = 2.0
    linger_s: float = 2.0
    finish_requests_s: float = 5.0


def raise_open_files_limit() -> int:
    """Raise the soft limit of open files to the hard one, and return the resulting limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):
            pass  # on some systems the hard limit cannot be reached
    return 2**31 - 1 if soft == resource.RLIM_INFINITY else soft


def connections_within(open_files: int, connections_max: int) -> int:
    """Return how many connections a limit of open files allows, at most ``connections_max``."""
    available = max(open_files - RESERVED_FILES, open_files // 2)
    return max(1, min(connections_max, available))
