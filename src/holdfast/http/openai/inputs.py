"""What OpenAI's clients send, as the input of a model: their names for the fields that the model's entry names.

A field that the model does not take is refused by its name, here or by the model's schema, and never dropped.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.http.kit.forms import FormFile
from holdfast.http.kit.values import invalid_parameter
from holdfast.ledger.catalog.models import Model
from holdfast.ledger.refusals import Refusal
from holdfast.providers.storage.sniffing import sniff

_SIZE: Final = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})", re.ASCII)
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?", re.ASCII)
_TEXT_FIELDS: Final = ("input", "text", "prompt")
"""What models call the text to speak, in the order in which a model is asked for them."""
_FILE_FIELDS: Final = ("{name}", "{name}_url", "image", "image_url")
"""What models call an uploaded file."""


def input_of(model: Model, fields: Mapping[str, Any], files: Sequence[FormFile]) -> dict[str, object] | Refusal:
    """Return the model's input; null counts as not sent. Texts of a form stand for numbers and booleans.

    Refuses with ``invalid_parameter``.
    """
    found: dict[str, object] = {}
    for name, value in fields.items():
        if value is None:
            continue
        part = _TRANSLATED.get(name, _own)(model, name, value)
        if isinstance(part, Refusal):
            return part
        found |= part
    for name in dict.fromkeys(each.name for each in files):
        uploaded = _uploaded(model, name, [each for each in files if each.name == name])
        if isinstance(uploaded, Refusal):
            return uploaded
        found |= uploaded
    return found


def speech_text(model: Model, name: str, value: object) -> dict[str, object] | Refusal:
    """Return the text to speak under the name that the model has for it."""
    for own in (model.units.text, *_TEXT_FIELDS):
        if own is not None and model.schema.field(own) is not None:
            return {own: value}
    return _not_taken(model, name)


def _own(model: Model, name: str, value: object) -> dict[str, object]:
    """A field of the model's own; its schema refuses a name it does not have."""
    return {name: _from_text(model.schema.field(name) or {}, value) if isinstance(value, str) else value}


def _count(model: Model, name: str, value: object) -> dict[str, object] | Refusal:
    own = _own_name(model, name)
    if own is not None:
        return {own: _own(model, own, value)[own]}
    return {} if value in (1, "1") else _not_taken(model, name)


def _seconds(model: Model, name: str, value: object) -> dict[str, object] | Refusal:
    own = _own_name(model, name)
    if own is None:
        return _not_taken(model, name)
    # These clients send seconds as a text in JSON too.
    number = _to_number(value) if isinstance(value, str) else None
    return {own: value if number is None else number}


def _size(model: Model, name: str, value: object) -> dict[str, object] | Refusal:
    if value == "auto":
        return {}
    own = _own_name(model, name)
    if own is not None:
        return {own: value}
    width, height = _own_name(model, "width"), _own_name(model, "height")
    if width is None or height is None:
        return _not_taken(model, name)
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return invalid_parameter(name, "must be auto, or the width and height in pixels, such as 1024x1024")
    return {width: int(match[1]), height: int(match[2])}


def _stream(model: Model, name: str, value: object) -> dict[str, object] | Refusal:
    return {} if value in (False, "false") else _not_taken(model, name)


_TRANSLATED: Final = {"n": _count, "seconds": _seconds, "size": _size, "stream": _stream, "input": speech_text}


def _own_name(model: Model, name: str) -> str | None:
    """Return what the model calls a measure, if it takes it: as its ``units`` say, or the same."""
    own: str = getattr(model.units, name, None) or name
    return None if model.schema.field(own) is None else own


def _not_taken(model: Model, name: str) -> Refusal:
    properties = model.input_schema.get("properties")
    known = ", ".join(properties) if isinstance(properties, dict) else ""
    return invalid_parameter(name, f"is not taken by the model {model.id}, whose fields are {known}")


def _from_text(schema: Mapping[str, object], value: str) -> object:
    """Return a form's text as the type that the field has, or unchanged for the schema to refuse."""
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
    if "string" in kinds:
        return value
    if "boolean" in kinds and value in ("true", "false"):
        return value == "true"
    if "integer" in kinds and _INTEGER.fullmatch(value):
        return int(value)
    number = _to_number(value) if "number" in kinds or not kinds else None
    return value if number is None else number


def _to_number(value: str) -> int | float | None:
    if _INTEGER.fullmatch(value):
        return int(value)
    return float(value) if _NUMBER.fullmatch(value) else None


def _uploaded(model: Model, name: str, files: list[FormFile]) -> dict[str, object] | Refusal:
    """Return uploaded files as the model takes them: by their ids, as base64, or as a link with the data."""
    for own in (each.format(name=name) for each in _FILE_FIELDS):
        schema = model.schema.field(own)
        if schema is None:
            continue
        items = schema.get("items")
        is_list = isinstance(items, dict)
        taken = [_as_taken(items if isinstance(items, dict) else schema, each) for each in files]
        if None not in taken:
            if len(taken) > 1 and not is_list:
                return invalid_parameter(name, f"has {len(taken)} files; the model {model.id} takes one")
            return {own: taken if is_list else taken[0]}
    return invalid_parameter(name, f"is a file, which the model {model.id} does not take")


def _as_taken(schema: Mapping[str, object], file: FormFile) -> str | None:
    """Return a file as a field takes it; None if the field takes no file, or not this way."""
    for key in ("anyOf", "oneOf"):
        branches = schema.get(key)
        for branch in branches if isinstance(branches, list) else ():
            if isinstance(branch, dict) and (taken := _as_taken(branch, file)) is not None:
                return taken
    if file.file_id is not None:
        return file.file_id if schema.get("format") == "uri" else None
    encoded = base64.b64encode(file.content).decode("ascii")
    if schema.get("contentEncoding") == "base64":
        return encoded
    if schema.get("format") != "uri":
        return None
    link = f"data:{sniff(file.content) or 'application/octet-stream'};base64,{encoded}"
    pattern = schema.get("pattern")
    return link if not isinstance(pattern, str) or re.search(pattern, link) else None
