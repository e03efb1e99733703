"""Calls of a running service with the operators' token."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TypeVar

import httpx2
import msgspec

from holdfast import __version__
from holdfast.settings.settings import ServiceLocation

T = TypeVar("T")

TIMEOUT_S = 15.0


class ServiceFault(Exception):
    """The service did not do what was asked; the text says why, for the terminal."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class ServiceClient:
    """Calls the service at ``location``. Every call raises :class:`ServiceFault`."""

    def __init__(self, location: ServiceLocation, *, url: str | None = None) -> None:
        self.url = (url or location.url).rstrip("/")
        token = location.stored_operator_token()
        if token is None:
            raise ServiceFault(
                f"The operators' token is neither in HOLDFAST_OPERATOR_TOKEN nor in {location.token_file}."
            )
        # A proxy of the environment would be sent the token.
        self._client = httpx2.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {token}"}, trust_env=False
        )

    def __enter__(self) -> ServiceClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def get(self, path: str, reply: type[T]) -> T:
        """Return the body of the response to a GET."""
        return self._call("GET", path, None, reply, TIMEOUT_S)

    def post(self, path: str, body: Mapping[str, object], reply: type[T], *, timeout_s: float = TIMEOUT_S) -> T:
        """Return the body of the response to a POST."""
        return self._call("POST", path, body, reply, timeout_s)

    def _call(
        self, method: str, path: str, body: Mapping[str, object] | None, reply: type[T], timeout_s: float
    ) -> T:
        try:
            response = self._client.request(method, path, json=body, timeout=timeout_s)
        except httpx2.TimeoutException as fault:
            raise ServiceFault(f"The service at {self.url} does not answer within {timeout_s:g} s.") from fault
        except httpx2.TransportError as fault:
            raise ServiceFault(f"The service at {self.url} cannot be reached: {fault}") from fault
        try:
            if response.is_success:
                return msgspec.json.decode(response.content, type=reply)
            error = msgspec.json.decode(response.content, type=_ErrorAnswer).error
        except msgspec.MsgspecError as fault:
            raise ServiceFault(
                f"{self.url} did not answer as Holdfast {__version__} does: {response.status_code}, {fault}"
            ) from fault
        raise ServiceFault(error.message, error.code)


class _Error(msgspec.Struct, frozen=True):
    code: str
    message: str


class _ErrorAnswer(msgspec.Struct, frozen=True):
    error: _Error
