"""Forms as bodies: what is read of them, what is refused, and where their files are until the task has ended."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
import pytest
from sqlalchemy import update
from tests.clients import ok, refused

from holdfast.actors.account.messages import CreateTask, TaskAccepted
from holdfast.http.kit.credentials import KnownKey, digest
from holdfast.http.kit.forms import Form, FormFile, is_form
from holdfast.ledger.api_keys import SCOPES
from holdfast.ledger.catalog.input_schema import InputSchema
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.claims.files import UPLOAD_S, ExpiredFile, files_total, sweep_files
from holdfast.persistence.claims.tasks import FIRST_EXPIRED
from holdfast.persistence.records import tables

if TYPE_CHECKING:
    from tests.http.api import Api

PNG = b"\x89PNG\r\n\x1a\n" + b"not much of a picture"
ID = "task_" + "1" * 32
LINK = {"type": "string", "format": "uri"}
BASE64 = {"type": "string", "contentEncoding": "base64"}
NOT_DONE = Refusal(code="insufficient_credit", message="It ends here.")


def part(name: str, content: bytes, filename: str | None = None) -> bytes:
    extra = "" if filename is None else f'; filename="{filename}"'
    return f'--x\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n'.encode() + content + b"\r\n"


MODEL = part("model", b"studio/clip-1")
PROMPT = part("prompt", b"waves")


async def send(api: Api, path: str, *parts: bytes, **options: Any) -> httpx2.Response:
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    return await api.as_key("POST", path, content=b"".join(parts) + b"--x--\r\n", headers=headers, **options)


def use_model(api: Api, model_id: str, **properties: Any) -> None:
    """Let a model of the catalog take these fields."""
    catalog = api.deps.registry.catalog
    document = {"type": "object", "properties": properties, "additionalProperties": False}
    model = msgspec.structs.replace(catalog.models[model_id], input_schema=document, schema=InputSchema(document))
    changed = replace(catalog, models={**catalog.models, model_id: model})
    api.sell(changed)


def created(api: Api) -> CreateTask:
    """The task that the account was asked for."""
    [(_, command)] = api.accounts.asked
    assert isinstance(command, CreateTask)
    return command


async def file_ids(api: Api) -> list[str]:
    return [each["file_id"] for each in ok(await api.as_key("GET", "/v2/files"))["data"]]


async def test_a_form_has_texts_lists_and_files(api: Api) -> None:
    api.accounts.answer = NOT_DONE
    use_model(
        api,
        "studio/clip-1",
        prompt={"type": "string"},
        tags={"type": "array", "items": {"type": "integer"}},
        duration={"type": "number"},
        frames={"type": "array", "items": LINK},
    )
    await send(
        api,
        "/v1/videos",
        MODEL,
        part("prompt", "ein Leuchtturm — Dämmerung".encode()),
        part("tags[]", b"1"),
        part("frames[]", PNG, "a.png"),
        part("tags[]", b"2"),
        part("frames[]", PNG + b"2", "b.png"),
        part("seconds", b"2"),
    )
    request = created(api).request
    frames = request.input.pop("frames")
    assert request.input == {"prompt": "ein Leuchtturm — Dämmerung", "tags": [1, 2], "duration": 2}
    assert frames == (await file_ids(api))[::-1] == [each.file_id for each in request.files]


async def test_a_file_in_the_models_input_is_not_stored(api: Api) -> None:
    api.accounts.answer = NOT_DONE
    use_model(api, "studio/clip-1", prompt={"type": "string"}, image=BASE64)
    await send(api, "/v1/videos", MODEL, PROMPT, part("input_reference", PNG, "a.png"))
    assert created(api).request.input["image"] == base64.b64encode(PNG).decode()
    assert await file_ids(api) == []
    too_large = part("input_reference", bytes(api.deps.settings.body_bytes_max + 1), "a.png")
    refused(await send(api, "/v1/videos", MODEL, PROMPT, too_large), 413, "request_too_large")


async def test_a_form_without_files_needs_no_room_for_them(api: Api) -> None:
    api.configure(files_max=0)
    api.accounts.answer = NOT_DONE
    await send(api, "/v1/videos", MODEL, PROMPT)
    assert created(api).request.input["prompt"] == "waves"
    wanted = (part("model", b"studio/edit-1"), part("image", PNG, "a.png"))
    refused(await send(api, "/v1/images/edits", *wanted), 409, "file_limit_reached")


async def test_a_form_without_files_reads_no_row_for_a_known_key(api: Api) -> None:
    api.know_key()
    api.accounts.answer = NOT_DONE
    await send(api, "/v1/videos", MODEL, PROMPT)
    assert created(api).request.input["prompt"] == "waves"
    assert api.rows.reads == 0


async def test_a_key_that_was_revoked_since_it_was_read_stores_no_file(api: Api) -> None:
    key = await api.add_key(api.account_id, "key_gone", revoked_at=api.now)
    known = KnownKey(api.account_id, "key_gone", frozenset(SCOPES))
    api.deps.access.key_cache.put(digest(key.secret), known)
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    for last in (part("input_reference", PNG, "a.png"), PROMPT):
        sent = MODEL + PROMPT + last + b"--x--\r\n"
        response = await api.call("POST", "/v1/videos", content=sent, headers=headers, credential=key.secret)
        refused(response, 401, "invalid_api_key")
    assert ok(await api.as_key("GET", "/v2/files"))["data"] == []


def test_the_boundary_and_the_names_of_files_make_no_difference() -> None:
    one = Form({"a": "1"}, (FormFile("f", "0" * 64),), 1)
    two = Form({"a": "1"}, (FormFile("f", "0" * 64, content=b"data"),), 5)
    assert one.facts == two.facts != Form({"a": "1"}, (FormFile("f", "1" * 64),), 1).facts


@pytest.mark.parametrize(
    ("parts", "code", "param"),
    [
        ((PROMPT,), "missing_parameter", "model"),
        ((MODEL, PROMPT, PROMPT), "invalid_parameter", "prompt"),
        ((MODEL, PROMPT, part("prompt[]", b"2")), "invalid_parameter", "prompt"),
        ((MODEL, part("prompt", b"\xff")), "invalid_parameter", "prompt"),
        ((MODEL, part("prompt", b"\0")), "invalid_parameter", "prompt"),
        ((MODEL, PROMPT, part("a\0b", b"1")), "invalid_parameter", "a\0b"),
        ((MODEL, PROMPT, part("mask", PNG, "a.png")), "invalid_parameter", "mask"),
        ((MODEL, PROMPT, *[part(f"a{n}", b"") for n in range(200)]), "invalid_form", None),
        ((b"--y\r\n\r\n",), "invalid_form", None),
    ],
)
async def test_what_is_not_taken_is_refused_by_its_name_and_stores_nothing(
    api: Api, parts: tuple[bytes, ...], code: str, param: str | None
) -> None:
    assert refused(await send(api, "/v1/videos", *parts), 400, code)["param"] == param
    assert await file_ids(api) == []
    assert api.accounts.asked == []


async def test_an_edit_needs_an_image(api: Api) -> None:
    error = refused(await send(api, "/v1/images/edits", part("model", b"studio/edit-1")), 400, "missing_parameter")
    assert error["param"] == "image"


async def test_several_images_are_for_models_that_take_several(api: Api) -> None:
    images = [part("image[]", PNG + bytes([number]), "a.png") for number in range(2)]
    model = part("model", b"studio/edit-1")
    error = refused(await send(api, "/v1/images/edits", model, *images), 400, "invalid_parameter")
    assert error["message"] == "The parameter image has 2 files; the model studio/edit-1 takes one."
    assert await file_ids(api) == []
    use_model(api, "studio/edit-1", image={"type": "array", "items": LINK})
    api.accounts.answer = NOT_DONE
    await send(api, "/v1/images/edits", model, *images)
    assert len(created(api).request.files) == 2


async def test_the_file_of_an_edit_is_stored_until_its_task_has_ended(api: Api) -> None:
    """Its bytes are found in the rows while the hold is open, and are released then: no week later."""
    await api.add_task(api.task(ID, status="canceled", wake_at=None))
    api.accounts.answer = TaskAccepted(ID, "quo_" + "1" * 32, "queued", None, 12_000, "1 image")
    await send(api, "/v1/images/edits", part("model", b"studio/edit-1"), part("image", PNG, "a.png"))
    [file_id] = await file_ids(api)
    assert [each.file_id for each in created(api).request.files] == [file_id]
    api.change(now=lambda: api.now + timedelta(seconds=UPLOAD_S))
    assert await file_ids(api) == []

    async def swept(after_s: float) -> int:
        at, first = api.now + timedelta(seconds=after_s), ExpiredFile(*FIRST_EXPIRED)
        return (await api.database.work(sweep_files, at, after=first, most=10)).deleted

    hold = {"account_id": api.account_id, "hold_id": created(api).request.hold_id, "amount_micro": 1}
    await api.write(tables.holds.insert().values(**hold, reference=ID, opened_number=1))
    assert await swept(30 * 24 * 3600) == 0
    await api.write(update(tables.holds).values(settled_number=2))
    assert await swept(UPLOAD_S - 1) == 0
    assert (await api.database.read(files_total, api.account_id)).files == 1
    assert await swept(UPLOAD_S) == 1
    assert (await api.database.read(files_total, api.account_id)).files == 0


def test_only_forms_are_forms() -> None:
    assert is_form("Multipart/Form-Data; boundary=x")
    assert not is_form("multipart/mixed; boundary=x")
    assert not is_form(None)


async def test_a_form_without_a_boundary_is_refused(api: Api) -> None:
    headers = {"Content-Type": "multipart/form-data"}
    response = await api.as_key("POST", "/v1/videos", content=MODEL, headers=headers)
    refused(response, 415, "unsupported_media_type")
