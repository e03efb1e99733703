"""A provider that says what is not so, says it twice, or says nothing: each has one written outcome.

Nothing is held for ever, and nothing is charged that cannot be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import json

import psycopg
import trio

from .conftest import NewCustomer
from .house import Service, code_of, ok
from .scripted_provider import (
    CLIP,
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
    says,
    signed,
    tells,
)
from .task_tales import PAID, Story, Tale, nothing_is_left_open, tell_all


async def goes_well_after_all(tale: Tale) -> None:
    """The task was not moved by what came before: a true success is stored and charged."""
    await tale.succeeds(tale.file())
    await tale.becomes("succeeded")
    await tale.stands(*PAID, cost="1.00", units=1, hosting="ready")
    await tale.shows_pictures(1)


# ------------------------------------------------------------------------------------------------- callbacks


async def rubbish_is_no_event(tale: Tale) -> None:
    """Signed rubbish is answered 400 (413 where it is too long) and moves nothing."""
    await tale.begins()
    await tale.is_taken()
    before = await tale.task()

    def odd(**fields: object) -> bytes:
        """A success with these fields; bytes stand as they are."""
        body = tale.news("succeeded", outputs=[{"url": tale.file()}])
        for name, value in fields.items():
            written = value if isinstance(value, bytes) else json.dumps(value).encode()
            body = b'%b, "%b": %b}' % (body[:-1], name.encode(), written)
        return body

    huge = b"1" + b"0" * 30
    bodies = [
        b"",
        b"garbage",
        b"[]",
        b"null",
        b'{"event_id": "evt"',
        tale.news("succeeded")[:-1],
        odd(message=b'"\xff\xfe"'),
        tale.news("succeeded").decode().encode("utf-16"),
        b"[" * 100_000,
        odd(extra=b"[" * 50_000 + b"]" * 50_000),
        odd(percent=900),
        odd(percent=-1),
        odd(percent=b"NaN"),
        odd(percent=4.5),
        odd(usage={"units": -4}),
        odd(usage=b'{"units": %b}' % huge),
        odd(usage=b'{"units": NaN}'),
        odd(usage=b'{"units": Infinity}'),
        odd(usage={"units": "4"}),
        odd(sequence=huge),
        odd(attempt=0),
        odd(attempt=huge),
        tale.news("exploded"),
        tale.news("succeeded", outputs=[{}]),
        tale.news("succeeded", outputs=[{"url": "file:///etc/passwd"}]),
        tale.news("succeeded", outputs=[{"url": "gopher://127.0.0.1/"}]),
        tale.news("succeeded", outputs=[{"url": tale.file(), "data": "aGk="}]),
        tale.news("succeeded", outputs=[{"url": tale.file(), "bytes": -1}]),
        tale.news("succeeded", outputs=[{"url": tale.file(), "sha256": "no"}]),
        tale.news("succeeded", outputs=[{"url": tale.file(), "index": 0}] * 2),
        tale.news("succeeded", outputs=[{"url": tale.file()}] * 65),
        tale.news("succeeded", outputs=[{"data": "*"}]),
        tale.news("succeeded", outputs=[{"data": base64.b64encode(noise(300)).decode()}]),
        tale.news("succeeded", outputs=[{"url": data_url(noise(300))}]),
        tale.news("succeeded", provider="another"),
        tale.news("succeeded", event_id=""),
        tale.news("succeeded", event_id="evt\0"),
    ]
    for body in bodies:
        answer = await tale.post(body)
        assert (answer.status_code, code_of(answer)) == (400, "invalid_event"), (body[:300], answer.text)
    long = await tale.post(tale.news("succeeded", message="x" * 300_000))
    assert (long.status_code, code_of(long)) == (413, "request_too_large")
    unknown = ["task_" + "0" * 32, "task_1", "../task", "x" * 200, tale.request_id.upper()]
    for request_id in unknown:
        answer = await tale.post(tale.news("succeeded", request_id=request_id))
        assert (answer.status_code, code_of(answer)) == (404, "task_not_found"), request_id
    assert await tale.task() == before
    await goes_well_after_all(tale)


async def other_attempts_are_stale(tale: Tale) -> None:
    """News of an attempt that is not the present one is kept as stale and moves nothing."""
    await tale.begins()
    await tale.is_taken()
    for attempt in (2, 7, 2**31 - 1):
        task = await tale.succeeds(tale.file(), attempt=attempt)
        assert task["status"] == "queued"
        assert tale.last_line(task, "stale")["source_ref"] == f"callback:evt_{tale.told}"
    await tale.stands("queued")
    await goes_well_after_all(tale)


async def another_provider_has_no_say(tale: Tale) -> None:
    """A right signature of another provider opens nothing, by whatever name."""
    await tale.begins()
    await tale.is_taken()
    before = await tale.task()
    body = tale.news("succeeded", outputs=[{"url": tale.file()}])
    for headers, code in (
        (signed(body, name=OTHER_NAME, secret=OTHER_SECRET), "task_not_found"),
        (signed(body, name=None, secret=OTHER_SECRET), "invalid_signature"),
        (signed(body, secret=OTHER_SECRET), "invalid_signature"),
        (signed(body, name="nobody"), "invalid_signature"),
    ):
        assert code_of(await tale.post(body, headers)) == code
    assert await tale.task() == before
    await goes_well_after_all(tale)


async def secrets_are_rolled(tale: Tale) -> None:
    """Last year's secret is still believed, alone or beside a wrong one; the same news written anew is not."""
    await tale.begins()
    await tale.is_taken()
    body = tale.news("processing", percent=10)
    written_anew = json.dumps(json.loads(body), indent=1).encode()
    assert code_of(await tale.post(written_anew, signed(body, secret=OLD_SECRET))) == "invalid_signature"
    headers = signed(body, secret=OLD_SECRET)
    right = headers["X-Callback-Signature"].rpartition("v1=")[2]
    headers["X-Callback-Signature"] = signed(body, secret=OTHER_SECRET)["X-Callback-Signature"] + f",v1={right}"
    assert ok(await tale.post(body, headers))["status"] == "processing"
    body = tale.news("processing", percent=20)
    assert ok(await tale.post(body, signed(body, secret=OLD_SECRET)))["status"] == "processing"
    await goes_well_after_all(tale)


