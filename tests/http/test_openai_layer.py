"""Requests of OpenAI's clients that are held open: what they keep, and results that cannot be sent."""

from __future__ import annotations

import gc
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import trio
from tests.clients import ok, refused
from trio.testing import wait_all_tasks_blocked

from holdfast.actors.account.messages import CreateTask, TaskAccepted
from holdfast.actors.runtime.messages import Replayed
from holdfast.http.kit.calls import Call
from holdfast.ledger.refusals import Refusal
from holdfast.ledger.tasks.task import OutputItem

from .api import Api

PATH = "/v1/images/generations"
ID = "task_" + "1" * 32
ACCEPTED = TaskAccepted(ID, "quo_" + "1" * 32, "queued", None, 12_000, "1 image")


async def test_a_request_that_waits_does_not_keep_its_body(api: Api) -> None:
    await api.add_task(api.task(ID, status="processing"))
    api.accounts.answer = ACCEPTED
    prompt = "a lighthouse " * 40
    async with trio.open_nursery() as nursery:
        nursery.start_soon(api.as_key, "POST", PATH, {"model": "studio/image-1", "prompt": prompt})
        with trio.fail_after(60):
            while api.deps.following.waiting.count == 0 or not api.accounts.asked:
                await trio.lowlevel.checkpoint()
            await wait_all_tasks_blocked(0.05)
        [call] = [each for each in gc.get_objects() if isinstance(each, Call) and each.route.path == PATH]
        assert (call.raw, call.json, call.files) == (b"", {}, ())
        nursery.cancel_scope.cancel()


async def test_a_key_that_may_not_read_results_gets_none(api: Api) -> None:
    writer = (await api.add_key(api.account_id, "key_" + "7" * 32, scopes=("tasks:write",))).secret
    api.accounts.answer = ACCEPTED
    await api.add_task(api.task(ID, status="processing"))
    image: dict[str, Any] = {"data": {"model": "studio/edit-1"}, "files": {"image": b"a picture"}}
    wanted: dict[str, dict[str, Any]] = {
        PATH: {"json": {"model": "studio/image-1", "prompt": "a pier"}},
        "/v1/audio/speech": {"json": {"model": "studio/tone-1", "input": "rain"}},
        "/v1/images/edits": image,
    }
    for path, sent in wanted.items():
        for _ in range(2):  # the first time its row is read
            error = refused(await api.call("POST", path, credential=writer, **sent), 403, "insufficient_scope")
            assert error["message"] == "The API key does not have the scope tasks:read."
    assert api.accounts.asked == []
    assert ok(await api.as_key("GET", "/v2/files"))["data"] == []
    reader = (await api.add_key(api.account_id, "key_" + "8" * 32, scopes=("tasks:read",))).secret
    error = refused(
        await api.call("POST", "/v1/images/edits", credential=reader, **image), 403, "insufficient_scope"
    )
    assert error["message"] == "The API key does not have the scope tasks:write."


@pytest.mark.parametrize(
    ("attempt", "status", "code"),
    [({}, 424, "outcome_unknown"), ({"X-Stainless-Retry-Count": "0"}, 410, "asset_expired")],
)
@pytest.mark.parametrize("sha256", ["0" * 64, None], ids=["removed from the store", "never stored here"])
async def test_bytes_that_are_not_there_are_no_fault(
    api: Api, attempt: dict[str, str], status: int, code: str, sha256: str | None
) -> None:
    """After a 500 the client would send the request again, and some would pay again."""
    stored = OutputItem(
        index=0, asset_id="asset_" + "1" * 32, content_type="image/png", bytes=1, sha256=sha256,
        expires_at=api.now + timedelta(days=7),
    )  # fmt: skip
    task = api.task(ID, status="succeeded")
    await api.add_task(msgspec.structs.replace(task, state=msgspec.structs.replace(task.state, output=(stored,))))
    api.accounts.answer = ACCEPTED
    wanted = {"model": "studio/image-1", "prompt": "a pier", "response_format": "b64_json"}
    refused(await api.as_key("POST", PATH, wanted, headers=attempt), status, code)


def asked_of(api: Api) -> CreateTask:
    """The last task that the account was asked for."""
    _, command = api.accounts.asked[-1]
    assert isinstance(command, CreateTask)
    return command


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATH, {"model": "studio/image-1", "prompt": "a pier"}),
        ("/v1/audio/speech", {"model": "studio/tone-1", "input": "rain"}),
        ("/v1/videos", {"model": "studio/clip-1", "prompt": "waves"}),
    ],
)
async def test_user_and_metadata_are_stored_with_the_task(api: Api, path: str, body: dict[str, Any]) -> None:
    api.accounts.answer = Refusal(code="insufficient_credit", message="It ends here.")
    await api.as_key("POST", path, {**body, "user": "ann", "metadata": {"job": "7"}})
    assert asked_of(api).request.metadata == {"job": "7", "end_user": "ann"}
    wrong = {
        "user": ({"user": "x" * 513}, {"user": 7}),
        "metadata": ({"metadata": {str(number): "x" for number in range(17)}},),
        "metadata.job": ({"metadata": {"job": 7}}, {"metadata": {"job": "x" * 513}}),
    }
    for param, bodies in wrong.items():
        for each in bodies:
            error = refused(await api.as_key("POST", path, {**body, **each}), 400, "invalid_parameter")
            assert error["param"] == param


