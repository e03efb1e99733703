"""Errors as the wire shows them: ``{"error": {type, code, message, param, …}}`` with a status."""

from __future__ import annotations

from collections.abc import Mapping


class WireError(Exception):
    """A refusal to be written as an error answer. ``more`` are further keys of its ``error`` object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        more: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        told = {"type": kind, "code": code, "message": message, "param": param}
        self.body: dict[str, object] = {
            "error": {**{name: value for name, value in told.items() if value is not None}, **(more or {})}
        }


def missing(kind: str, given: str, param: str = "id") -> WireError:
    """The object named does not exist here."""
    return WireError(404, f"No such {kind}: '{given}'", code="resource_missing", param=param)


def unexpected_state(message: str, intent: object) -> WireError:
    """The intent is in no state for this; the error carries the intent, as the real one's does."""
    return WireError(400, message, code="payment_intent_unexpected_state", more={"payment_intent": intent})