async def said_a_hundred_times_at_once(tale: Tale) -> None:
    """A hundred copies of one event at once: one row of it, one capture."""
    await tale.begins(n=2)
    await tale.is_taken()
    body = tale.news("succeeded", outputs=[{"url": tale.file("a.png")}, {"url": tale.file("b.png")}])

    async def deliver() -> None:
        ok(await tale.post(body))

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(deliver)
    await tale.becomes("succeeded")
    await tale.stands(*PAID, cost="2.00", units=2, hosting="ready")
    with psycopg.connect(tale.service.database_url, autocommit=True) as connection:
        events = connection.execute("select event_id from task_events where request_id = %s", (tale.request_id,))
        assert events.fetchall() == [("evt_1",)]


async def answered_twice(tale: Tale) -> None:
    """Two successes with different outputs: the first one counts, the second is late."""
    await tale.begins()
    await tale.is_taken()
    await tale.succeeds(tale.file("first.png"))
    await tale.succeeds(tale.file("second.png", is_file(noise(20))), tale.file("third.png"))
    await tale.becomes("succeeded")
    task = await tale.stands(*PAID, cost="1.00", units=1, hosting="ready")
    assert [item["sha256"] for item in task["output"]] == [hashlib.sha256(PICTURE).hexdigest()]
    assert tale.last_line(task, "late")["source_ref"] == "callback:evt_2"


async def told_backwards(tale: Tale) -> None:
    """Success first, then its progress: the status stays, the percentage is not lowered."""
    await tale.begins()
    await tale.is_taken()
    await tale.hears("processing", sequence=5, percent=80)
    await tale.succeeds(tale.file(), sequence=9, percent=100)
    for sequence, percent in ((8, 90), (7, 40), (6, 10)):
        task = await tale.hears("processing", sequence=sequence, percent=percent)
        assert task["status"] in {"processing", "succeeded"}
    await tale.hears("queued", sequence=1)
    await tale.becomes("succeeded")
    await tale.stands(*PAID, cost="1.00", units=1, hosting="ready")


async def more_than_was_quoted(tale: Tale) -> None:
    """Units beyond all reason say nothing: what was ordered is charged, and the report is told."""
    await tale.begins(CLIP, seconds=3)
    await tale.runs()
    await tale.succeeds(tale.file(), usage={"units": 2**62, "unit": "second"})
    await tale.becomes("succeeded")
    await tale.stands(*PAID, cost="0.30", units=3, hosting="ready")


async def nothing_was_used(tale: Tale) -> None:
    """A success that counts no units is still a result: what was ordered is charged."""
    await tale.begins(CLIP, seconds=3)
    await tale.runs()
    await tale.succeeds(tale.file(), usage={"units": 0, "unit": "second"})
    await tale.becomes("succeeded")
    await tale.stands(*PAID, cost="0.30", units=3, hosting="ready")


async def fewer_than_were_ordered(tale: Tale) -> None:
    """Three pictures of four: three are charged, the fourth goes back."""
    await tale.begins(n=4)
    await tale.runs()
    await tale.succeeds(*(tale.file(f"{name}.png") for name in "abc"), usage={"units": 4, "unit": "image"})
    await tale.becomes("succeeded")
    await tale.stands(*PAID, cost="3.00", units=3, error="partial: 3 of 4", hosting="ready")
    await tale.shows_pictures(3)


async def more_than_were_ordered(tale: Tale) -> None:
    """Three pictures where one was ordered: all are delivered, the hold bounds the charge."""
    await tale.begins()
    await tale.is_taken()
    await tale.succeeds(*(tale.file(f"{name}.png") for name in "abc"))
    await tale.becomes("succeeded")
    await tale.stands(*PAID, cost="1.00", units=3, hosting="ready")
    await tale.shows_pictures(3)


