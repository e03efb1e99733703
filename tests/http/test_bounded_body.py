"""A body is limited by its own route, whatever other routes accept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

if TYPE_CHECKING:
    from tests.http.stage import Stage


@pytest.mark.parametrize(
    "path", ["/v2/control/auth/otp", "/v2/callback", "/v2/callback/studio", "/v2/callback/unknown"]
)
async def test_no_body_exceeds_its_routes_limit(stage: Stage, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    with trio.fail_after(60):
        async with (
            stage.serving() as base,
            await trio.open_tcp_stream("127.0.0.1", int(base.rpartition(":")[2])) as stream,
        ):
            await stream.send_all(head + (b"10000\r\n" + b" " * 65536 + b"\r\n") * 24 + b"0\r\n\r\n")
            answer = await stream.receive_some()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"request_too_large"' in answer
