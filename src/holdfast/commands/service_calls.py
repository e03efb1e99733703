"""Calls of the running service by commands, with the operators' token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import httpx2
import msgspec

from holdfast import __version__
from holdfast.ledger.values import new_id
from holdfast.settings.settings import ServiceLocation

T = TypeVar("T")


class ServiceFault(Exception):
    """The service did not do what was asked; the text says why, for the terminal."""


class ServiceRefused(ServiceFault):
    """The service refused this request; it may take another one."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def call_service(
    location: ServiceLocation,
    path: str,
    reply: type[T],
    *,
    url: str | None,
    timeout_s: float,
    query: Mapping[str, str] | None = None,
    body: Mapping[str, object] | None = None,
) -> T:
    """Read ``path`` of the service at ``location``, or at ``url``; with a ``body`` send that.

    Raises :class:`ServiceFault`.
    """
    url = (url or location.url).rstrip("/")
    token = location.stored_operator_token()
    if token is None:
        raise ServiceFault(
            f"The operators' token is neither in HOLDFAST_OPERATOR_TOKEN nor in {location.token_file}."
        )
    try:
        # A proxy of the environment would be sent the token.
        response = httpx2.request(
            "GET" if body is None else "POST",
            url + path,
            params=query,
            json=body,
            headers={"Authorization": f"Bearer {token}", "Idempotency-Key": new_id("req")},
            timeout=timeout_s,
            trust_env=False,
        )
    except httpx2.TimeoutException as fault:
        raise ServiceFault(f"The service at {url} does not answer within {timeout_s:g} s.") from fault
    except httpx2.TransportError as fault:
        raise ServiceFault(f"The service at {url} cannot be reached: {fault}") from fault
    try:
        if response.is_success:
            return msgspec.json.decode(response.content, type=reply)
        error = msgspec.json.decode(response.content, type=_ErrorAnswer).error
    except msgspec.MsgspecError as fault:
        raise ServiceFault(
            f"{url} did not answer as Holdfast {__version__} does: {response.status_code}, {fault}"
        ) from fault
    raise ServiceRefused(error.code, error.message)


class _Error(msgspec.Struct, frozen=True):
    code: str
    message: str


class _ErrorAnswer(msgspec.Struct, frozen=True):
    error: _Error
