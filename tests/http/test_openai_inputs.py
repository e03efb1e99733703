"""What OpenAI's clients send, as the input of a model."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from holdfast.http.kit.forms import FormFile
from holdfast.ledger.catalog.catalog import load_catalog
from holdfast.ledger.catalog.input_schema import InputSchema
from holdfast.ledger.catalog.models import Model
from holdfast.ledger.refusals import Refusal, Violation, invalid_input
from holdfast.persistence.records.rows import FileRow
from holdfast.providers.media.kinds import kind_rules
from holdfast_compat.model_words import as_sent
from holdfast_compat.openai.inputs import input_of, stored_names, wanted_of

MODELS = load_catalog(None, kind_rules()).models
PNG = FormFile("image", "0" * 64, content=b"\x89PNG\r\n\x1a\n")
ROW = FileRow(
    account_id="acct_1", file_id="file_" + "1" * 32, filename="a.png", content_type="image/png", bytes=1,
    sha256="0" * 64, created_at=datetime(2026, 11, 20, tzinfo=UTC), expires_at=datetime(2026, 11, 21, tzinfo=UTC),
)  # fmt: skip
STORED = FormFile("image", "0" * 64, ROW)
LINK = {"type": "string", "format": "uri"}
ENCODED = base64.b64encode(PNG.content).decode()


def taking(properties: dict[str, Any]) -> Model:
    """A model with other fields."""
    document = {"type": "object", "properties": properties}
    return msgspec.structs.replace(MODELS["studio/image-1"], input_schema=document, schema=InputSchema(document))


def given_to(model: Model, fields: dict[str, Any], files: Sequence[FormFile] = ()) -> dict[str, object]:
    """The input that the model is given."""
    found = input_of(model, fields, files)
    assert not isinstance(found, Refusal), found
    return found.input


def refused(found: object) -> Refusal:
    assert isinstance(found, Refusal), found
    return found


def test_names_become_those_of_the_models_entry() -> None:
    image, clip, tone = (MODELS[f"studio/{name}-1"] for name in ("image", "clip", "tone"))
    given = {"prompt": "a pier", "n": 2, "size": "512x256", "style": "plasma", "seed": None, "stream": False}
    assert given_to(image, given) == {
        "prompt": "a pier",
        "n": 2,
        "width": 512,
        "height": 256,
        "style": "plasma",
    }
    assert given_to(image, {"size": "auto"}) == {}
    assert given_to(clip, {"seconds": "4", "n": 1}) == {"duration": 4}
    assert given_to(clip, {"seconds": "1.5"}) == {"duration": 1.5}
    assert given_to(tone, {"input": "rain", "voice": "alloy"}) == {"prompt": "rain", "voice": "alloy"}


def test_texts_of_a_form_become_what_the_model_takes() -> None:
    fields = {"n": "2", "seed": "7", "prompt": "12", "width": "wide"}
    expected = {"n": 2, "seed": 7, "prompt": "12", "width": "wide"}
    assert given_to(MODELS["studio/image-1"], fields) == expected
    flags = taking({"flag": {"type": "boolean"}, "share": {"type": "number"}})
    assert given_to(flags, {"flag": "true", "share": "0.5"}) == {"flag": True, "share": 0.5}


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        ("clip", {"size": "640x360"}),
        ("clip", {"n": 2}),
        ("image", {"size": "12"}),
        ("image", {"size": ["1x1"]}),
        ("image", {"seconds": "4"}),
        ("image", {"stream": True}),
        ("clip", {"n": [1]}),
    ],
)
def test_what_a_model_does_not_take_is_refused_by_its_name(model: str, fields: dict[str, Any]) -> None:
    refusal = refused(input_of(MODELS[f"studio/{model}-1"], fields, ()))
    assert [refusal.param] == list(fields)


@pytest.mark.parametrize(
    ("properties", "files", "field"),
    [
        ({"image": LINK}, [STORED], {"image": ROW.file_id}),
        ({"image": {"anyOf": [{"contentEncoding": "base64"}, LINK]}}, [STORED], {"image": ROW.file_id}),
        ({"image": {"contentEncoding": "base64"}}, [PNG], {"image": ENCODED}),
        ({"image_url": {**LINK, "pattern": "^data:"}}, [PNG], {"image_url": f"data:image/png;base64,{ENCODED}"}),
        ({"image": {"type": "array", "items": LINK}}, [STORED, STORED], {"image": [ROW.file_id] * 2}),
        ({"image": {"type": "array", "items": LINK}}, [STORED], {"image": [ROW.file_id]}),
    ],
)
def test_a_file_is_stored_if_the_model_takes_links(
    properties: dict[str, Any], files: list[FormFile], field: dict[str, Any]
) -> None:
    model = taking(properties)
    catalog = replace(load_catalog(None, kind_rules()), models={"a/b": model})
    stored = stored_names(catalog, {"model": "a/b"}, ["image"] * len(files))
    assert stored == frozenset({"image"} if files[0].row else ())
    assert given_to(model, {}, files) == field


@pytest.mark.parametrize(
    ("fields", "names", "param"),
    [
        ({"model": "studio/edit-1"}, ["image", "image"], "image"),
        ({"model": "studio/edit-1"}, ["image", "mask"], "mask"),
        ({"model": "studio/edit-1"}, ["foo", "image"], "foo"),
        ({"model": "studio/edit-1"}, ["image", "input_reference"], "input_reference"),
        ({"model": "studio/edit-1"}, ["a\nb" + "c" * 200], "a?b" + "c" * 116 + "…"),
        ({"model": "studio/edit-1", "image": "file_1"}, ["image"], "image"),
        ({"model": "studio/clip-1"}, ["input_reference"], "input_reference"),
        ({"model": "studio/none"}, ["image"], "model"),
        ({}, ["image"], "model"),
    ],
)
def test_a_file_that_a_model_does_not_take_is_refused_first(
    fields: dict[str, Any], names: list[str], param: str
) -> None:
    assert refused(stored_names(load_catalog(None, kind_rules()), fields, names)).param == param


def test_lists_of_a_form_become_lists_of_what_the_model_takes() -> None:
    model = taking({"sizes": {"type": "array", "items": {"type": "integer"}}, "tags": {"type": "array"}})
    given = {"sizes": ["1", "2"], "tags": ["1"]}
    assert given_to(model, given) == {"sizes": [1, 2], "tags": ["1"]}


def test_a_file_is_matched_by_its_name() -> None:
    mask = FormFile("mask", "1" * 64, content=b"GIF89a")
    model = taking({"image": {"contentEncoding": "base64"}, "mask_url": {**LINK, "pattern": "^data:"}})
    data = f"data:image/gif;base64,{base64.b64encode(mask.content).decode()}"
    for files in ([PNG, mask], [mask, PNG]):
        assert given_to(model, {}, files) == {"image": ENCODED, "mask_url": data}
    reference = PNG._replace(name="input_reference")
    assert given_to(model, {}, [reference]) == {"image": ENCODED}
    assert refused(input_of(model, {}, [PNG._replace(name="foo")])).param == "foo"
    refusal = refused(input_of(model, {"mask_url": "https://example.com/a.png"}, [mask]))
    assert refusal.message == "The parameter mask says the same as mask_url, which was sent too."


def test_a_prompt_is_the_text_of_a_model_that_calls_it_otherwise() -> None:
    model = taking({"text": {"type": "string"}})
    assert given_to(model, {"prompt": "waves"}) == {"text": "waves"}
    refusal = refused(input_of(model, {"input": "rain", "prompt": "waves"}, ()))
    assert (refusal.param, "says the same as input" in refusal.message) == ("prompt", True)
    assert given_to(taking({}), {"prompt": "waves"}) == {"prompt": "waves"}


@pytest.mark.parametrize(
    ("sent", "metadata"),
    [
        ({}, {}),
        ({"user": "ann"}, {"end_user": "ann"}),
        ({"user": None, "metadata": None}, {}),
        ({"metadata": {"job": "7"}, "user": "ann"}, {"job": "7", "end_user": "ann"}),
        ({"metadata": {"end_user": "ann"}, "user": "ann"}, {"end_user": "ann"}),
    ],
)
def test_user_and_metadata_are_those_of_the_task(sent: dict[str, Any], metadata: dict[str, str]) -> None:
    found = wanted_of(MODELS["studio/image-1"], "studio/image-1", {"prompt": "a pier", **sent}, ())
    assert not isinstance(found, Refusal)
    assert (found.request.metadata, found.request.input) == (metadata, {"prompt": "a pier"})


def test_a_user_that_is_not_the_end_user_is_refused() -> None:
    sent = {"prompt": "a pier", "user": "ann", "metadata": {"end_user": "bob"}}
    assert refused(wanted_of(MODELS["studio/image-1"], "studio/image-1", sent, ())).param == "user"


def test_user_and_metadata_of_a_model_are_its_own() -> None:
    model = taking({"user": {"type": "string"}, "metadata": {"type": "object"}})
    sent = {"user": "ann", "metadata": {"a": "b"}}
    found = wanted_of(model, model.id, sent, ())
    assert not isinstance(found, Refusal)
    assert (found.request.metadata, found.request.input) == ({}, sent)


def test_an_object_of_a_form_has_what_the_model_takes() -> None:
    options = {"type": "object", "properties": {"strength": {"type": "number"}}}
    assert given_to(taking({"options": options}), {"options": {"strength": "0.5", "tone": "1"}}) == {
        "options": {"strength": 0.5, "tone": 1}
    }


def test_a_refusal_has_the_names_that_were_sent() -> None:
    sent_as = {"prompt": "input", "width": "size", "height": "size", "image_url": "image"}
    rules = [
        (("input", "prompt"), "must not be blank"),
        (("input", "width"), "must be at least 256"),
        (("input", "height"), "must be at least 256"),
        (("input", "image_url", "0"), "is wrong"),
        (("input", "quality"), "is not a known field"),
        (("input",), "has none of the allowed forms"),
    ]
    refusal = as_sent(invalid_input([Violation(*each) for each in rules]), sent_as)
    assert [(each.param, each.clause) for each in refusal.violations] == [
        ("input", "input must not be blank"),
        ("size", "size has a width that must be at least 256"),
        ("size", "size has a height that must be at least 256"),
        ("image.0", "image.0 is wrong"),
        ("quality", "quality is not a known field"),
        (None, "The input has none of the allowed forms"),
    ]
    assert (refusal.param, refusal.message[:23]) == ("input", "input must not be blank")
    below = as_sent(
        invalid_input([Violation(("input", "n"), "must be at most 4")]), {"n": "num_outputs"}, below=["input"]
    )
    assert (below.param, below.message) == ("input.num_outputs", "input.num_outputs must be at most 4.")
    unpriced = Refusal(code="quote_unavailable", message="No price.", param="input.width")
    assert as_sent(unpriced, sent_as).param == "size"
    other = Refusal(code="model_not_found", message="None.", param="model")
    assert as_sent(other, sent_as) == other
