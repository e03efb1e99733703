"""Calls of a running service with the operators' token."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import httpx2
import msgspec

from holdfast.settings import ServiceLocation

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
        self._client = httpx2.Client(base_url=self.url, headers={"Authorization": f"Bearer {token}"})

    def __enter__(self) -> ServiceClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def get(self, path: str) -> dict[str, Any]:
        """Return the body of the response to a GET."""
        return self._call("GET", path, None, TIMEOUT_S)

    def post(self, path: str, body: dict[str, object], *, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        """Return the body of the response to a POST."""
        return self._call("POST", path, body, timeout_s)

    def _call(self, method: str, path: str, body: dict[str, object] | None, timeout_s: float) -> dict[str, Any]:
        try:
            response = self._client.request(method, path, json=body, timeout=timeout_s)
        except httpx2.TimeoutException as fault:
            raise ServiceFault(f"The service at {self.url} does not answer within {timeout_s:g} s.") from fault
        except httpx2.TransportError as fault:
            raise ServiceFault(f"The service at {self.url} cannot be reached: {fault}") from fault
        try:
            answer = msgspec.json.decode(response.content, type=dict[str, Any])
        except msgspec.MsgspecError as fault:
            raise ServiceFault(f"{self.url} is not Holdfast: it answered {response.status_code}.") from fault
        if response.is_success:
            return answer
        error = answer.get("error", {})
        raise ServiceFault(error.get("message", f"The service answered {response.status_code}."), error.get("code"))
