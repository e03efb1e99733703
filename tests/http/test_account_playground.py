"""The playground: forms from schemas, prices, and tasks that cost no more than shown; tasks and usage."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.clients import ok
from tests.strict_html import StrictHtml

from holdfast.actors.account.messages import CreateTask
from holdfast.actors.task.messages import CancelTask, TaskReply
from holdfast.http.kit.operators import CSRF_HEADER
from holdfast.ledger.refusals import Refusal
from holdfast_console.account.inputs import HINT_CHARS_MAX, PREFIX, TITLE_CHARS_MAX, fields_of, input_of
from holdfast_console.account.samples import create_samples
from holdfast_console.forms import parse_form

from .test_account_pages import HOSTILE, TASK_ID, AccountReader, owner
from .test_media_tasks import accept
from .test_override_calls import act

if TYPE_CHECKING:
    from tests.http.api import Api

__all__ = ["owner"]

PLAYGROUND = "/account/playground"
MODEL = "studio/image-1"

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["prompt"],
    "properties": {
        "n": {"type": "integer", "minimum": 1, "maximum": 4, "default": 1, "description": "How many."},
        "prompt": {"type": "string", "maxLength": 2000},
        "title": {"type": ["string", "null"], "maxLength": 40, "title": HOSTILE},
        "image": {"type": "string", "format": "uri"},
        "tiled": {"type": "boolean"},
        "style": {"enum": ["oil", 3, None]},
        "strength": {"type": "number"},
        "points": {"type": "array", "items": {"type": "number"}},
    },
}


def test_each_property_becomes_a_field_that_fits_it() -> None:
    fields = {each.name.removeprefix(PREFIX): each for each in fields_of(SCHEMA, {"prompt": "a pier", "n": 3})}
    assert next(iter(fields)) == "prompt"
    assert {name: each.kind for name, each in fields.items()} == {
        "prompt": "area", "n": "number", "title": "text", "image": "file", "tiled": "choice", "style": "choice",
        "strength": "number", "points": "json",
    }  # fmt: skip
    assert (fields["prompt"].default, fields["n"].default) == ("a pier", "")
    assert fields["n"].limits == {"min": 1, "max": 4, "step": 1}
    assert fields["n"].hint == "How many. By default 1."
    assert fields["tiled"].choices == (("", "not chosen"), ("true", "yes"), ("false", "no"))
    assert fields["style"].choices == (("", "not chosen"), ("oil", "oil"), ("3", "3"), ("null", "null"))


def test_text_becomes_what_the_schema_names_where_it_can() -> None:
    filled = {
        "prompt": "5", "n": "2", "title": "null", "tiled": "false", "style": "3", "strength": "1e-1",
        "points": "[1, 2.5]",
    }  # fmt: skip
    assert input_of(SCHEMA, {f"{PREFIX}{name}": text for name, text in filled.items()}) == {
        "prompt": "5", "n": 2, "title": "null", "tiled": False, "style": 3, "strength": 0.1, "points": [1, 2.5],
    }  # fmt: skip
    wrong = {"n": "2.5.1", "tiled": "maybe", "strength": "NaN", "points": "[1,", "unknown": "x"}
    assert input_of(SCHEMA, {f"{PREFIX}{name}": text for name, text in wrong.items()}) == wrong
    assert input_of(SCHEMA, {"model": "m", "max_credits": "1"}) == {}


def test_text_arrives_as_it_was_typed_and_a_choice_as_it_is_listed() -> None:
    sent = {f"{PREFIX}prompt": "a pier\r\n\r\nat dusk ", f"{PREFIX}style": "in oil,\r\nwet"}
    form = parse_form(urlencode(sent).encode(), "application/x-www-form-urlencoded")
    assert not isinstance(form, Refusal)
    schema = {"properties": {**SCHEMA["properties"], "style": {"enum": ["oil", " in oil,\nwet\n"]}}}
    assert input_of(schema, form) == {"prompt": "a pier\n\nat dusk", "style": " in oil,\nwet\n"}


def test_labels_of_a_form_are_short_and_printable() -> None:
    hostile = "\u202e\x1b\n" + "x" * 10_000
    prompt = {"type": "string", "title": hostile, "description": hostile, "default": hostile}
    schema = {"properties": {"prompt": prompt, "style": {"enum": [hostile]}}}
    text, choice = fields_of(schema, None)
    labels = (text.title, text.hint, choice.choices[1][1])
    assert [len(each) for each in labels] == [TITLE_CHARS_MAX, HINT_CHARS_MAX, TITLE_CHARS_MAX]
    assert all(each.isprintable() for each in labels)
    [curl, _, script] = create_samples("https://holdfast.example", {"input": {"prompt": hostile}})
    assert all("\u202e" not in each.text and "\\u202e" in each.text for each in (curl, script))


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(sorted(SCHEMA["properties"])), st.text(max_size=30)))
def test_no_text_breaks_a_form(filled: dict[str, str]) -> None:
    assert set(input_of(SCHEMA, {f"{PREFIX}{name}": text for name, text in filled.items()})) == set(filled)


@pytest.mark.parametrize("schema", [{}, {"properties": {}}, {"properties": {"a": {}}}, {"required": ["gone"]}])
def test_a_schema_that_says_little_has_a_form(schema: dict[str, Any]) -> None:
    assert [each.kind for each in fields_of(schema, None)] == ["json"] * len(schema.get("properties", {}))


async def test_every_model_has_a_form_with_a_price(owner: AccountReader) -> None:
    models = re.findall(r'href="(/account/playground\?model=[^"]+)"', (await owner.get(PLAYGROUND)).text)
    assert len(models) >= 4
    for path in models:
        page = await owner.get(path)
        assert page.status_code == 200
        assert StrictHtml(page.text).faults == []
    assert "Run for up to 0.012 credits" in (await owner.get(f"{PLAYGROUND}?model={MODEL}")).text
    assert (await owner.get(f"{PLAYGROUND}?model=no/model")).status_code == 404


async def test_the_price_is_that_of_what_is_filled_in(api: Api, owner: AccountReader) -> None:
    token = await owner.hidden("/account")
    sent = {"csrf_token": token, "model": MODEL, "input.prompt": HOSTILE, "input.n": "3"}
    priced = await owner.send(f"{PLAYGROUND}/price", **sent)
    assert priced.status_code == 200
    assert "<strong>0.036 credits</strong>" in priced.text
    assert 'name="max_credits" form="run" value="0.036"' in priced.text
    assert HOSTILE not in priced.text
    refused = await owner.send(f"{PLAYGROUND}/price", **{**sent, "input.n": "9"})
    assert 'data-param="input.n"' in refused.text
    assert api.accounts.asked == []


async def test_a_task_costs_no_more_than_was_shown(api: Api, owner: AccountReader) -> None:
    page = f"{PLAYGROUND}?model={MODEL}"
    sent = {
        "csrf_token": await owner.hidden(page), "return_to": page, "idempotency_key": "once", "model": MODEL,
        "input.prompt": "a pier", "input.n": "2", "max_credits": "0.012",
    }  # fmt: skip
    dearer = await owner.send(f"{PLAYGROUND}/run", **sent)
    assert (dearer.status_code, api.accounts.asked) == (402, [])
    assert "The task can cost 0.024 credits; max_credits is 0.012." in dearer.text
    assert ">a pier</textarea>" in dearer.text
    assert "Run for up to 0.024 credits" in dearer.text
    wrong = await owner.send(f"{PLAYGROUND}/run", **{**sent, "input.n": "9"})
    assert wrong.status_code == 400
    assert re.search(r'name="input.n" value="9" aria-invalid="true"', wrong.text)
    api.accounts.answer = accept
    done = await owner.send(f"{PLAYGROUND}/run", **{**sent, "max_credits": "0.024"})
    assert (done.status_code, done.headers["Location"]) == (303, "/account/tasks/task_1")
    [(account_id, command)] = api.accounts.asked
    assert isinstance(command, CreateTask)
    assert (account_id, command.request.api_key_id) == (api.account_id, None)
    assert command.request.input.items() >= {"prompt": "a pier", "n": 2}.items()
    assert command.idempotency is not None
    assert command.idempotency.key == "once"


async def test_a_large_input_of_a_form_counts_as_one_that_was_sent(api: Api, owner: AccountReader) -> None:
    api.configure(stored_input_bytes_max=-1)
    api.accounts.answer = accept
    page = f"{PLAYGROUND}?model=studio/edit-1"
    form = {"csrf_token": await owner.hidden(page), "return_to": page, "model": "studio/edit-1"}
    image = "A" * 70_000
    large = await owner.send(f"{PLAYGROUND}/run", **form, **{"input.image": image, "input.operation": "convert"})
    assert (large.status_code, api.accounts.asked) == (429, [])
    assert "Large inputs of failed tasks" in large.text


async def test_a_dropped_file_is_stored_for_the_account(api: Api, owner: AccountReader) -> None:
    token = await owner.hidden("/account")
    path, png = f"{PLAYGROUND}/files", b"\x89PNG\r\n\x1a\n"
    headers = {
        **owner.headers,
        "Content-Type": "image/png",
        "Content-Disposition": "attachment; filename*=UTF-8''%3Cb%3E.png",
    }
    without = await api.call("POST", path, headers=headers, content=png)
    assert without.status_code == 403
    stored = await api.call("POST", path, headers={**headers, CSRF_HEADER: token}, content=png)
    assert stored.status_code == 200, stored.text
    assert re.search(r'data-file="file_[0-9a-f]{32}"', stored.text)
    assert "&lt;b&gt;.png" in stored.text


async def test_a_task_is_canceled_and_run_again(api: Api, owner: AccountReader) -> None:
    page = f"/account/tasks/{TASK_ID}"
    form = {"csrf_token": await owner.hidden(page), "return_to": page}
    assert "Cancel" in (await owner.read(page)).text
    api.tasks.answer = TaskReply(api.task(TASK_ID, status="canceled", wake_at=None))
    assert (await owner.send(f"{page}/cancel", **form)).headers["Location"] == page
    assert [command for _, command in api.tasks.asked] == [CancelTask()]
    api.accounts.answer = Refusal(code="task_not_terminal", message="It runs.", final=True)
    running = await owner.send(f"{page}/retry", **form, idempotency_key="again")
    assert running.status_code == 409
    assert (await owner.get("/account/tasks/task_" + "9" * 32)).status_code == 404


async def test_files_of_usage_and_tasks_are_csv(owner: AccountReader) -> None:
    for path in ("/account/usage.csv?from=2026-11-01", "/account/tasks.csv?status=queued"):
        response = await owner.get(path)
        assert response.headers["Content-Type"].startswith("text/csv")
        assert "attachment" in response.headers["Content-Disposition"]
    assert (await owner.get("/account/usage?days=5")).status_code == 400


async def test_a_paused_model_is_shown_as_paused(api: Api, owner: AccountReader) -> None:
    pause = {"reason": "ticket 7", "for_s": 90, "new_tasks": "refuse", "note": "back at noon"}
    ok(await act(api, f"models/{MODEL}/pause", **pause))
    tiles = await owner.read(PLAYGROUND)
    form = await owner.read(f"{PLAYGROUND}?model={MODEL}")
    for page in (tiles, form):
        assert page.text.count("new tasks are refused; back at noon") == 1
