"""What other services' clients call a text, a count, a duration, a size and a file, under a model's own names.

What a model does not take is refused by the name that was sent, and never dropped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from holdfast.http.kit.values import invalid_parameter
from holdfast.ledger.catalog.models import Model
from holdfast.ledger.refusals import Refusal

FileForm: TypeAlias = Literal["link", "base64", "data"]
"""How a field takes a file: by a link, in base64, or as a link with the data itself."""
Measure: TypeAlias = Literal["text", "count", "seconds", "size"]

_TEXT_FIELDS: Final = ("text", "prompt")
"""What models call their text, in the order in which a model is asked for them, unless its entry says it."""
_FILE_FIELDS: Final = ("{name}", "{name}_url", "image", "image_url")
"""What models call an uploaded file."""
_SIZE: Final = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})", re.ASCII)


def in_words_of(
    model: Model, given: Mapping[str, object], words: Mapping[str, Measure]
) -> dict[str, object] | Refusal:
    """Return the fields under the model's names; ``words`` are the clients' own, unless the model takes them too.

    A count of one is left out for a model that has no counts. Refuses with ``invalid_parameter``.
    """
    found: dict[str, object] = {}
    for name, value in given.items():
        if name not in words or model.schema.field(name) is not None:
            found[name] = value
            continue
        renamed = _renamed(model, name, words[name], value)
        if isinstance(renamed, Refusal):
            return renamed
        twice = next((each for each in renamed if each in given), None)
        if twice is not None:
            return invalid_parameter(name, f"says the same as {twice}, which was sent too")
        found |= renamed
    return found


def not_taken(model: Model, name: str) -> Refusal:
    """Return the refusal of a field that the model does not take."""
    properties = model.input_schema.get("properties")
    known = ", ".join(properties) if isinstance(properties, dict) else ""
    return invalid_parameter(name, f"is not taken by the model {model.id}, whose fields are {known}")


def _renamed(model: Model, name: str, measure: Measure, value: object) -> dict[str, object] | Refusal:
    units, takes = model.units, model.schema.field
    if measure == "size":
        width, height = units.width or "width", units.height or "height"
        if not takes(width) or not takes(height):
            return not_taken(model, name)
        match = _SIZE.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            return invalid_parameter(name, "must be the width and height in pixels, such as 1024x1024")
        return {width: int(match[1]), height: int(match[2])}
    names = {"text": (units.text, *_TEXT_FIELDS), "count": (units.n,), "seconds": (units.seconds,)}[measure]
    own = next((each for each in names if each is not None and takes(each)), None)
    if own is not None:
        return {own: value}
    return {} if measure == "count" and value in (1, "1") else not_taken(model, name)


class FileField(NamedTuple):
    """The field of a model that takes an uploaded file."""

    name: str
    form: FileForm
    is_list: bool


def file_field_of(model: Model, name: str, count: int) -> FileField | Refusal:
    """Return the field for ``count`` files that were sent as ``name``. Refuses with ``invalid_parameter``."""
    for own in (each.format(name=name) for each in _FILE_FIELDS):
        schema = model.schema.field(own) or {}
        items = schema.get("items")
        forms = file_forms(items if isinstance(items, dict) else schema)
        if forms:
            if count > 1 and not isinstance(items, dict):
                return invalid_parameter(name, f"has {count} files; the model {model.id} takes one")
            form = next(each for each in get_args(FileForm) if each in forms)
            return FileField(own, form, isinstance(items, dict))
    return invalid_parameter(name, f"is a file, which the model {model.id} does not take")


def file_forms(schema: Mapping[str, object]) -> frozenset[FileForm]:
    """Return how a field takes a file; nothing if it takes none."""
    if schema.get("contentEncoding") == "base64":
        return frozenset({"base64"})
    if schema.get("format") == "uri":
        pattern = schema.get("pattern")
        takes_links = not isinstance(pattern, str) or re.search(pattern, "https://a.example/a")
        return frozenset({"link" if takes_links else "data"})
    branches = [each for key in ("anyOf", "oneOf") if isinstance(found := schema.get(key), list) for each in found]
    return frozenset(form for each in branches if isinstance(each, dict) for form in file_forms(each))
