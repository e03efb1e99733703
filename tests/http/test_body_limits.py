"""The body limits of each route and caller, and where bodies are decoded."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

import httpx2
import pytest
import trio
from tests.clients import refused
from trio.testing import MockClock

from holdfast.http.app import ROUTES
from holdfast.http.kit import bodies
from holdfast.http.kit.bodies import SMALL_BODY_BYTES_MAX
from holdfast.http.kit.calls import ANONYMOUS_BODY_BYTES_MAX, Auth
from holdfast.http.services import quotes
from holdfast.ledger.catalog.pricing import quote_input

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.stage import Stage

QUOTE, OTP = "/v2/quote", "/v2/control/auth/otp"
JSON = {"Content-Type": "application/json"}


def quote_of(prompt_chars: int) -> dict[str, Any]:
    return {"model": "studio/image-1", "input": {"prompt": "a" * prompt_chars}}


def test_only_routes_with_a_models_input_accept_large_bodies() -> None:
    large = {route.path for route in ROUTES if route.takes_input}
    assert large == {
        "/v2/quote",
        "/v2/task/create",
        "/v2/control/tasks",
        "/v1/images/generations",
        "/v1/audio/speech",
        "/v1/videos",
        "/replicate/v1/predictions",
        "/replicate/v1/models/{owner}/{name}/predictions",
    }
    # What takes bytes as they come judges a signature over them before it decodes them, or a key before it reads
    # them.
    taking = {route.path: route.auth for route in ROUTES if (route.raw_body_bytes_max or 0) > SMALL_BODY_BYTES_MAX}
    assert taking.pop("/mcp") is Auth.API_KEY
    raw = {*taking.values()}
    assert raw <= {Auth.CALLBACK_SIGNATURE, Auth.PROVIDER_WEBHOOK, Auth.CARD_SIGNATURE}


@pytest.mark.parametrize("path", [OTP, "/v2/control/auth/verify", "/v2/control/payments/sandbox/callback"])
async def test_anonymous_callers_may_send_small_bodies_only(stage: Stage, path: str) -> None:
    for body in (b'{"email":"' + b"a" * SMALL_BODY_BYTES_MAX + b'"}', b" " * (SMALL_BODY_BYTES_MAX + 1)):
        response = await stage.call("POST", path, content=body, headers=JSON)
        refused(response, 413, "request_too_large")
    many = b'{"email":[' + b"{}," * 3000 + b"{}]}"
    refused(await stage.call("POST", path, content=many, headers=JSON), 400, "invalid_json")


async def test_a_large_input_is_quoted_with_a_credential(api: Api) -> None:
    large = quote_of(ANONYMOUS_BODY_BYTES_MAX)
    refused(await api.call("POST", QUOTE, json=large), 413, "request_too_large")
    wrong = {"Authorization": "Bearer hst_" + "B" * 43}
    refused(await api.call("POST", QUOTE, json=large, headers=wrong), 413, "request_too_large")
    # Read, and then refused by the model, whose prompts are shorter.
    refused(await api.as_key("POST", QUOTE, json=large), 400, "invalid_input")
    refused(await api.as_session("POST", QUOTE, json=large), 400, "invalid_input")
    assert (await api.call("POST", QUOTE, json=quote_of(10))).status_code == 200


class Endless(httpx2.AsyncByteStream):
    """A body that does not end."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        await trio.sleep(0.01)
        return b" " * 32768


async def test_a_body_without_a_length_has_the_same_limits(stage: Stage, autojump_clock: MockClock) -> None:
    request = httpx2.Request("POST", stage.http.base_url.join(QUOTE), headers=JSON, stream=Endless())
    refused(await stage.http.send(request), 413, "request_too_large")


async def test_the_body_of_an_agent_is_read_after_its_key(stage: Stage, autojump_clock: MockClock) -> None:
    for headers, code in (
        (JSON, "missing_credentials"),
        ({**JSON, "Authorization": "Bearer x"}, "invalid_api_key"),
    ):
        request = httpx2.Request("POST", stage.http.base_url.join("/mcp"), headers=headers, stream=Endless())
        refused(await stage.http.send(request), 401, code)


async def test_only_large_bodies_are_decoded_in_a_thread(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, bool]] = []
    loop = threading.current_thread()

    def noted(name: str, work: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            seen.append((name, threading.current_thread() is loop))
            return work(*args, **kwargs)

        return run

    monkeypatch.setattr(bodies, "parse_object", noted("decoded", bodies.parse_object))
    monkeypatch.setattr(quotes, "quote_input", noted("judged", quote_input))
    many = {"model": "studio/image-1", "input": {"prompt": "a", "more": [0] * 1000}}
    for body, status in ((quote_of(10), 200), (quote_of(50_000), 400), (many, 400)):
        assert (await stage.call("POST", QUOTE, json=body)).status_code == status
    assert seen == [(name, is_here) for is_here in (True, False, False) for name in ("decoded", "judged")]


@pytest.mark.parametrize(
    "path", ["/v2/control/auth/otp", "/v2/callback", "/v2/callback/studio", "/v2/callback/unknown"]
)
async def test_no_body_exceeds_its_routes_limit(stage: Stage, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    async with (
        stage.serving() as base,
        await trio.open_tcp_stream("127.0.0.1", int(base.rpartition(":")[2])) as stream,
    ):
        await stream.send_all(head + (b"10000\r\n" + b" " * 65536 + b"\r\n") * 24 + b"0\r\n\r\n")
        answer = await stream.receive_some()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"request_too_large"' in answer
