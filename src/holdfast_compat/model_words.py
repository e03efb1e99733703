"""What other services' clients call a text, a count, a duration, a size and a file, under a model's own names.

What a model does not take is refused by the name that was sent, and never dropped.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from holdfast.http.kit.values import invalid_parameter
from holdfast.ledger.catalog.models import Model
from holdfast.ledger.refusals import Refusal, Violation, invalid_input, param_of

FileForm: TypeAlias = Literal["link", "base64", "data"]
"""How a field takes a file: by a link, in base64, or as a link with the data itself."""
Measure: TypeAlias = Literal["text", "count", "seconds", "size"]

_TEXT_FIELDS: Final = ("text", "prompt")
"""What models call their text, in the order in which a model is asked for them, unless its entry says it."""
_FILE_WORDS: Final = {"input_reference": "image"}
"""What models call a file, by the clients' own names for it."""
_SIZE: Final = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})", re.ASCII)


class SentInput(NamedTuple):
    """An input under the model's names. ``sent_as`` has what the caller called those that it called otherwise."""

    input: dict[str, object]
    sent_as: dict[str, str]


def in_words_of(
    model: Model, given: Mapping[str, object], words: Mapping[str, Measure], *, below: Sequence[str] = ()
) -> SentInput | Refusal:
    """Return the fields under the model's names; ``words`` are the clients' own, unless the model takes them too.

    A count of one is left out for a model that has no counts. ``below`` are the keys under which the fields were
    sent, by which a refusal names them. Refuses with ``invalid_parameter``.
    """
    found = SentInput({}, {})
    for name, value in given.items():
        if name not in words or model.schema.field(name) is not None:
            found.input[name] = value
            continue
        renamed = _renamed(model, name, words[name], value, sent_name=param_of((*below, name)))
        if isinstance(renamed, Refusal):
            return renamed
        twice = next((each for each in renamed if each in given or each in found.input), None)
        if twice is not None and twice != name:
            return _said_twice(param_of((*below, name)), param_of((*below, found.sent_as.get(twice, twice))))
        found.input.update(renamed)
        found.sent_as.update(dict.fromkeys(renamed, name))
    return found


def as_sent(refusal: Refusal, sent_as: Mapping[str, str], *, below: Sequence[str] = ()) -> Refusal:
    """Return a refusal with the names that the caller sent ``below`` these keys, if it is of a model's input."""
    root, *path = (refusal.param or "").split(".")
    if root != "input":
        return refusal
    if refusal.violations:
        return invalid_input([_violation_as_sent(each, sent_as, below) for each in refusal.violations])
    return msgspec.structs.replace(refusal, param=param_of(_path_as_sent(path, sent_as, below)))


def _path_as_sent(path: Sequence[str], sent_as: Mapping[str, str], below: Sequence[str]) -> tuple[str, ...]:
    return (*below, *(sent_as.get(each, each) for each in path[:1]), *path[1:])


def _violation_as_sent(violation: Violation, sent_as: Mapping[str, str], below: Sequence[str]) -> Violation:
    _, *path = violation.path
    sent, rule = _path_as_sent(path, sent_as, below), violation.rule
    is_part = bool(path) and [*sent_as.values()].count(sent_as.get(path[0], "")) > 1
    return Violation(sent, f"has a {path[0]} that {rule}" if is_part else rule)


def _said_twice(name: str, other: str) -> Refusal:
    return invalid_parameter(name, f"says the same as {other}, which was sent too")


def not_taken(model: Model, name: str) -> Refusal:
    """Return the refusal of a field that the model does not take."""
    properties = model.input_schema.get("properties")
    known = ", ".join(properties) if isinstance(properties, dict) else ""
    return invalid_parameter(name, f"is not taken by the model {model.id}, whose fields are {known}")


def text_field_of(model: Model) -> str | None:
    """Return the field of a model that has its text; None if it takes none."""
    names = (model.units.text, *_TEXT_FIELDS)
    return next((each for each in names if each is not None and model.schema.field(each) is not None), None)


def _renamed(
    model: Model, name: str, measure: Measure, value: object, *, sent_name: str
) -> dict[str, object] | Refusal:
    units, takes = model.units, model.schema.field
    if measure == "size":
        width, height = units.width or "width", units.height or "height"
        if not takes(width) or not takes(height):
            return not_taken(model, sent_name)
        match = _SIZE.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            return invalid_parameter(sent_name, "must be the width and height in pixels, such as 1024x1024")
        return {width: int(match[1]), height: int(match[2])}
    own = {"text": text_field_of(model), "count": units.n, "seconds": units.seconds}[measure]
    if own is not None and takes(own):
        return {own: value}
    if measure == "text" and name in _TEXT_FIELDS:
        return {name: value}  # for the schema to refuse, unless it is open to any field
    return {} if measure == "count" and value in (1, "1") else not_taken(model, sent_name)


class FileField(NamedTuple):
    """The field of a model that takes an uploaded file."""

    name: str
    form: FileForm
    is_list: bool


def file_fields_of(model: Model, names: Sequence[str], given: Collection[str]) -> dict[str, FileField] | Refusal:
    """Return the field for each name that files were sent by, once for each file, beside other fields.

    Refuses with ``invalid_parameter``.
    """
    found: dict[str, FileField] = {}
    for name in dict.fromkeys(names):
        field = _file_field_of(model, name, names.count(name))
        if isinstance(field, Refusal):
            return field
        same = [sent_name for sent_name, each in found.items() if each.name == field.name]
        same += [field.name] if field.name in given else []
        if same:
            return _said_twice(param_of([name]), same[0])
        found[name] = field
    return found


def _file_field_of(model: Model, name: str, count: int) -> FileField | Refusal:
    sent_name = param_of([name])
    for own in (f"{word}{suffix}" for word in (name, _FILE_WORDS.get(name, name)) for suffix in ("", "_url")):
        schema = model.schema.field(own) or {}
        items = schema.get("items")
        forms = file_forms(items if isinstance(items, dict) else schema)
        if forms:
            if count > 1 and not isinstance(items, dict):
                return invalid_parameter(sent_name, f"has {count} files; the model {model.id} takes one")
            form = next(each for each in get_args(FileForm) if each in forms)
            return FileField(own, form, isinstance(items, dict))
    return invalid_parameter(sent_name, f"is a file, which the model {model.id} does not take")


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
