"""Requests whose bodies are bounded by what their route takes, not by the largest that any route takes.

The server hands on what comes in whether or not anybody reads it, so a limit that is only looked at afterwards
would let every route be filled up to the largest of them.
"""

from __future__ import annotations

from quart import Request
from quart_trio.wrappers.request import TrioBody, TrioRequest
from werkzeug.exceptions import RequestEntityTooLarge


class BoundedBody(TrioBody):
    """A body whose limit may be lowered while it comes in."""

    def bound(self, bytes_max: int) -> None:
        """Take no more than ``bytes_max`` bytes in all; whoever reads a longer body gets the framework's 413."""
        self._max_content_length = bytes_max
        if len(self._data) > bytes_max:
            self._must_raise = RequestEntityTooLarge()
            self.set_complete()


class FrontRequest(TrioRequest):
    """A request of this house."""

    body_class = BoundedBody


def bound_body(request: Request, bytes_max: int) -> None:
    """Lower the limit of a request's body."""
    if isinstance(request.body, BoundedBody):
        request.body.bound(bytes_max)
