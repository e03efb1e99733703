"""A provider that sends false, repeated or no messages: each case has one documented outcome.

Nothing is held for ever, and nothing is charged that cannot be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import json

import psycopg
import pytest
import trio
from tests.clients import code_of, ok

from .conftest import NewCustomer
from .scripted_provider import (
    HASTY,
    OLD_SECRET,
    OTHER_NAME,
    OTHER_SECRET,
    PICTURE,
    POLLED,
    TAKEN,
    Answer,
    Script,
    ScriptedProvider,
    data_url,
    finished,
    hangs,
    in_turn,
    is_file,
    noise,
    prediction,
    says,
    signed,
)
from .service_process import Service
from .task_scenarios import PAID, Scenario, TaskRun, check_nothing_is_open, run_scenarios


async def goes_well_after_all(run: TaskRun) -> None:
    """Check that the task is unchanged: a valid success is stored and charged."""
    await run.report_success(run.file())
    await run.wait_for("succeeded")
    await run.check(*PAID, cost="1.00", units=1, hosting="ready")
    await run.check_images(1)


# ------------------------------------------------------------------------------------------------- callbacks


async def rubbish_is_no_event(run: TaskRun) -> None:
    """A signed invalid body gets 400 (413 if too long) and changes nothing."""
    await run.create()
    await run.wait_submitted()
    before = await run.task()

    def odd(**fields: object) -> bytes:
        """Render a success with these fields; bytes are inserted unchanged."""
        body = run.update_body("succeeded", outputs=[{"url": run.file()}])
        for name, value in fields.items():
            written = value if isinstance(value, bytes) else json.dumps(value).encode()
            body = b'%b, "%b": %b}' % (body[:-1], name.encode(), written)
        return body

    bodies = [
        b"",
        b"[]",
        run.update_body("succeeded")[:-1],
        run.update_body("succeeded").decode().encode("utf-16"),
        b"[" * 100_000,
        odd(usage=b"[" * 50_000 + b"]" * 50_000),
        odd(percent=b"NaN"),
        odd(usage=b'{"units": %b}' % (b"1" + b"0" * 30)),
        run.update_body("exploded"),
        run.update_body("succeeded", outputs=[{"url": "file:///etc/passwd"}]),
        run.update_body("succeeded", outputs=[{"data": base64.b64encode(noise(300)).decode()}]),
    ]
    for body in bodies:
        answer = await run.post(body)
        assert (answer.status_code, code_of(answer)) == (400, "invalid_event"), (body[:300], answer.text)
    long = await run.post(run.update_body("succeeded", message="x" * 300_000))
    assert (long.status_code, code_of(long)) == (413, "request_too_large")
    unknown = ["task_" + "0" * 32, "task_1", "../task", "x" * 200, run.request_id.upper()]
    for request_id in unknown:
        answer = await run.post(run.update_body("succeeded", request_id=request_id))
        assert (answer.status_code, code_of(answer)) == (404, "task_not_found"), request_id
    assert await run.task() == before
    await goes_well_after_all(run)


async def other_attempts_are_stale(run: TaskRun) -> None:
    """An update of an earlier attempt is recorded as stale and changes nothing."""
    await run.create()
    await run.wait_submitted()
    for attempt in (2, 7, 2**31 - 1):
        task = await run.report_success(run.file(), attempt=attempt)
        assert task["status"] == "queued"
        assert run.last_progress(task, "stale")["source_ref"] == f"callback:evt_{run.updates_sent}"
    await run.check("queued")
    await goes_well_after_all(run)


async def another_provider_has_no_say(run: TaskRun) -> None:
    """A valid signature of another provider is refused, under any name."""
    await run.create()
    await run.wait_submitted()
    before = await run.task()
    body = run.update_body("succeeded", outputs=[{"url": run.file()}])
    for headers, code in (
        (signed(body, name=OTHER_NAME, secret=OTHER_SECRET), "task_not_found"),
        (signed(body, name=None, secret=OTHER_SECRET), "invalid_signature"),
        (signed(body, secret=OTHER_SECRET), "invalid_signature"),
        (signed(body, name="unknown"), "invalid_signature"),
    ):
        assert code_of(await run.post(body, headers)) == code
    assert await run.task() == before
    await goes_well_after_all(run)


async def secrets_are_rolled(run: TaskRun) -> None:
    """The previous secret is still accepted, alone or beside a wrong one; a changed body is not."""
    await run.create()
    await run.wait_submitted()
    body = run.update_body("processing", percent=10)
    reencoded = json.dumps(json.loads(body), indent=1).encode()
    assert code_of(await run.post(reencoded, signed(body, secret=OLD_SECRET))) == "invalid_signature"
    headers = signed(body, secret=OLD_SECRET)
    right = headers["X-Callback-Signature"].rpartition("v1=")[2]
    headers["X-Callback-Signature"] = signed(body, secret=OTHER_SECRET)["X-Callback-Signature"] + f",v1={right}"
    assert ok(await run.post(body, headers))["status"] == "processing"
    body = run.update_body("processing", percent=20)
    assert ok(await run.post(body, signed(body, secret=OLD_SECRET)))["status"] == "processing"
    await goes_well_after_all(run)


async def said_a_hundred_times_at_once(run: TaskRun) -> None:
    """A hundred copies of one event at once: one row, one capture."""
    await run.create(n=2)
    await run.wait_submitted()
    body = run.update_body("succeeded", outputs=[{"url": run.file("a.png")}, {"url": run.file("b.png")}])

    async def deliver() -> None:
        ok(await run.post(body))

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(deliver)
    await run.wait_for("succeeded")
    await run.check(*PAID, cost="2.00", units=2, hosting="ready")
    with psycopg.connect(run.service.database_url, autocommit=True) as connection:
        events = connection.execute("select event_id from task_events where request_id = %s", (run.request_id,))
        assert events.fetchall() == [("evt_1",)]


async def answered_twice(run: TaskRun) -> None:
    """Two successes with different outputs: the first one counts, the second is late."""
    await run.create()
    await run.wait_submitted()
    await run.report_success(run.file("first.png"))
    await run.report_success(run.file("second.png", is_file(noise(20))), run.file("third.png"))
    await run.wait_for("succeeded")
    task = await run.check(*PAID, cost="1.00", units=1, hosting="ready")
    assert [item["sha256"] for item in task["output"]] == [hashlib.sha256(PICTURE).hexdigest()]
    assert run.last_progress(task, "late")["source_ref"] == "callback:evt_2"


async def success_before_progress(run: TaskRun) -> None:
    """Success first, then its progress: the status stays, the percentage is not lowered."""
    await run.create()
    await run.wait_submitted()
    await run.send_update("processing", sequence=5, percent=80)
    await run.report_success(run.file(), sequence=9, percent=100)
    for sequence, percent in ((8, 90), (7, 40), (6, 10)):
        task = await run.send_update("processing", sequence=sequence, percent=percent)
        assert task["status"] in {"processing", "succeeded"}
    await run.send_update("queued", sequence=1)
    await run.wait_for("succeeded")
    await run.check(*PAID, cost="1.00", units=1, hosting="ready")


async def more_than_were_ordered(run: TaskRun) -> None:
    """Three pictures where one was ordered: all are delivered, the hold bounds the charge."""
    await run.create()
    await run.wait_submitted()
    await run.report_success(*(run.file(f"{name}.png") for name in "abc"))
    await run.wait_for("succeeded")
    await run.check(*PAID, cost="1.00", units=3, hosting="ready")
    await run.check_images(3)


async def done_without_anything(run: TaskRun) -> None:
    """A success without outputs is polled; without outputs there either, the task fails."""
    await run.create(script=Script(get=finished()))
    await run.wait_submitted()
    await run.report_success()
    await run.wait_for("failed")
    await run.check("queued", "failed", error="provider_error: the provider finished without", hosting="skipped")
    assert run.calls == ["PUT", "GET"]


async def done_and_asked_for_the_outputs(run: TaskRun) -> None:
    """A success without outputs is polled, which returns them."""
    await run.create(script=Script(get=finished(data_url(PICTURE))))
    await run.wait_submitted()
    await run.report_success()
    await run.wait_for("succeeded")
    await run.check(*PAID, cost="1.00", units=1, hosting="ready")
    await run.check_images(1)


# ----------------------------------------------------------------------------------------------- answers to calls


async def nonsense_at_the_door(run: TaskRun) -> None:
    """An invalid response to a submission leaves it in doubt: it is submitted again under the same id."""
    put = in_turn(says(200, b"<html>", "text/html"), says(202, b"[" * 10_000), TAKEN)
    await run.create(script=Script(put=put))
    await run.wait_submitted()
    assert run.calls == ["PUT", "PUT", "PUT"]
    await goes_well_after_all(run)


async def finds_out_in_the_end(run: TaskRun, *nonsense: Answer) -> None:
    """Invalid poll responses are ignored; the next valid one counts."""
    numbers = b'{"status": "succeeded", "output": [%b], "metrics": {"units": 1%b}}'
    truth = says(200, numbers % (json.dumps(run.file()).encode(), b"0" * 30))
    await run.create(POLLED, Script(get=in_turn(*nonsense, truth)))
    await run.wait_for("succeeded")
    task = await run.check(*PAID, cost="1.00", units=1, hosting="ready")
    polls = 1 + len(nonsense)
    assert run.calls[: 1 + polls] == ["PUT"] + ["GET"] * polls
    reported = [line["source_ref"].partition(":")[0] for line in task["provider_progress"]]
    assert reported == ["system", "poll", "system"]


async def nonsense_when_asked(run: TaskRun) -> None:
    """An HTML page and broken text are ignored."""
    broken = b'{"status": "succeeded", "output": ["\xff"]}'
    await finds_out_in_the_end(run, says(200, b"<html>", "text/html"), says(200, broken))


async def out_of_bounds_when_asked(run: TaskRun) -> None:
    """Values out of bounds, or for another job, are ignored."""
    other_job = finished(run.file("b.png", is_file(noise(20))), id="other_task.1")
    await finds_out_in_the_end(run, prediction("processing", progress={"percent": 900}), other_job)


async def silent_to_the_end(run: TaskRun) -> None:
    """Accepted, then no response to polls or the cancel: the deadline ends the task."""
    await run.create(HASTY, Script(get=hangs, cancel=hangs))
    await run.wait_for("failed")
    await run.check("queued", "failed", error="provider_timeout", hosting="skipped")


async def speaks_after_the_end(run: TaskRun) -> None:
    """A result after the task has failed is late: not stored, not charged."""
    await run.create(HASTY, Script(get=prediction("processing", progress={"percent": 99}), cancel=says(500, {})))
    await run.wait_for("failed")
    task = await run.report_success(run.file())
    assert (task["status"], run.last_progress(task, "late")["source_ref"]) == ("failed", "callback:evt_1")
    await run.check("queued", "failed", error="provider_timeout", hosting="skipped")


SCENARIOS: tuple[Scenario, ...] = (
    rubbish_is_no_event, other_attempts_are_stale, another_provider_has_no_say, said_a_hundred_times_at_once,
    secrets_are_rolled, answered_twice, success_before_progress, more_than_were_ordered, done_without_anything,
    done_and_asked_for_the_outputs, nonsense_at_the_door, nonsense_when_asked, out_of_bounds_when_asked,
    silent_to_the_end, speaks_after_the_end,
)  # fmt: skip


@pytest.mark.slow
async def test_each_false_provider_message_has_its_documented_outcome(
    scripted_service: Service, scripted: ScriptedProvider, new_customer: NewCustomer
) -> None:
    with trio.fail_after(120):
        await run_scenarios(SCENARIOS, scripted_service, scripted, new_customer)
    check_nothing_is_open(scripted_service)
