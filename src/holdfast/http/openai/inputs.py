"""What OpenAI's clients send, as the input of a model: their names for the fields that the model's entry names.

A field that the model does not take is refused by its name, here or by the model's schema, and never dropped.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from holdfast.http.kit.forms import FormFile
from holdfast.http.kit.model_words import Measure, in_words_of, not_taken
from holdfast.http.kit.values import invalid_parameter, missing_parameter
from holdfast.ledger.catalog.catalog import Catalog
from holdfast.ledger.catalog.models import Model
from holdfast.ledger.catalog.quotes import model_not_found
from holdfast.ledger.refusals import Refusal
from holdfast.providers.storage.sniffing import UNKNOWN_TYPE, sniff

FILES_MAX: Final = 8
"""The most files in a form."""

_WORDS: Final[dict[str, Measure]] = {"n": "count", "seconds": "seconds", "size": "size", "input": "text"}
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?", re.ASCII)
_FILE_FIELDS: Final = ("{name}", "{name}_url", "image", "image_url")
"""What models call an uploaded file."""
_FILE_FORMS: Final = ("link", "base64", "data")


def input_of(model: Model, fields: Mapping[str, Any], files: Sequence[FormFile]) -> dict[str, object] | Refusal:
    """Return the model's input; null counts as not sent. Texts of a form stand for numbers and booleans.

    Refuses with ``invalid_parameter``.
    """
    sent = {name: value for name, value in fields.items() if not _is_default(name, value)}
    if "stream" in sent and model.schema.field("stream") is None:
        return not_taken(model, "stream")
    found = in_words_of(model, sent, _WORDS)
    if isinstance(found, Refusal):
        return found
    found = {name: _from_text(model.schema.field(name) or {}, value) for name, value in found.items()}
    for name in dict.fromkeys(each.name for each in files):
        uploaded = _uploaded(model, name, [each for each in files if each.name == name])
        if isinstance(uploaded, Refusal):
            return uploaded
        found |= uploaded
    return found


def _is_default(name: str, value: object) -> bool:
    return value is None or (name == "size" and value == "auto") or (name == "stream" and value in (False, "false"))


def _from_text(schema: Mapping[str, object], value: object) -> object:
    """Return a form's text, or those of a list, in the type that the field has; else unchanged."""
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
        return model_not_found(str(fields["model"]))
    taken = {name: _file_field(model, name, names.count(name)) for name in names}
    refusal = next((each for each in taken.values() if isinstance(each, Refusal)), None)
    return refusal or frozenset(
        name for name, each in taken.items() if not isinstance(each, Refusal) and each.form == "link"
    )


class _FileField(NamedTuple):
    """The field that takes an uploaded file."""

    name: str
    form: Literal["link", "base64", "data"]
    is_list: bool


def _file_field(model: Model, name: str, count: int) -> _FileField | Refusal:
    for own in (each.format(name=name) for each in _FILE_FIELDS):
        schema = model.schema.field(own) or {}
        items = schema.get("items")
        form = _file_form(items if isinstance(items, dict) else schema)
        if form is not None:
            if count > 1 and not isinstance(items, dict):
                return invalid_parameter(name, f"has {count} files; the model {model.id} takes one")
            return _FileField(own, form, isinstance(items, dict))
    return invalid_parameter(name, f"is a file, which the model {model.id} does not take")


def _file_form(schema: Mapping[str, object]) -> Literal["link", "base64", "data"] | None:
    """Return how a field takes a file, by a link if it can; None if it takes none."""
    if schema.get("contentEncoding") == "base64":
        return "base64"
    if schema.get("format") == "uri":
        pattern = schema.get("pattern")
        return "link" if not isinstance(pattern, str) or re.search(pattern, "https://a.example/a") else "data"
    branches = [each for key in ("anyOf", "oneOf") if isinstance(found := schema.get(key), list) for each in found]
    forms = {_file_form(each) for each in branches if isinstance(each, dict)}
    return next((form for form in _FILE_FORMS if form in forms), None)


def _uploaded(model: Model, name: str, files: list[FormFile]) -> dict[str, object] | Refusal:
    """Return uploaded files as the model takes them: by their ids, as base64, or as a link with the data."""
    field = _file_field(model, name, len(files))
    if isinstance(field, Refusal):
        return field
    taken = [each.row.file_id if each.row is not None else _encoded(each.content, field.form) for each in files]
    return {field.name: taken if field.is_list else taken[0]}


def _encoded(content: bytes, form: str) -> str:
    head = "" if form == "base64" else f"data:{sniff(content) or UNKNOWN_TYPE};base64,"
    return head + base64.b64encode(content).decode("ascii")
