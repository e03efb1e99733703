"""A form for a model's input, from its JSON Schema, and the input from what was filled in.

Only the top level becomes fields: what is deeper is written as JSON. The text of a field is turned into the type
that the schema names where it can be; else it is sent as it is, so that the API refuses it by its own words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from holdfast_console.formats import short_text

PREFIX: Final = "input."
TITLE_CHARS_MAX: Final = 80
HINT_CHARS_MAX: Final = 600
_LINK_FORMATS: Final = frozenset({"uri", "uri-reference"})
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)

Kind = Literal["text", "area", "number", "choice", "file", "json"]


class Field(NamedTuple):
    """One field of a form. ``default`` is what it begins with; ``limits`` are attributes of its element."""

    name: str
    kind: Kind
    title: str
    hint: str
    default: str
    choices: tuple[tuple[str, str], ...]
    limits: Mapping[str, object]
    is_required: bool


def fields_of(schema: Mapping[str, Any], example: Mapping[str, Any] | None) -> list[Field]:
    """Return the fields of a schema, the required ones first and filled in as in the example."""
    properties: Mapping[str, Any] = schema.get("properties") or {}
    required = [name for name in schema.get("required") or [] if name in properties]
    names = [*required, *(name for name in properties if name not in required)]
    return [_field(name, properties[name], name in required, (example or {}).get(name)) for name in names]


def input_of(schema: Mapping[str, Any], form: Mapping[str, str]) -> dict[str, object]:
    """Return the input of a form; fields that were left empty are not in it."""
    properties: Mapping[str, Any] = schema.get("properties") or {}
    sent = {name.removeprefix(PREFIX): text for name, text in form.items() if name.startswith(PREFIX)}
    return {name: _value(properties.get(name) or {}, text) for name, text in sent.items()}


def link_field(schema: Mapping[str, Any]) -> str | None:
    """Return the first field that takes a file by a link; None if there is none."""
    properties: Mapping[str, Any] = schema.get("properties") or {}
    return next((name for name, each in properties.items() if _kind(each) == "file"), None)


def _field(name: str, schema: Mapping[str, Any], is_required: bool, example: object) -> Field:
    kind = _kind(schema)
    title = str(schema.get("title") or name.replace("_", " "))
    hints = [str(schema.get("description") or "")]
    if "default" in schema:
        hints.append(f"By default {_text(schema['default'])}.")
    limits = {html: schema[rule] for html, rule in _LIMITS.items() if rule in schema}
    if kind == "number":
        limits["step"] = 1 if "integer" in _types(schema) else "any"
    elif kind not in ("text", "area"):
        limits = {}
    filled = is_required and example is not None and kind != "file"
    return Field(
        name=f"{PREFIX}{name}",
        kind=kind,
        title=short_text(title[:1].upper() + title[1:], TITLE_CHARS_MAX),
        hint=short_text(" ".join(filter(None, hints)), HINT_CHARS_MAX),
        default=_text(example) if filled else "",
        choices=_choices(schema, is_required),
        limits=limits,
        is_required=is_required,
    )


_LIMITS: Final = {"min": "minimum", "max": "maximum", "maxlength": "maxLength", "minlength": "minLength"}


def _kind(schema: Mapping[str, Any]) -> Kind:
    types = _types(schema)
    if "enum" in schema or types == {"boolean"}:
        return "choice"
    if "string" in types:
        if schema.get("format") in _LINK_FORMATS:
            return "file"
        return "area" if schema.get("maxLength", 10_000) > 120 else "text"
    if types and types <= {"integer", "number"}:
        return "number"
    return "json"


def _types(schema: Mapping[str, Any]) -> set[str]:
    found = schema.get("type", [])
    return {found} if isinstance(found, str) else {*found} - {"null"}


def _choices(schema: Mapping[str, Any], is_required: bool) -> tuple[tuple[str, str], ...]:
    values = schema.get("enum", [True, False] if _types(schema) == {"boolean"} else [])
    words = {"true": "yes", "false": "no"} if "enum" not in schema else {}
    found = tuple(
        (_text(value), words.get(_text(value), short_text(_text(value), TITLE_CHARS_MAX))) for value in values
    )
    return found if is_required or not found else (("", "not chosen"), *found)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _value(schema: Mapping[str, Any], text: str) -> object:
    types = _types(schema)
    if "enum" in schema:
        # A form does not keep blanks and ends of lines as they are.
        return next((each for each in schema["enum"] if _text(each).split() == text.split()), text)
    if "string" in types:
        return text
    if types == {"boolean"} and text in ("true", "false"):
        return text == "true"
    if "integer" in types and _INTEGER.fullmatch(text):
        return int(text)
    try:
        # Not what JSON has no word for: NaN and infinities.
        return json.loads(text, parse_constant=_refuse_constant)
    except ValueError:
        return text


def _refuse_constant(word: str) -> object:
    raise ValueError(word)
