"""Why an outgoing request has no usable response."""

from __future__ import annotations


class TransportFault(Exception):
    """No response, or a broken one. A subclass's name is shown to operators and customers."""


class NeverSent(TransportFault):
    """No byte of the request was sent, so the server cannot have it."""


class ConnectError(NeverSent):
    """The server cannot be connected to: no address, refused, or TLS failed."""


class ConnectTimeout(NeverSent):
    """The connection was not established in time."""


class PoolTimeout(NeverSent):
    """All connections that may be open at once were in use."""


class WriteError(TransportFault):
    """The connection was lost while the request was sent."""


class WriteTimeout(TransportFault):
    """The server did not take the request in time."""


class ReadError(TransportFault):
    """The connection was lost before the response was complete."""


class ReadTimeout(TransportFault):
    """The server sent no further byte in time."""


class RemoteProtocolError(TransportFault):
    """The server's bytes are not a response that HTTP/1.1 allows, or it closed the connection too early."""


class BodyTooLarge(Exception):
    """The body is larger than the limit, which is the argument, in bytes."""
