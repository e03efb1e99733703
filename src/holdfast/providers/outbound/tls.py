"""The certificates that outbound connections trust."""

from __future__ import annotations

import ssl
from functools import cache

import certifi


@cache
def tls_context() -> ssl.SSLContext:
    """Return a context that trusts certifi's bundle alone, not the environment or the system's bundle.

    There is one for all clients, because reading the bundle takes longer than a request.
    """
    context = ssl.create_default_context(cafile=certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context