async def done_without_anything(tale: Tale) -> None:
    """A success without outputs is asked about; where asking brings none either it is a failure."""
    await tale.begins(script=Script(get=finished()))
    await tale.is_taken()
    await tale.succeeds()
    await tale.becomes("failed")
    await tale.stands("queued", "failed", error="provider_error: the provider finished without", hosting="skipped")
    assert tale.calls == ["PUT", "GET"]


async def done_and_asked_for_the_outputs(tale: Tale) -> None:
    """A success without outputs is asked about, and brings them."""
    await tale.begins(script=Script(get=finished(data_url(PICTURE))))
    await tale.is_taken()
    await tale.succeeds()
    await tale.becomes("succeeded")
    await tale.stands(*PAID, cost="1.00", units=1, hosting="ready")
    await tale.shows_pictures(1)


# ----------------------------------------------------------------------------------------------- answers to calls


async def nonsense_at_the_door(tale: Tale) -> None:
    """A submission answered by nonsense is in doubt, so it is handed in again under the same name."""
    put = in_turn(says(200, b"<html>", "text/html"), says(202, b"[" * 10_000), TAKEN)
    await tale.begins(script=Script(put=put))
    await tale.is_taken()
    assert tale.calls == ["PUT", "PUT", "PUT"]
    await goes_well_after_all(tale)


async def finds_out_in_the_end(tale: Tale, *nonsense: Answer) -> None:
    """Polls answered by nonsense tell nothing; the next true answer does, whatever its numbers."""
    numbers = b'{"status": "succeeded", "output": [%b], "metrics": {"units": 1%b}}'
    truth = says(200, numbers % (json.dumps(tale.file()).encode(), b"0" * 30))
    await tale.begins(POLLED, Script(get=in_turn(*nonsense, truth)))
    await tale.becomes("succeeded")
    task = await tale.stands(*PAID, cost="1.00", units=1, hosting="ready")
    polls = 1 + len(nonsense)
    assert tale.calls[: 1 + polls] == ["PUT"] + ["GET"] * polls
    told = [line["source_ref"].partition(":")[0] for line in task["provider_progress"]]
    assert told == ["system", "poll", "system"]


async def nonsense_when_asked(tale: Tale) -> None:
    """A page and broken text are no answers."""
    broken = b'{"status": "succeeded", "output": ["\xff"]}'
    await finds_out_in_the_end(tale, says(200, b"<html>", "text/html"), says(200, broken))


async def out_of_bounds_when_asked(tale: Tale) -> None:
    """What is out of bounds, and what is told of another job, is no answer."""
    other_job = finished(tale.file("b.png", is_file(noise(20))), id="task_of_somebody_else.1")
    await finds_out_in_the_end(tale, tells("processing", progress={"percent": 900}), other_job)


async def nonsense_to_the_end(tale: Tale) -> None:
    """Polls that bring nothing but nonsense: the deadline ends the task."""
    get = in_turn(says(200, b"[" * 10_000), says(200, b'{"status": "succeeded", "output": [NaN]}'))
    await tale.begins(HASTY, Script(get=get))
    await tale.becomes("failed")
    await tale.stands("queued", "failed", error="provider_timeout", hosting="skipped")


async def silent_to_the_end(tale: Tale) -> None:
    """Taken and never heard of again, deaf to polls and to the cancel: the deadline ends the task."""
    await tale.begins(HASTY, Script(get=hangs, cancel=hangs))
    await tale.becomes("failed")
    await tale.stands("queued", "failed", error="provider_timeout", hosting="skipped")


async def speaks_after_the_end(tale: Tale) -> None:
    """A job that was given up and is told of after all is late: not stored, not charged."""
    await tale.begins(HASTY, Script(get=tells("processing", progress={"percent": 99}), cancel=says(500, {})))
    await tale.becomes("failed")
    task = await tale.succeeds(tale.file())
    assert (task["status"], tale.last_line(task, "late")["source_ref"]) == ("failed", "callback:evt_1")
    await tale.stands("queued", "failed", error="provider_timeout", hosting="skipped")


STORIES: tuple[Story, ...] = (
    rubbish_is_no_event, other_attempts_are_stale, another_provider_has_no_say, said_a_hundred_times_at_once,
    secrets_are_rolled, answered_twice, told_backwards, more_than_was_quoted, nothing_was_used,
    fewer_than_were_ordered, more_than_were_ordered, done_without_anything, done_and_asked_for_the_outputs,
    nonsense_at_the_door, nonsense_when_asked, out_of_bounds_when_asked,
    nonsense_to_the_end, silent_to_the_end, speaks_after_the_end,
)  # fmt: skip


async def test_whatever_a_provider_says_the_outcome_is_the_written_one(
    scripted_house: Service, scripted: ScriptedProvider, new_customer: NewCustomer
) -> None:
    with trio.fail_after(120):
        await tell_all(STORIES, scripted_house, scripted, new_customer)
    nothing_is_left_open(scripted_house)
