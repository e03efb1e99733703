"""What surrounds every call: request ids, the one error shape, methods, sizes, faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from holdfast.actors.faults import Deadlock, OutcomeUnknown, Overloaded, Unavailable
from holdfast.persistence.database import DatabaseAway

if TYPE_CHECKING:
    from tests.http.conftest import Stage

OTP = "/v2/control/auth/otp"


async def test_every_answer_has_a_fresh_request_id_of_ours(stage: Stage) -> None:
    first = await stage.call("GET", "/healthz", headers={"X-Request-Id": "req_mine"})
    second = await stage.call("GET", "/nowhere")
    ids = [first.headers["X-Request-Id"], second.headers["X-Request-Id"]]
    assert all(each.startswith("req_") and len(each) == 36 for each in ids)
    assert ids[0] != ids[1]


async def test_unknown_paths_are_told_in_the_error_shape(stage: Stage) -> None:
    for path in ("/", "/v2", "/v2/", "/v2/quote/", "/v2//models", "/v1/models/", "/%00", "/v2/task/a/b/c"):
        error = await stage.refused(await stage.call("GET", path), 404, "route_not_found")
        assert error["type"] == "not_found_error"


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/v2/models", "GET, HEAD, OPTIONS"),
        ("GET", "/v2/quote", "OPTIONS, POST"),
        ("PUT", "/v2/control/session", "DELETE, GET, HEAD, OPTIONS"),
        ("TRACE", "/healthz", "GET, HEAD, OPTIONS"),
        ("PATCH", "/v2/task/create", "GET, HEAD, OPTIONS, POST"),
    ],
)
async def test_a_wrong_method_is_told_which_are_right(stage: Stage, method: str, path: str, allow: str) -> None:
    response = await stage.call(method, path)
    await stage.refused(response, 405, "method_not_allowed")
    assert response.headers["Allow"] == allow


async def test_options_names_the_methods_and_has_no_body(stage: Stage) -> None:
    response = await stage.call("OPTIONS", "/v2/control/api-keys")
    assert response.status_code == 204
    assert {each.strip() for each in response.headers["Allow"].split(",")} == {"GET", "HEAD", "OPTIONS", "POST"}
    assert await response.get_data() == b""


async def test_head_tells_the_length_of_the_body_it_leaves_out(stage: Stage) -> None:
    whole, head = await stage.call("GET", "/v2/models"), await stage.call("HEAD", "/v2/models")
    assert (head.status_code, head.headers["Content-Type"]) == (200, "application/json")
    assert head.headers["Content-Length"] == str(len(await whole.get_data()))
    assert await head.get_data() == b""


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
async def test_faults_callers_may_meet_are_503_and_say_when_to_return(
    stage: Stage, fault: Exception, code: str, retry_after: str
) -> None:
    stage.sign_ins.answer = fault
    response = await stage.call("POST", OTP, json={"email": "ada@example.com"})
    await stage.refused(response, 503, code)
    assert response.headers["Retry-After"] == retry_after


@pytest.mark.parametrize(
    "fault",
    [
        RuntimeError("the secret is 42"),
        ExceptionGroup("several", [Overloaded("full"), KeyError("the secret is 42")]),
        AssertionError("the secret is 42"),
    ],
)
async def test_what_nobody_expected_is_500_without_detail(stage: Stage, fault: Exception) -> None:
    stage.sign_ins.answer = fault
    response = await stage.call("POST", OTP, json={"email": "ada@example.com"})
    error = await stage.refused(response, 500, "internal_error")
    assert "42" not in str(error)
    assert "Retry-After" not in response.headers


async def test_a_refusal_without_a_row_in_the_table_is_a_bug_not_an_answer(stage: Stage) -> None:
    from holdfast.ledger.refusals import Refusal

    stage.sign_ins.answer = Refusal(code="never_heard_of", message="?")
    await stage.refused(await stage.call("POST", OTP, json={"email": "ada@example.com"}), 500, "internal_error")


async def test_a_body_above_the_limit_is_413_whether_or_not_it_says_so(stage: Stage) -> None:
    stage.configure(body_bytes_max=1000)
    big = b'{"email": "' + b"a" * 2000 + b'"}'
    headers = {"Content-Type": "application/json"}
    await stage.refused(await stage.call("POST", OTP, data=big, headers=headers), 413, "request_too_large")
    async with stage.app.test_client().request(OTP, method="POST", headers=headers) as connection:
        for start in range(0, len(big), 100):
            await connection.send(big[start : start + 100])
        await connection.send_complete()
    response = await connection.as_response()
    await stage.refused(response, 413, "request_too_large")


async def test_too_many_or_too_large_headers_are_refused(stage: Stage) -> None:
    stage.configure(header_count_max=20, header_bytes_max=2000)
    many = {f"X-Many-{number}": "x" for number in range(30)}
    await stage.refused(await stage.call("GET", "/healthz", headers=many), 431, "headers_too_large")
    await stage.refused(await stage.call("GET", "/healthz", headers={"X-Big": "x" * 3000}), 431, "headers_too_large")


@pytest.mark.parametrize("host", ["", "a b", "evil.example/..", "[::1", "x" * 300, "a@b", "ex\u00e4mple"])
async def test_an_odd_host_header_never_breaks_an_answer(stage: Stage, host: str) -> None:
    response = await stage.call("GET", "/v2/models", headers={"Host": host})
    assert response.status_code in {200, 400}
    assert response.headers["Content-Type"] == "application/json"
    assert "X-Request-Id" in response.headers


async def test_a_caller_that_hangs_up_ends_its_handler_and_nothing_else(stage: Stage) -> None:
    entered, left = trio.Event(), trio.Event()

    async def wait(key: str, command: object) -> None:
        entered.set()
        try:
            await trio.sleep_forever()
        finally:
            left.set()

    stage.sign_ins.answer = wait
    with trio.fail_after(5):
        async with stage.app.test_client().request(
            OTP, method="POST", headers={"Content-Type": "application/json"}
        ) as connection:
            await connection.send(b'{"email": "ada@example.com"}')
            await connection.send_complete()
            await entered.wait()
            await connection.disconnect()
            await left.wait()
    assert (await stage.call("GET", "/healthz")).status_code == 200
