"""What the shipped catalog sells of the studio, the studio makes."""

from __future__ import annotations

import json
import tomllib
from importlib.resources import files
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from holdfast_emulators.studio.renderer import MODELS

_SHIPPED = files("holdfast.ledger.catalog") / "default_catalog"
_SOLD = [
    model
    for model in tomllib.loads((_SHIPPED / "catalog.toml").read_text("utf-8"))["models"]
    if model["upstream"]["provider"] == "studio"
]
_SAMPLES: dict[str, list[dict[str, Any]]] = {
    "poster": [{"prompt": "a", "n": 4, "width": 1536, "height": 256, "style": "plasma", "seed": 4294967295}],
    "edit": [
        {"operation": "convert", "image": "aGVsbG8gd29ybGQh"},
        {"image_url": "https://a.example/b", "format": "webp"},
        {"image": "aGVsbG8gd29ybGQh", "prompt": "a harbour", "width": 64, "height": 64},
        {"operation": "crop", "image": "aGVsbG8gd29ybGQh", "width": 16, "height": 2048, "format": "jpeg"},
    ],
    "tone": [
        {"prompt": "a"},
        {"prompt": "a", "voice": "alloy"},
        {"prompt": "a", "duration": 60, "mood": "dark"},
        {"prompt": "a", "duration": 1.5},
    ],
    "clip": [{"prompt": "a", "duration": "auto"}, {"prompt": "a", "duration": 12, "resolution": "720p"}],
}


def test_every_model_sold_is_made() -> None:
    assert {model["upstream"]["model"] for model in _SOLD} == set(MODELS) == set(_SAMPLES)


@pytest.mark.parametrize("model", _SOLD, ids=lambda model: model["id"])
def test_inputs_that_pass_the_schema_pass_the_studio(model: dict[str, Any]) -> None:
    schema = json.loads((_SHIPPED / model["input_schema"]).read_text("utf-8"))
    defaults = {name: field["default"] for name, field in schema["properties"].items() if "default" in field}
    for sample in _SAMPLES[model["upstream"]["model"]]:
        Draft202012Validator(schema).validate(sample)
        MODELS[model["upstream"]["model"]]({**defaults, **sample})
