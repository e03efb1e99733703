"""The header Restart-Wait decides whether a request waits for an actor, and Prefer whether for a task's end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.http.kit.values import read_restart_wait
from holdfast.http.kit.waiting import read_wait
from holdfast.ledger.refusals import Refusal

if TYPE_CHECKING:
    from tests.http.stage import Stage


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ([], (10, "queue")),
        (["5"], (5, "wait")),
        ([" 5 "], (5, "wait")),
        (["0"], (10, "fail")),
        (["600"], (10, "wait")),
        (["-1"], (10, "queue")),
        (["wait=4"], (10, "queue")),
        (["4", "4"], (10, "queue")),
        (["9" * 5000], (10, "queue")),
    ],
)
def test_a_wait_for_a_restart_is_read(sent: list[str], expected: tuple[float, str]) -> None:
    assert read_restart_wait(sent, 10) == expected


@pytest.mark.parametrize(
    ("query", "prefer", "expected"),
    [
        ([], [], 0),
        ([], ["respond-async"], 0),
        ([], ["wait=5"], 5),
        ([], ["wait"], 60),
        ([], ["respond-async, Wait = 3; x=1"], 3),
        ([], ["return=minimal", 'wait="7"'], 7),
        ([], ["wait=600"], 60),
        ([], ["wait=-1"], 0),
        ([], ["await=4"], 0),
        ([], ["x" * 5000 + ", wait=4"], 0),
        (["0"], ["wait=5"], 0),
        (["2.5"], ["wait=5"], 2.5),
    ],
)
def test_a_preference_is_read_as_the_rfc_says(query: list[str], prefer: list[str], expected: float) -> None:
    assert read_wait(query, prefer) == expected


async def test_a_request_waits_for_a_restart_as_its_header_says(stage: Stage) -> None:
    stage.know_key()
    stage.accounts.answer = Refusal(code="concurrency_limit_exceeded", message="Later.")
    body = {"model": "studio/image-1", "input": {"prompt": "x"}}
    for sent in ({"Restart-Wait": "0"}, {"Restart-Wait": "2"}, {"Prefer": "wait=2"}):
        await stage.as_key("POST", "/v2/task/create", json=body, headers=sent)
    assert stage.accounts.while_down == ["fail", "wait", "queue"]
    assert stage.accounts.deadlines_s == [10, 2, 10]
