"""A request's body is bounded by its own route, though another route takes far more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from werkzeug.exceptions import RequestEntityTooLarge

from holdfast.http.bounded_body import BoundedBody

if TYPE_CHECKING:
    from tests.http.conftest import Stage


async def test_what_comes_in_before_and_after_the_limit_was_lowered_counts() -> None:
    for early, late in ((b"12345", b""), (b"12", b"345"), (b"", b"12345")):
        body = BoundedBody(None, 100)
        body.append(early)
        body.bound(4)
        body.append(late)
        body.set_complete()
        with pytest.raises(RequestEntityTooLarge):
            await body


async def test_a_body_within_its_limit_is_read_whole() -> None:
    body = BoundedBody(None, 100)
    body.append(b"12")
    body.bound(4)
    body.append(b"34")
    body.set_complete()
    assert await body == b"1234"


@pytest.mark.parametrize(
    "path", ["/v2/control/auth/otp", "/v2/callback", "/v2/callback/studio", "/v2/callback/nobody"]
)
async def test_no_route_takes_more_than_its_own_share(stage: Stage, path: str) -> None:
    async with stage.app.test_client().request(path, method="POST") as connection:
        for _ in range(24):
            await connection.send(b" " * 65536)
        await connection.send_complete()
        response = await connection.as_response()
    await stage.refused(response, 413, "request_too_large")
