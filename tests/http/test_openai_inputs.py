"""What OpenAI's clients send, as the input of a model."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from holdfast.http.kit.forms import FormFile
from holdfast.http.openai.inputs import input_of
from holdfast.ledger.catalog.catalog import load_catalog
from holdfast.ledger.catalog.input_schema import InputSchema
from holdfast.ledger.catalog.models import Model
from holdfast.ledger.refusals import Refusal
from holdfast.providers.media.kinds import kind_rules

MODELS = load_catalog(None, kind_rules()).models
PNG = FormFile("image", "0" * 64, content=b"\x89PNG\r\n\x1a\n")
STORED = FormFile("image", "0" * 64, file_id="file_" + "1" * 32)


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


def test_files_become_what_the_model_takes() -> None:
    edit, encoded = MODELS["studio/edit-1"], base64.b64encode(PNG.content).decode()
    assert input_of(edit, {}, [STORED]) == {"image": STORED.file_id}
    assert input_of(edit, {}, [PNG]) == {"image": encoded}
    link = {"type": "string", "format": "uri"}
    assert input_of(taking({"image_url": link}), {}, [PNG]) == {"image_url": f"data:image/png;base64,{encoded}"}
    several = taking({"image": {"type": "array", "items": link}})
    assert input_of(several, {}, [STORED, STORED]) == {"image": [STORED.file_id] * 2}
    for model, files in ((edit, [STORED, STORED]), (MODELS["studio/clip-1"], [PNG]), (taking({}), [STORED])):
        refused = input_of(model, {}, files)
        assert isinstance(refused, Refusal)
        assert refused.param == "image"
