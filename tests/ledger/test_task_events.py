"""Events of a task, the retries of their deliveries, and the secrets that sign them."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.ledger.catalog.terms import Hosting
from holdfast.ledger.tasks.decisions import on_assets_announced, on_assets_expired, on_cancel
from holdfast.ledger.tasks.events import (
    CHOSEN_BY_DEFAULT,
    EVENT_KINDS,
    PAUSES_S,
    DeliveryResponse,
    after_attempt,
    chosen_kinds,
    events_of,
    pause_after,
    public_snapshot,
)
from holdfast.ledger.tasks.hosting import on_hosted
from holdfast.ledger.tasks.provider_update import Output
from holdfast.ledger.tasks.provider_updates import on_update
from holdfast.ledger.tasks.task import OutputItem, Task
from holdfast.ledger.tasks.transitions import Context
from holdfast.ledger.tasks.webhook_secrets import OVERLAP_S, Rotation, signing_at, webhook_secret

MakeTask = Callable[..., Task]
URL = "https://example.com/hook"
DAY_S = 24 * 3600


def task_after(step: Any) -> Task:
    assert step.task is not None
    task: Task = step.task
    return task


def stored(task: Task, *, seconds: float) -> Task:
    """Return the task with all its outputs stored."""
    results = tuple(
        OutputItem(
            index=n,
            asset_id=f"asset_{n}",
            sha256="00",
            bytes=1,
            content_type="image/png",
            expires_at=task.created_at + timedelta(days=7),
        )
        for n in range(len(task.state.hosting.wanted))
    )
    return task_after(on_hosted(task, 1, 1, results, Context(task.created_at + timedelta(seconds=seconds), "op_1")))


@pytest.fixture
def hosted(make_acked: MakeTask, make_update: Callable[..., Any]) -> Callable[..., tuple[Task, Task]]:
    """Return a task before and after its end, with all outputs stored or passed through."""

    def make(*, kinds: tuple[str, ...] | None = None, url: str | None = URL, passthrough: bool = False) -> Any:
        task = make_acked(webhook_url=url, hosting=Hosting(mode="passthrough" if passthrough else "rehost"))
        task = msgspec.structs.replace(task, request=msgspec.structs.replace(task.request, webhook_events=kinds))
        update = make_update("succeeded", output_count=4)
        updated = task_after(on_update(task, update, Context(task.created_at + timedelta(seconds=20), "op_1")))
        return (task, updated) if passthrough else (updated, stored(updated, seconds=21))

    return make


def test_exactly_the_changes_of_status_are_events(make_acked: MakeTask, make_update: Callable[..., Any]) -> None:
    queued = make_acked(webhook_url=URL)
    request = msgspec.structs.replace(queued.request, webhook_events=EVENT_KINDS)
    queued = msgspec.structs.replace(queued, request=request)
    at = queued.created_at + timedelta(seconds=9)
    running = task_after(on_update(queued, make_update("processing", percent=1), Context(at, "op_1")))
    further = task_after(on_update(running, make_update("processing", percent=50), Context(at, "op_1")))
    failed = task_after(on_update(further, make_update("failed"), Context(at, "op_1")))
    canceled = task_after(on_cancel(further, Context(at, "op_1")))
    assert events_of(queued, running) == ("task.processing",)
    assert events_of(running, further) == ()
    assert events_of(further, failed) == ("task.failed",)
    assert events_of(further, canceled) == ("task.canceled",)


def test_stored_outputs_are_announced_with_the_end(hosted: Callable[..., tuple[Task, Task]]) -> None:
    before, after = hosted()
    assert events_of(before, after) == ("task.succeeded", "task.assets_ready")
    assert after.state.hosting.assets_ready_event == "pending"


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({"url": None}, ()),
        ({"kinds": ("task.succeeded",)}, ("task.succeeded",)),
        ({"kinds": ("task.canceled",)}, ()),
        ({"passthrough": True}, ("task.succeeded",)),
    ],
)
def test_without_a_subscriber_the_assets_event_is_skipped(
    hosted: Callable[..., tuple[Task, Task]], options: dict[str, Any], kinds: tuple[str, ...]
) -> None:
    before, after = hosted(**options)
    assert (after.status, events_of(before, after)) == ("succeeded", kinds)
    assert after.state.hosting.assets_ready_event == "skipped"


def test_only_subscribed_events_are_sent_and_processing_is_opt_in(
    make_acked: MakeTask, make_update: Callable[..., Any]
) -> None:
    for url, cancels in ((None, ()), (URL, ("task.canceled",))):
        task = make_acked(webhook_url=url)
        at = task.created_at + timedelta(seconds=9)
        running = task_after(on_update(task, make_update("processing"), Context(at, "op_1")))
        assert events_of(task, running) == ()
        assert events_of(running, task_after(on_cancel(running, Context(at, "op_1")))) == cancels


def test_an_assets_event_can_be_delivered_after_it_was_given_up(
    hosted: Callable[..., tuple[Task, Task]],
) -> None:
    _, task = hosted()
    later = task.created_at + timedelta(days=4)
    lost = task_after(on_assets_announced(task, False, later))
    assert lost.state.hosting.assets_ready_event == "failed"
    assert on_assets_announced(lost, False, later).verdict == "ignored"
    expired = task_after(on_assets_expired(lost, later))
    for given_up in (lost, expired):
        arrived = task_after(on_assets_announced(given_up, True, later))
        assert arrived.state.hosting.assets_ready_event == "sent"
        assert on_assets_announced(arrived, False, later).verdict == "ignored"


def test_event_kinds_are_chosen_by_name_and_unknown_ones_refused() -> None:
    assert set(EVENT_KINDS) - set(CHOSEN_BY_DEFAULT) == {"task.processing"}
    assert chosen_kinds(["task.failed", "task.processing", "task.failed"]) == ("task.processing", "task.failed")
    for wrong in ([], ["task.unknown"], ["task.failed", "*"]):
        assert chosen_kinds(wrong) is None


def test_a_snapshot_omits_large_fields_and_survives_json(
    hosted: Callable[..., tuple[Task, Task]],
) -> None:
    before, after = hosted()
    wanted = (Output(index=0, data="A" * 100_000),)
    before = msgspec.structs.replace(
        before,
        state=msgspec.structs.replace(
            before.state, hosting=msgspec.structs.replace(before.state.hosting, wanted=wanted, lost=wanted)
        ),
    )
    packed = msgspec.json.encode(public_snapshot(before))
    assert len(packed) < 4_000
    assert b"a lighthouse" not in packed
    decoded = msgspec.json.decode(msgspec.json.encode(public_snapshot(after)), type=Task)
    assert (decoded.status, decoded.state.output, decoded.request.metadata) == (
        after.status,
        after.state.output,
        after.request.metadata,
    )


# ------------------------------------------------------------------------------------------------------ deliveries


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_any_2xx_status_is_a_delivery(noon: datetime, status: int) -> None:
    outcome = after_attempt(DeliveryResponse(status), noon, tries=1, round_at=noon, give_up_s=60, jitter=0.5)
    assert (outcome.status, outcome.due_at) == ("delivered", None)


@pytest.mark.parametrize("status", [100, 301, 302, 307, 400, 401, 404, 429, 500, 503, None])
def test_any_other_response_is_retried_after_a_pause(noon: datetime, status: int | None) -> None:
    answer = DeliveryResponse(status, error=None if status else "unreachable")
    outcome = after_attempt(answer, noon, tries=2, round_at=noon, give_up_s=DAY_S, jitter=0.0)
    assert (outcome.status, outcome.due_at) == ("pending", noon + timedelta(seconds=300))


def test_410_ends_the_delivery_at_once(noon: datetime) -> None:
    outcome = after_attempt(DeliveryResponse(410), noon, tries=1, round_at=noon, give_up_s=DAY_S, jitter=0.0)
    assert (outcome.status, outcome.due_at) == ("given_up", None)
    assert "410" in str(outcome.reason)


@pytest.mark.parametrize(("wish_s", "pause_s"), [(1, 5), (90, 90), (10 * DAY_S, DAY_S)])
def test_retry_after_lengthens_the_pause_within_bounds(noon: datetime, wish_s: int, pause_s: int) -> None:
    answer = DeliveryResponse(503, retry_after_s=wish_s)
    outcome = after_attempt(answer, noon, tries=1, round_at=noon, give_up_s=9 * DAY_S, jitter=0.0)
    assert outcome.due_at == noon + timedelta(seconds=pause_s)


@given(give_up_s=st.integers(1, 10 * DAY_S), jitter=st.floats(0, 1), took_s=st.floats(0, 30))
def test_pauses_grow_and_the_last_attempt_is_at_the_end(give_up_s: int, jitter: float, took_s: float) -> None:
    noon = datetime(2026, 11, 20, 12, tzinfo=UTC)
    at, attempts = noon, [noon]
    for tries in range(1, 100):
        outcome = after_attempt(
            DeliveryResponse(500),
            at + timedelta(seconds=took_s),
            tries=tries,
            round_at=noon,
            give_up_s=give_up_s,
            jitter=jitter,
        )
        if outcome.due_at is None:
            break
        pause_s = (outcome.due_at - at).total_seconds() - took_s
        assert outcome.due_at == noon + timedelta(seconds=give_up_s) or pause_s >= pause_after(tries) - 0.001
        assert pause_s <= pause_after(tries) * 1.25 + 0.001
        at = outcome.due_at
        attempts.append(at)
    assert outcome.status == "given_up"
    assert attempts[-1] + timedelta(seconds=took_s) >= noon + timedelta(seconds=give_up_s)
    assert attempts[-1] <= noon + timedelta(seconds=give_up_s)


def test_pauses_grow_from_seconds_to_a_day() -> None:
    assert [pause_after(tries) for tries in range(1, 12)] == [*PAUSES_S, DAY_S, DAY_S]
    assert PAUSES_S == (5, 300, 1800, 2 * 3600, 5 * 3600, 10 * 3600, 14 * 3600, 20 * 3600, DAY_S)


# --------------------------------------------------------------------------------------------------------- secrets


def test_the_previous_secret_signs_for_a_day_too(noon: datetime) -> None:
    assert signing_at((), noon) == ((0,), None, None)
    rotated = (Rotation(1, noon),)
    day = timedelta(seconds=OVERLAP_S)
    assert signing_at(rotated, noon) == ((1, 0), noon, noon + day)
    assert signing_at(rotated, noon + day - timedelta(seconds=1)).generations == (1, 0)
    assert signing_at(rotated, noon + day) == ((1,), noon, None)


def test_frequent_rotation_leaves_a_limited_number_of_secrets(noon: datetime) -> None:
    rotations = [Rotation(n, noon + timedelta(hours=n)) for n in range(1, 9)]
    assert signing_at(rotations[:2], noon + timedelta(hours=25)).generations == (2, 1)
    assert signing_at(rotations, noon + timedelta(hours=9)).generations == (8, 7, 6, 5)


def test_a_secret_depends_on_account_generation_and_key() -> None:
    shown = webhook_secret(b"k" * 32, "acct_1", 0)
    assert shown == webhook_secret(b"k" * 32, "acct_1", 0)
    assert shown.startswith("whsec_")
    assert len(base64.b64decode(shown.removeprefix("whsec_"))) == 32
    others = {
        webhook_secret(b"k" * 32, "acct_1", 1),
        webhook_secret(b"k" * 32, "acct_2", 0),
        webhook_secret(b"x" * 32, "acct_1", 0),
    }
    assert shown not in others
    assert len(others) == 3