async def test_a_task_has_a_cap_and_a_deadline_of_the_extra_body(api: Api) -> None:
    api.accounts.answer = ACCEPTED
    body = {"model": "studio/clip-1", "prompt": "a pier"}
    await api.as_key("POST", "/v1/videos", {**body, "deadline_s": 60, "max_credits": "100"})
    assert asked_of(api).request.deadline_s == 60
    assert "deadline_s" not in asked_of(api).request.input
    asked = len(api.accounts.asked)
    for extra, code in (
        ({"max_credits": "0.000001"}, "max_credits_exceeded"),
        ({"max_credits": "much"}, "invalid_amount"),
        ({"deadline_s": 0}, "invalid_parameter"),
        ({"deadline_s": "soon"}, "invalid_parameter"),
    ):
        response = await api.as_key("POST", "/v1/videos", {**body, **extra})
        assert response.json()["error"]["code"] == code, response.text
        assert response.json()["error"]["param"] == next(iter(extra))
    assert len(api.accounts.asked) == asked


async def test_a_form_has_metadata_as_clients_encode_it(api: Api) -> None:
    api.accounts.answer = Refusal(code="insufficient_credit", message="It ends here.")
    fields = {"model": "studio/edit-1", "user": "ann", "metadata[job]": "7", "metadata[a b]": "c"}
    files = {"image": b"a picture"}
    await api.as_key("POST", "/v1/images/edits", data=fields, files=files)
    assert asked_of(api).request.metadata == {"job": "7", "a b": "c", "end_user": "ann"}
    wrong = {
        "metadata": {"metadata": "7"},
        "metadata.list": {"metadata[list][]": "7"},
        "metadata[a][b]": {"metadata[a][b]": "7"},
    }
    for param, field in wrong.items():
        sent = {"model": "studio/edit-1", **field}
        response = await api.as_key("POST", "/v1/images/edits", data=sent, files=files)
        assert param in response.json()["error"]["message"]
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    twice = {"model": "studio/edit-1", "metadata[a]": "7", "metadata": "7"}
    error = refused(await api.as_key("POST", "/v1/images/edits", data=twice, files=files), 400, "invalid_parameter")
    assert error["message"] == "The parameter 'metadata' was sent more than once."


@pytest.mark.parametrize(
    ("files", "fields", "code", "param"),
    [
        ({"image": b"one", "mask": b"two"}, {}, "invalid_parameter", "mask"),
        ({"mask": b"two", "image": b"one"}, {}, "invalid_parameter", "mask"),
        ({"image": b"one"}, {"mask": "a text"}, "invalid_parameter", "mask"),
        ({"image": b"one", "foo": b"two"}, {}, "invalid_parameter", "foo"),
        ({"image": b"one", "input_reference": b"two"}, {}, "invalid_parameter", "input_reference"),
        ({"foo": b"two"}, {}, "missing_parameter", "image"),
        ({}, {"prompt": "dusk"}, "missing_parameter", "image"),
    ],
)
async def test_an_edit_is_of_its_image_alone(
    api: Api, files: dict[str, bytes], fields: dict[str, str], code: str, param: str
) -> None:
    """Nothing is created, charged or stored for what the model does not take."""
    form = [(name, (name, content)) for name, content in files.items()]
    form += [(name, (None, text)) for name, text in {"model": "studio/edit-1", **fields}.items()]  # type: ignore[misc]
    error = refused(await api.as_key("POST", "/v1/images/edits", files=form), 400, code)
    assert error["param"] == param
    assert (api.accounts.asked, ok(await api.as_key("GET", "/v2/files"))["data"]) == ([], [])


async def test_errors_name_what_was_sent(api: Api) -> None:
    body = {"model": "studio/image-1", "prompt": " ", "n": 9, "size": "8x512", "quality": "hd"}
    error = refused(await api.as_key("POST", PATH, body), 400, "invalid_input")
    assert {each["param"] for each in error["errors"]} == {"prompt", "n", "size", "quality"}
    assert {each["message"] for each in error["errors"]} >= {
        "prompt must not be blank.",
        "size has a width that must be at least 256.",
    }
    assert "input." not in error["message"]
    spoken = {"model": "studio/tone-1", "input": ""}
    error = refused(await api.as_key("POST", "/v1/audio/speech", spoken), 400, "invalid_input")
    assert (error["param"], error["message"]) == ("input", "input must not be blank.")


@pytest.mark.parametrize("status", ["succeeded", "failed", "processing"])
async def test_a_repeat_with_its_key_says_so(api: Api, status: str) -> None:
    await api.add_task(api.task(ID, status=status))
    video: tuple[str, dict[str, Any]] = ("/v1/videos", {"model": "studio/clip-1", "prompt": "waves"})
    image: tuple[str, dict[str, Any]] = (PATH, {"model": "studio/image-1", "prompt": "a pier"})
    for path, body in (video,) if status == "processing" else (video, image):
        for answer, expected in ((ACCEPTED, None), (Replayed(ACCEPTED), "true")):
            api.accounts.answer = answer
            response = await api.as_key("POST", path, body, key="mine")
            assert response.headers["X-Task-Id"] == ID
            assert response.headers.get("Idempotent-Replayed") == expected
    api.accounts.answer = Replayed(Refusal(code="insufficient_credit", message="Too little."))
    response = await api.as_key("POST", *image, key="other")
    refused(response, 402, "insufficient_credit")
    assert response.headers["Idempotent-Replayed"] == "true"


async def test_a_video_keeps_its_prompt(api: Api) -> None:
    task = api.task(ID, status="processing")
    terms = msgspec.structs.replace(task.request.terms, model="studio/clip-1", modality="video")
    request = msgspec.structs.replace(task.request, terms=terms, input={"prompt": "waves", "duration": 2})
    await api.add_task(msgspec.structs.replace(task, model="studio/clip-1", request=request))
    assert ok(await api.as_key("GET", f"/v1/videos/{ID}"))["prompt"] == "waves"
    assert [each["prompt"] for each in ok(await api.as_key("GET", "/v1/videos"))["data"]] == ["waves"]
