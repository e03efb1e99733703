"""What all endpoints have in common: request ids, the error format, methods, sizes, faults."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import trio
from tests.clients import refused

from holdfast.actors.runtime.faults import Deadlock, OutcomeUnknown, Overloaded, Unavailable
from holdfast.persistence.server.database_faults import DatabaseAway

if TYPE_CHECKING:
    from tests.http.stage import Stage

OTP = "/v2/control/auth/otp"


async def test_every_response_has_a_new_request_id(stage: Stage) -> None:
    first = await stage.call("GET", "/healthz", headers={"X-Request-Id": "req_mine"})
    second = await stage.call("GET", "/nowhere")
    ids = [first.headers["X-Request-Id"], second.headers["X-Request-Id"]]
    assert all(each.startswith("req_") and len(each) == 36 for each in ids)
    assert ids[0] != ids[1]


async def test_unknown_paths_are_404_and_named(stage: Stage) -> None:
    for path in ("/", "/v2", "/v2/", "/v2/quote/", "/v2//models", "/v1/models/", "/%00", "/v2/task/a/b/c"):
        error = refused(await stage.call("GET", path), 404, "route_not_found")
        assert error["type"] == "not_found_error"


@pytest.mark.parametrize(
    ("method", "path", "known"),
    [
        ("POST", "/images/generations", "'/v1/images/generations' does"),
        ("POST", "/v1/v1/images/edits", "'/v1/images/edits' does"),
        ("POST", "/v2/audio/speech", "'/v1/audio/speech' does"),
        ("GET", "/videos/task_1", "'/v1/videos/task_1' does"),
        ("POST", "/v1/predictions", "'/replicate/v1/predictions' does"),
        ("GET", "/replicate/predictions/task_1", "'/replicate/v1/predictions/task_1' does"),
        ("POST", "/task/create", "'/v2/task/create' does"),
        ("GET", "/models", "'/v1/models' and '/v2/models' and '/replicate/v1/models' do"),
        ("POST", "/v2/quote/", "'/v2/quote' does"),
    ],
)
async def test_a_path_of_another_base_is_answered_with_the_one_that_exists(
    stage: Stage, method: str, path: str, known: str
) -> None:
    error = (await stage.call(method, path)).json()
    message = error["detail"] if path.startswith("/replicate/") else error["error"]["message"]
    assert message == f"The path '{path}' does not exist, but {known}. Look at the base URL of the client."


async def test_a_path_that_is_nowhere_has_no_other(stage: Stage) -> None:
    for path in ("/chat/completions", "/v1/chat/completions", "/v1/embeddings", "/" + "x" * 5000):
        error = refused(await stage.call("POST", path), 404, "route_not_found")
        assert "but" not in error["message"]
        assert len(error["message"]) < 200


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/v2/models", "GET, HEAD, OPTIONS"),
        ("GET", "/v2/quote", "OPTIONS, POST"),
        ("PUT", "/v2/control/session", "DELETE, GET, HEAD, OPTIONS"),
        ("TRACE", "/healthz", "GET, HEAD, OPTIONS"),
        ("PATCH", "/v2/task/create", "OPTIONS, POST"),
        ("GET", "/v2/task/create", "OPTIONS, POST"),
        ("POST", "/v2/task/list", "GET, HEAD, OPTIONS"),
        ("DELETE", "/v2/task/creates", "GET, HEAD, OPTIONS"),
    ],
)
async def test_a_wrong_method_gets_the_allowed_ones(stage: Stage, method: str, path: str, allow: str) -> None:
    response = await stage.call(method, path)
    refused(response, 405, "method_not_allowed")
    assert response.headers["Allow"] == allow


async def test_options_returns_the_methods_without_a_body(stage: Stage) -> None:
    response = await stage.call("OPTIONS", "/v2/control/api-keys")
    assert response.status_code == 204
    assert {each.strip() for each in response.headers["Allow"].split(",")} == {"GET", "HEAD", "OPTIONS", "POST"}
    assert response.content == b""
    assert "Content-Type" not in response.headers


@pytest.mark.parametrize(
    ("fault", "code", "retry_after"),
    [
        (Overloaded("full", retry_after_s=0.2), "overloaded", "1"),
        (Unavailable("restarting", retry_after_s=2.5), "temporarily_unavailable", "3"),
        (OutcomeUnknown("late"), "temporarily_unavailable", "1"),
        (Deadlock("a → b → a"), "temporarily_unavailable", "1"),
        (DatabaseAway("gone", retry_after_s=1.0), "temporarily_unavailable", "1"),
        (ExceptionGroup("several", [Overloaded("full", retry_after_s=4.0)]), "overloaded", "4"),
    ],
)
async def test_expected_faults_are_503_with_retry_after(
    stage: Stage, fault: Exception, code: str, retry_after: str
) -> None:
    stage.sign_ins.answer = fault
    response = await stage.call("POST", OTP, json={"email": "ada@example.com"})
    refused(response, 503, code)
    assert response.headers["Retry-After"] == retry_after


@pytest.mark.parametrize(
    "fault",
    [
        RuntimeError("the secret is hunter2"),
        ExceptionGroup("several", [Overloaded("full"), KeyError("the secret is hunter2")]),
        AssertionError("the secret is hunter2"),
    ],
)
async def test_unexpected_faults_are_500_without_detail(stage: Stage, fault: Exception) -> None:
    stage.sign_ins.answer = fault
    response = await stage.call("POST", OTP, json={"email": "ada@example.com"})
    error = refused(response, 500, "internal_error")
    assert "hunter2" not in str(error)
    assert "Retry-After" not in response.headers


async def test_a_code_without_a_row_is_a_500(stage: Stage) -> None:
    from holdfast.ledger.refusals import Refusal

    stage.sign_ins.answer = Refusal(code="unknown_code", message="?")
    refused(await stage.call("POST", OTP, json={"email": "ada@example.com"}), 500, "internal_error")


async def test_a_body_above_the_limit_is_413_with_or_without_a_length(stage: Stage) -> None:
    stage.configure(body_bytes_max=1000)
    big = b'{"email": "' + b"a" * 2000 + b'"}'
    headers = {"Content-Type": "application/json"}
    refused(await stage.call("POST", OTP, content=big, headers=headers), 413, "request_too_large")
    chunks = b"".join(b"64\r\n" + b"a" * 100 + b"\r\n" for _ in range(20)) + b"0\r\n\r\n"
    answer = await _chunked(stage, chunks)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"request_too_large"' in answer


async def test_a_chunked_body_above_every_limit_is_413(stage: Stage) -> None:
    part = b"10000\r\n" + b"a" * 65536 + b"\r\n"
    count = stage.deps.settings.body_bytes_max // 65536 + 1
    answer = await _chunked(stage, part * count + b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"request_too_large"' in answer


@pytest.mark.parametrize(("target", "status"), [(b"/v2/nowhere", b"404"), (b"/v2/task/create", b"401")])
async def test_a_connection_is_reused_after_an_early_response(stage: Stage, target: bytes, status: bytes) -> None:
    heads, body = _request(b"POST", target, b"localhost", b"{" * 200_000).split(b"\r\n\r\n")
    async with stage.serving() as base, await _connect(base) as stream:
        await stream.send_all(heads.replace(b"Connection: close\r\n", b"") + b"\r\n\r\n")
        await trio.sleep(0.05)  # the handler has refused by now, and no byte of the body has been sent
        await stream.send_all(body)
        assert (await _answer(stream)).split()[1] == status
        await stream.send_all(_request(b"GET", b"/healthz", b"localhost"))
        assert (await _answer(stream)).split()[1] == b"200"


@pytest.mark.parametrize(
    "headers", [b"X-Many: x\r\n" * 30, b"X-Big: " + b"x" * 3000 + b"\r\n", b"X-Big: " + b"x" * 200_000 + b"\r\n"]
)
async def test_too_many_or_too_large_headers_are_refused(stage: Stage, headers: bytes) -> None:
    async with stage.serving(header_count_max=20, header_bytes_max=2000) as base:
        answer = await _exchange(base, b"GET /healthz HTTP/1.1\r\nHost: a\r\n" + headers + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b'"code":"headers_too_large"' in answer
    assert b"x-request-id: req_" in answer


@pytest.mark.parametrize(
    "target",
    [b"//metrics", b"/%6detrics", b"/%6Detrics", b"/./metrics", b"/x/../metrics", b"/x/..%2fmetrics",
     b"/ops%2freviews", b"///healthz", b"/v2%2fmodels", b"/v2/%2e/models", b"/v1/models/%61", b"/v2/task/a%00"],
)  # fmt: skip
async def test_a_path_that_is_not_in_normal_form_is_404(stage: Stage, target: bytes) -> None:
    async with stage.serving() as base:
        answer = await _exchange(base, _request(b"GET", target, b"localhost"))
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b'"code":"route_not_found"' in answer


@pytest.mark.parametrize("target", [b"http://localhost/metrics", b"?", b"http://[", b"*", b"metrics", b"/a#b"])
async def test_a_target_that_is_not_a_path_is_400(stage: Stage, target: bytes) -> None:
    async with stage.serving() as base:
        answer = await _exchange(base, _request(b"GET", target, b"localhost"))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"malformed_request"' in answer
    assert b"x-request-id: req_" in answer


async def test_a_models_id_may_have_an_encoded_slash(stage: Stage) -> None:
    async with stage.serving() as base:
        answer = await _exchange(base, _request(b"GET", b"/v1/models/studio%2Fimage-1", b"localhost"))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'"id":"studio/image-1"' in answer


async def test_a_disconnect_cancels_its_handler_only(stage: Stage) -> None:
    entered, left = trio.Event(), trio.Event()

    async def wait(key: str, command: object) -> None:
        entered.set()
        try:
            await trio.sleep_forever()
        finally:
            left.set()

    stage.sign_ins.answer = wait
    async with stage.serving() as base:
        stream = await trio.open_tcp_stream("127.0.0.1", int(base.rpartition(":")[2]))
        body = b'{"email": "ada@example.com"}'
        await stream.send_all(_request(b"POST", OTP.encode(), b"localhost", body))
        await entered.wait()
        await stream.aclose()
        await left.wait()
        assert (await _exchange(base, _request(b"GET", b"/healthz", b"localhost"))).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "host", [b"", b"a b", b"evil.example/..", b"[::1", b"x" * 300, b"a@b", b"\xe4mple", b"a:b:c", b"localhost"]
)
async def test_an_invalid_host_header_never_causes_a_500(stage: Stage, host: bytes) -> None:
    async with stage.serving() as base:
        answer = await _exchange(base, _request(b"GET", b"/v2/models", host))
    assert answer.split()[1] in {b"200", b"400"}, answer[:200]
    assert b"Internal Server Error" not in answer


@pytest.mark.parametrize(
    "target",
    [b"/v2/models?a=%ff%fe", b"/%ff", b"/v1/models/%00", b"/v1/models/..%2f..%2fetc", b"http://evil.example/v2/models",
     b"/v2/models?" + b"a=1&" * 500, b"*", b"/v2/assets/x?exp=1&sig=%00"],
)  # fmt: skip
async def test_unusual_targets_never_cause_a_500(stage: Stage, target: bytes) -> None:
    async with stage.serving() as base:
        answer = await _exchange(base, _request(b"GET", target, b"localhost"))
    assert answer.split()[1] in {b"200", b"400", b"403", b"404"}, answer[:200]
    assert b"x-request-id: req_" in answer.lower(), answer[:300]


async def test_head_has_the_length_of_the_omitted_body(stage: Stage) -> None:
    whole = (await stage.call("GET", "/v2/models")).content
    async with stage.serving() as base:
        answer = await _exchange(base, _request(b"HEAD", b"/v2/models", b"localhost"))
    heads, _, body = answer.partition(b"\r\n\r\n")
    assert f"content-length: {len(whole)}".encode() in heads.lower()
    assert body == b""


def _request(method: bytes, target: bytes, host: bytes, body: bytes = b"") -> bytes:
    heads = [
        method + b" " + target + b" HTTP/1.1",
        b"Host: " + host,
        b"Connection: close",
        b"Content-Type: application/json",
        b"Content-Length: " + str(len(body)).encode(),
    ]
    return b"\r\n".join(heads) + b"\r\n\r\n" + body


async def _chunked(stage: Stage, chunks: bytes) -> bytes:
    """The answer to a sign-in whose body comes in chunks."""
    head = b"POST " + OTP.encode() + b" HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    with trio.fail_after(60):
        async with stage.serving() as base:
            return await _exchange(base, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)


async def _connect(base: str) -> trio.SocketStream:
    return await trio.open_tcp_stream("127.0.0.1", int(base.rpartition(":")[2]))


async def _exchange(base: str, request: bytes) -> bytes:
    """Send one request over a connection of its own, and read its answer."""
    async with await _connect(base) as stream:
        await stream.send_all(request)
        return await _answer(stream, bodiless=request.startswith(b"HEAD"))


async def _answer(stream: trio.SocketStream, *, bodiless: bool = False) -> bytes:
    """Read one response by its Content-Length."""
    answer = b""
    async for block in stream:
        answer += block
        heads, found, body = answer.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", heads.lower())
        if found and (bodiless or (length and len(body) >= int(length[1]))):
            break
    return answer


@pytest.mark.parametrize("root", ["/account", "/ops"])
async def test_pages_are_found_with_a_slash(stage: Stage, root: str) -> None:
    response = await stage.call("GET", f"{root}/")
    assert (response.status_code, response.headers["Location"]) == (303, root)


async def test_a_page_with_a_slash_is_answered_with_the_page(stage: Stage) -> None:
    error = refused(await stage.call("GET", "/account/keys/"), 404, "route_not_found")
    assert error["message"] == "The path '/account/keys/' does not exist, but '/account/keys' does."
