"""What OpenAI's clients send, as the input of a model: their names for the fields that the model's entry names.

A field that the model does not take is refused by its name, here or by the model's schema, and never dropped.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.http.kit.forms import FormFile
from holdfast.http.kit.model_words import Measure, file_field_of, in_words_of, not_taken
from holdfast.http.kit.values import missing_parameter
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
    taken = {name: file_field_of(model, name, names.count(name)) for name in names}
    refusal = next((each for each in taken.values() if isinstance(each, Refusal)), None)
    return refusal or frozenset(
        name for name, each in taken.items() if not isinstance(each, Refusal) and each.form == "link"
    )


def _uploaded(model: Model, name: str, files: list[FormFile]) -> dict[str, object] | Refusal:
    """Return uploaded files as the model takes them: by their ids, as base64, or as a link with the data."""
    field = file_field_of(model, name, len(files))
    if isinstance(field, Refusal):
        return field
    taken = [each.row.file_id if each.row is not None else _encoded(each.content, field.form) for each in files]
    return {field.name: taken if field.is_list else taken[0]}


def _encoded(content: bytes, form: str) -> str:
    head = "" if form == "base64" else f"data:{sniff(content) or UNKNOWN_TYPE};base64,"
    return head + base64.b64encode(content).decode("ascii")
