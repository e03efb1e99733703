"""``holdfast provider check``: asks the running service for a check, and shows its steps, one line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import quote

import httpx2
import msgspec

from holdfast import __version__
from holdfast.http.endpoints.operators.providers import ProviderCheckBody
from holdfast.settings.settings import ServiceLocation

_RESULTS = {"ok": "ok     ", "failed": "FAILED ", "skipped": "-      "}


class ServiceFault(Exception):
    """The service did not do what was asked; the text says why, for the terminal."""


def check_provider(
    location: ServiceLocation, provider: str, wanted: Mapping[str, object], *, url: str | None, timeout_s: float
) -> ProviderCheckBody:
    """Have the service at ``location``, or at ``url``, check a provider. Raises :class:`ServiceFault`."""
    url = (url or location.url).rstrip("/")
    token = location.stored_operator_token()
    if token is None:
        raise ServiceFault(
            f"The operators' token is neither in HOLDFAST_OPERATOR_TOKEN nor in {location.token_file}."
        )
    path = f"{url}/ops/api/providers/{quote(provider, safe='')}/check"
    headers = {"Authorization": f"Bearer {token}"}
    try:
        # A proxy of the environment would be sent the token.
        response = httpx2.post(path, json=wanted, headers=headers, timeout=timeout_s, trust_env=False)
    except httpx2.TimeoutException as fault:
        raise ServiceFault(f"The service at {url} does not answer within {timeout_s:g} s.") from fault
    except httpx2.TransportError as fault:
        raise ServiceFault(f"The service at {url} cannot be reached: {fault}") from fault
    try:
        if response.is_success:
            return msgspec.json.decode(response.content, type=ProviderCheckBody)
        error = msgspec.json.decode(response.content, type=_ErrorAnswer).error
    except msgspec.MsgspecError as fault:
        raise ServiceFault(
            f"{url} did not answer as Holdfast {__version__} does: {response.status_code}, {fault}"
        ) from fault
    hint = " Repeat with --yes to accept that." if error.code == "cost_not_accepted" else ""
    raise ServiceFault(error.message + hint)


def check_lines(found: ProviderCheckBody) -> Iterator[str]:
    """Yield the lines of a check's result: what was tried, then each step with its time."""
    yield f"provider {found.provider}, one job of {found.model} (customers pay {found.price})"
    for step in found.steps:
        yield f"{_RESULTS[step.result]}{step.name:<11} {step.duration_s:>7.3f} s  {step.detail}"


class _Error(msgspec.Struct, frozen=True):
    code: str
    message: str


class _ErrorAnswer(msgspec.Struct, frozen=True):
    error: _Error
