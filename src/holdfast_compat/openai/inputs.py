"""What OpenAI's clients send, as the input of a model: their names for the fields that the model's entry names.

A field that the model does not take is refused by its name, here or by the model's schema, and never dropped.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.http.kit.bodies import convert_body
from holdfast.http.kit.forms import FormFile
from holdfast.http.kit.values import invalid_parameter, missing_parameter
from holdfast.http.schemas.tasks import CreateTaskRequest, TaskBounds, WantedTask
from holdfast.ledger.catalog.models import Catalog, Model
from holdfast.ledger.catalog.pricing import model_not_found
from holdfast.ledger.refusals import Refusal
from holdfast.providers.storage.sniffing import UNKNOWN_TYPE, sniff
from holdfast_compat.model_words import (
    FileField,
    Measure,
    SentInput,
    file_fields_of,
    in_words_of,
    not_taken,
)

FILES_MAX: Final = 8
"""The most files in a form."""

_WORDS: Final[dict[str, Measure]] = {
    "n": "count", "seconds": "seconds", "size": "size", "input": "text", "prompt": "text",
}  # fmt: skip
_BOUNDS: Final = TaskBounds.__struct_fields__
_OWN: Final = ("user", "metadata", *_BOUNDS)
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?", re.ASCII)


def wanted_of(
    model: Model | None, model_id: str, fields: Mapping[str, Any], files: Sequence[FormFile]
) -> WantedTask | Refusal:
    """Return the request for a model; if there is none the input is empty, and the request will be refused.

    ``metadata`` is the task's, with ``user`` as its ``end_user``, and ``max_credits`` and ``deadline_s`` are its
    bounds, unless the model takes fields of these names. Refuses with ``invalid_parameter``.
    """
    if model is None:
        return WantedTask(CreateTaskRequest(model_id, {}), {})
    own = {name: fields.get(name) for name in _OWN if model.schema.field(name) is None}
    bounds = convert_body({name: own[name] for name in _BOUNDS if name in own}, TaskBounds, strict=False)
    if isinstance(bounds, Refusal):
        return bounds
    metadata, user = {**(own.get("metadata") or {})}, own.get("user")
    if user is not None and metadata.setdefault("end_user", user) != user:
        return invalid_parameter("user", "says something else than metadata.end_user, which was sent too")
    given = input_of(model, {name: value for name, value in fields.items() if name not in own}, files)
    if isinstance(given, Refusal):
        return given
    wanted = CreateTaskRequest(
        model_id,
        given.input,
        metadata=metadata,
        max_credits=bounds.max_credits,
        deadline_s=bounds.deadline_s,
    )
    return WantedTask(wanted, given.sent_as)


def input_of(model: Model, fields: Mapping[str, Any], files: Sequence[FormFile]) -> SentInput | Refusal:
    """Return the model's input; null counts as not sent. Texts of a form stand for numbers and booleans.

    Refuses with ``invalid_parameter``.
    """
    sent = {name: value for name, value in fields.items() if not _is_default(name, value)}
    if "stream" in sent and model.schema.field("stream") is None:
        return not_taken(model, "stream")
    found = in_words_of(model, sent, _WORDS)
    if isinstance(found, Refusal):
        return found
    for name, value in found.input.items():
        found.input[name] = _from_text(model.schema.field(name) or {}, value)
    taken = file_fields_of(model, [each.name for each in files], found.input)
    if isinstance(taken, Refusal):
        return taken
    for name, field in taken.items():
        found.input[field.name] = _uploaded(field, [each for each in files if each.name == name])
        found.sent_as[field.name] = name
    return found


def _is_default(name: str, value: object) -> bool:
    return value is None or (name == "size" and value == "auto") or (name == "stream" and value in (False, "false"))


def _from_text(schema: Mapping[str, object], value: object) -> object:
    """Return a form's text, or those of a list or an object, in the type that the field has; else unchanged."""
    properties = schema.get("properties")
    if isinstance(value, dict) and isinstance(properties, dict):
        return {key: _from_text(properties.get(key) or {}, each) for key, each in value.items()}
    if isinstance(value, list) and isinstance(items := schema.get("items"), dict):
        return [_from_text(items, each) for each in value]
    if not isinstance(value, str):
        return value
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
    if "string" in kinds:
        return value
    if "boolean" in kinds and value in ("true", "false"):
        return value == "true"
    if kinds and "number" not in kinds:
        return int(value) if "integer" in kinds and _INTEGER.fullmatch(value) else value
    if _INTEGER.fullmatch(value):
        return int(value)
    return float(value) if _NUMBER.fullmatch(value) else value


def stored_names(catalog: Catalog, fields: Mapping[str, Any], names: Sequence[str]) -> frozenset[str] | Refusal:
    """Return which uploaded files the form's model takes by a link. Refuses what it does not take by its name."""
    if not names:
        return frozenset()
    if "model" not in fields:
        return missing_parameter("model")
    model = catalog.models.get(str(fields["model"]))
    if model is None:
        return model_not_found(str(fields["model"]), catalog.models)
    taken = file_fields_of(model, names, fields)
    if isinstance(taken, Refusal):
        return taken
    return frozenset(name for name, each in taken.items() if each.form == "link")


def _uploaded(field: FileField, files: Sequence[FormFile]) -> object:
    """Return uploaded files as the model takes them: by their ids, as base64, or as a link with the data."""
    taken = [each.row.file_id if each.row is not None else _encoded(each.content, field.form) for each in files]
    return taken if field.is_list else taken[0]


def _encoded(content: bytes, form: str) -> str:
    head = "" if form == "base64" else f"data:{sniff(content) or UNKNOWN_TYPE};base64,"
    return head + base64.b64encode(content).decode("ascii")
