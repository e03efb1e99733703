"""The header Prefer decides whether a request waits for an actor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.http.kit.values import read_prefer
from holdfast.ledger.refusals import Refusal

if TYPE_CHECKING:
    from tests.http.stage import Stage


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], (10, "queue")),
        (["respond-async"], (10, "queue")),
        (["wait=5"], (5, "wait")),
        (["respond-async, Wait = 3; x=1"], (3, "wait")),
        (["return=minimal", 'wait="7"'], (7, "wait")),
        (["wait=0"], (10, "fail")),
        (["wait=600"], (10, "wait")),
        (["wait=-1"], (10, "queue")),
        (["await=4"], (10, "queue")),
        (["x" * 5000 + ", wait=4"], (10, "queue")),
    ],
)
def test_a_preference_is_read_as_the_rfc_says(headers: list[str], expected: tuple[float, str]) -> None:
    assert read_prefer(headers, 10) == expected


async def test_a_request_waits_as_it_prefers(stage: Stage) -> None:
    stage.know_key()
    stage.accounts.answer = Refusal(code="concurrency_limit_exceeded", message="Later.")
    body = {"model": "studio/image-1", "input": {"prompt": "x"}}
    for prefer in ("wait=0", "wait=2"):
        await stage.as_key("POST", "/v2/task/create", json=body, headers={"Prefer": prefer})
    await stage.as_key("POST", "/v2/task/create", json=body)
    assert stage.accounts.while_down == ["fail", "wait", "queue"]
    assert stage.accounts.deadlines_s == [10, 2, 10]
