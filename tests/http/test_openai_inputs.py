"""What OpenAI's clients send, as the input of a model."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from holdfast.http.kit.forms import FormFile
from holdfast.http.openai.inputs import input_of, stored_names
from holdfast.ledger.catalog.catalog import load_catalog
from holdfast.ledger.catalog.input_schema import InputSchema
from holdfast.ledger.catalog.models import Model
from holdfast.ledger.refusals import Refusal
from holdfast.persistence.records.rows import FileRow
from holdfast.providers.media.kinds import kind_rules

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


def test_names_become_those_of_the_models_entry() -> None:
    image, clip, tone = (MODELS[f"studio/{name}-1"] for name in ("image", "clip", "tone"))
    given = {"prompt": "a pier", "n": 2, "size": "512x256", "style": "plasma", "seed": None, "stream": False}
    assert input_of(image, given, ()) == {
        "prompt": "a pier",
        "n": 2,
        "width": 512,
        "height": 256,
        "style": "plasma",
    }
    assert input_of(image, {"size": "auto"}, ()) == {}
    assert input_of(clip, {"seconds": "4", "n": 1}, ()) == {"duration": 4}
    assert input_of(clip, {"seconds": "1.5"}, ()) == {"duration": 1.5}
    assert input_of(tone, {"input": "rain", "voice": "alloy"}, ()) == {"prompt": "rain", "voice": "alloy"}


def test_texts_of_a_form_become_what_the_model_takes() -> None:
    fields = {"n": "2", "seed": "7", "prompt": "12", "width": "wide"}
    expected = {"n": 2, "seed": 7, "prompt": "12", "width": "wide"}
    assert input_of(MODELS["studio/image-1"], fields, ()) == expected
    flags = taking({"flag": {"type": "boolean"}, "share": {"type": "number"}})
    assert input_of(flags, {"flag": "true", "share": "0.5"}, ()) == {"flag": True, "share": 0.5}


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
    refused = input_of(MODELS[f"studio/{model}-1"], fields, ())
    assert isinstance(refused, Refusal)
    assert [refused.param] == list(fields)


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
    assert input_of(model, {}, files) == field


@pytest.mark.parametrize(
    ("fields", "names", "param"),
    [
        ({"model": "studio/edit-1"}, ["image", "image"], "image"),
        ({"model": "studio/clip-1"}, ["input_reference"], "input_reference"),
        ({"model": "studio/none"}, ["image"], "model"),
        ({}, ["image"], "model"),
    ],
)
def test_a_file_that_a_model_does_not_take_is_refused_first(
    fields: dict[str, Any], names: list[str], param: str
) -> None:
    refused = stored_names(load_catalog(None, kind_rules()), fields, names)
    assert isinstance(refused, Refusal)
    assert refused.param == param


def test_lists_of_a_form_become_lists_of_what_the_model_takes() -> None:
    model = taking({"sizes": {"type": "array", "items": {"type": "integer"}}, "tags": {"type": "array"}})
    given = {"sizes": ["1", "2"], "tags": ["1"]}
    assert input_of(model, given, ()) == {"sizes": [1, 2], "tags": ["1"]}
