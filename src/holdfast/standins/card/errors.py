"""Errors of the emulated API: ``{"error": {type, code, message, param, …}}`` with a status."""

from __future__ import annotations

from collections.abc import Mapping


class ApiError(Exception):
    """An error response. ``more`` are further keys of its ``error`` object."""

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
        error = {"type": kind, "code": code, "message": message, "param": param}
        self.body: dict[str, object] = {
            "error": {**{name: value for name, value in error.items() if value is not None}, **(more or {})}
        }


def missing(kind: str, given: str) -> ApiError:
    """Return the error for an object that does not exist."""
    return ApiError(404, f"No such {kind}: '{given}'", code="resource_missing", param="id")


def unexpected_state(message: str, intent: object) -> ApiError:
    """Return the error for an intent in the wrong state; like the provider's, it contains the intent."""
    return ApiError(400, message, code="payment_intent_unexpected_state", more={"payment_intent": intent})
