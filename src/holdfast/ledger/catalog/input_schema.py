"""A model's input schema: JSON Schema 2020-12, compiled once, then used to fill defaults and validate inputs.

A schema describes an object, refers only to itself (``#/…``) and never recurses, so validation is bounded and never
fetches anything. Defaults are filled below ``properties`` and ``items``, but not below ``anyOf`` and the like,
because it is not known which branch applies.

Where a schema has a link (``format: "uri"``), an input may have the id of an uploaded file.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import islice
from typing import Any, Final, TypeAlias, cast

import msgspec
from jsonschema_rs import Draft202012Validator, ReferencingError, ValidationError

from holdfast.ledger.plain_json import NotPlain, plain_copy
from holdfast.ledger.refusals import VIOLATIONS_MAX, Violation, cut_text

# A JSON Schema as a document: its references checked, its parts resolved, its bounds read. References point to
# other places in the same document and never form a cycle, so nothing is ever fetched and every traversal of a
# schema ends.


def resolve(schema: Mapping[str, object], root: Mapping[str, object]) -> Mapping[str, object]:
    """Follow the references of a part of ``root``, a document that was checked."""
    while True:
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        schema = _at(reference, root)


def _at(reference: str, root: Mapping[str, object]) -> Mapping[str, object]:
    found: object = root
    for piece in reference.removeprefix("#/").split("/"):
        key = piece.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or key not in found:
            raise ValueError(f"refers to '{reference}', which is not in it")
        found = found[key]
    if not isinstance(found, dict):
        raise ValueError(f"refers to '{reference}', which is not a schema")
    return found


def check_document(document: Mapping[str, object]) -> None:
    """Raise ``ValueError`` unless every reference is local and acyclic."""
    _check_below(document, document, ())


def _check_below(node: object, root: Mapping[str, object], passed: tuple[str, ...]) -> None:
    """Check one part and everything nested in it. ``passed`` are the references followed so far."""
    if isinstance(node, list):
        for item in node:
            _check_below(item, root, passed)
    if not isinstance(node, dict):
        return
    for key in ("$dynamicRef", "$id", "$anchor", "$dynamicAnchor"):
        if isinstance(node.get(key), str):
            raise ValueError(f"uses {key}; only $ref to a place inside the schema is supported")
    reference = node.get("$ref")
    if isinstance(reference, str):
        if not reference.startswith("#/"):
            raise ValueError(f"refers outside itself: '{reference[:80]}'")
        if reference in passed:
            raise ValueError(f"refers to itself through '{reference}'")
        _check_below(_at(reference, root), root, (*passed, reference))
    for key, below in node.items():
        if key in {"properties", "patternProperties", "dependentSchemas"} and isinstance(below, dict):
            for schema in below.values():
                _check_below(schema, root, passed)
        # Definitions are checked where they are referenced; the other keys hold values, not schemas.
        elif key not in {"$defs", "definitions", "default", "enum", "const", "examples"}:
            _check_below(below, root, passed)


def number_range(
    schema: Mapping[str, object], root: Mapping[str, object]
) -> tuple[Fraction | None, Fraction | None] | None:
    """Return the lowest and the highest number a part allows (None: unbounded), or None if it allows no number."""
    schema = resolve(schema, root)
    branches = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(branches, list):
        ranges = [found for each in branches if isinstance(each, dict) and (found := number_range(each, root))]
        if not ranges:
            return None
        lows, highs = [low for low, _ in ranges], [high for _, high in ranges]
        return (
            None if None in lows else min(low for low in lows if low is not None),
            None if None in highs else max(high for high in highs if high is not None),
        )
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(listed, list):
        numbers = [number for item in listed if (number := _number(item)) is not None]
        return (min(numbers), max(numbers)) if numbers else None
    types = schema.get("type")
    admitted = [types] if isinstance(types, str) else types
    if isinstance(admitted, list) and not {"number", "integer"} & set(admitted):
        return None
    least = [number for key in ("minimum", "exclusiveMinimum") if (number := _number(schema.get(key))) is not None]
    most = [number for key in ("maximum", "exclusiveMaximum") if (number := _number(schema.get(key))) is not None]
    return max(least) if least else None, min(most) if most else None


def _number(value: object) -> Fraction | None:
    return Fraction(str(value)) if isinstance(value, int | float) and not isinstance(value, bool) else None


PIECE_CHARS_MAX = 40
"""How much of one key, or of one allowed value, a response repeats."""

_NOT_BLANK = r"\S"
_ENUM_VALUES_SHOWN = 12
_FIELDS_SHOWN = 30

Filler = Callable[[object], None]


class InputSchema:
    """A checked schema. ``document`` is the schema itself, ``validator`` its compiled form.

    Raises ``ValueError`` with the fault's text if the document violates a rule of this module.
    """

    __slots__ = ("_fill", "document", "validator")

    def __init__(self, document: Mapping[str, object]) -> None:
        check_document(document)
        self.document = document
        try:
            self.validator = Draft202012Validator(dict(document), offline=True)
        except (ValidationError, ReferencingError) as error:
            where = "/".join(str(piece) for piece in getattr(error, "instance_path", ()))
            raise ValueError(f"is not a valid JSON Schema at '/{where}': {error.args[0][:200]}") from None
        if document.get("type") != "object":
            raise ValueError("must describe an object (type = object)")
        self._fill = _filler(document, document)
        self._check_defaults()

    def fill(self, value: dict[str, object]) -> None:
        """Fill the schema's defaults into ``value``, in place."""
        if self._fill is not None:
            self._fill(value)

    def violations(self, value: object) -> list[Violation]:
        """Return the rules that ``value`` violates, at most ``VIOLATIONS_MAX``; none if it is valid."""
        if self.validator.is_valid(value):
            return []
        return list(islice(self._each_violation(value), VIOLATIONS_MAX))

    def field(self, name: str) -> Mapping[str, object] | None:
        """Return the schema of one top-level field, or None if there is no such field."""
        properties = self.document.get("properties")
        found = properties.get(name) if isinstance(properties, dict) else None
        return resolve(found, self.document) if isinstance(found, dict) else None

    def number_range(self, name: str) -> tuple[Fraction | None, Fraction | None]:
        """Return the lowest and the highest number that the field allows; None if unbounded."""
        found = self.field(name)
        return (None, None) if found is None else (number_range(found, self.document) or (None, None))

    def listed_values(self, name: str) -> tuple[object, ...] | None:
        """Return the values of the field's ``enum`` or ``const``, or None if it has neither."""
        found = self.field(name)
        if found is None:
            return None
        if "const" in found:
            return (found["const"],)
        listed = found.get("enum")
        return tuple(listed) if isinstance(listed, list) else None

    def undescribed(self) -> list[str]:
        """Return the fields without a description, those in fields and lists included: ``messages.content``."""
        return list(_undescribed(self.document, self.document, ""))

    def _each_violation(self, value: object) -> Iterator[Violation]:
        seen = set()
        for error in self.validator.iter_errors(value):
            for violation in _violations_of(error, self.document):
                if violation not in seen:
                    seen.add(violation)
                    yield violation

    def _check_defaults(self) -> None:
        filled: dict[str, object] = {}
        self.fill(filled)
        for error in self.validator.iter_errors(filled):
            if error.instance_path:
                where = ".".join(str(piece) for piece in error.instance_path)
                raise ValueError(f"has a default that breaks its own rules: {where}")


def _filler(schema: Mapping[str, object], root: Mapping[str, object]) -> Filler | None:
    """Return the function that fills the defaults below a part of ``root``; None if it has no defaults."""
    schema = resolve(schema, root)
    defaults: list[tuple[str, object]] = []
    children: list[tuple[str, Filler]] = []
    properties, items = schema.get("properties"), schema.get("items")
    for key, part in properties.items() if isinstance(properties, dict) else ():
        if isinstance(part, dict):
            # A default beside a reference takes precedence over the one it refers to.
            given = {**resolve(part, root), **part}
            if "default" in given:
                defaults.append((key, _plain_default(key, given["default"])))
            if (child := _filler(part, root)) is not None:
                children.append((key, child))
    for_items = _filler(items, root) if isinstance(items, dict) else None
    if not (defaults or children or for_items):
        return None

    def fill(value: object) -> None:
        if isinstance(value, dict):
            for key, default in defaults:
                if key not in value:
                    value[key] = copy.deepcopy(default) if isinstance(default, dict | list) else default
            for key, child in children:
                if key in value:
                    child(value[key])
        elif isinstance(value, list) and for_items is not None:
            for item in value:
                for_items(item)

    return fill


def _undescribed(schema: Mapping[str, object], root: Mapping[str, object], prefix: str) -> Iterator[str]:
    schema = resolve(schema, root)
    properties, items = schema.get("properties"), schema.get("items")
    for name, part in properties.items() if isinstance(properties, dict) else ():
        if isinstance(part, dict):
            if "description" not in part and "description" not in resolve(part, root):
                yield f"{prefix}{name}"
            yield from _undescribed(part, root, f"{prefix}{name}.")
    if isinstance(items, dict):
        yield from _undescribed(items, root, prefix)


def _plain_default(key: str, default: object) -> object:
    try:
        return plain_copy(default)
    except NotPlain as fault:
        raise ValueError(f"has a default at {key} that {fault.reason}") from None


def _short(text: object) -> str:
    return cut_text(str(text), PIECE_CHARS_MAX)


def _violations_of(error: ValidationError, document: Mapping[str, object]) -> Iterator[Violation]:
    """Describe a violation. The library's own message would repeat the caller's value, however large."""
    path = tuple(_short(piece) for piece in error.instance_path)
    keyword = str(error.schema_path[-1]) if error.schema_path else ""
    detail = error.kind.as_dict()
    if keyword == "required":
        yield Violation((*path, _short(detail["property"])), "is required")
    elif keyword == "additionalProperties":
        known = _known_fields(_part_at(document, error.schema_path[:-1]))
        if not known:
            yield Violation(path, "must have no fields")
            return
        *others, last = [(*path, _short(name)) for name in detail["unexpected"][:VIOLATIONS_MAX]]
        yield from (Violation(each, "is not a known field") for each in others)
        yield Violation(last, f"is not a known field; the known ones are {known}")
    elif keyword in {"anyOf", "oneOf"}:
        schema = _part_at(document, error.schema_path[:-1])
        described = schema.get("description") if isinstance(schema, dict) else None
        hint = f": {described[:200].rstrip('.')}" if isinstance(described, str) else ""
        yield Violation(path, f"has none of the allowed forms{hint}")
    else:
        rule = _part_at(document, error.schema_path)
        around = _part_at(document, error.schema_path[:-1])
        asks_for_text = isinstance(around, dict) and around.get("pattern") == _NOT_BLANK
        # The two rules that an empty text breaks are one violation.
        if asks_for_text and (keyword == "pattern" or (keyword == "minLength" and rule == 1)):
            yield Violation(path, "must not be blank")
        else:
            yield Violation(path, _expected(keyword, rule))


def _known_fields(schema: object) -> str:
    """Return the names of the fields that a part of a schema describes; "" if there are none."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    names = [_short(name) for name in properties] if isinstance(properties, dict) else []
    return f"{', '.join(names[:_FIELDS_SHOWN])}{', …' if len(names) > _FIELDS_SHOWN else ''}"


def _part_at(document: object, path: Sequence[str | int]) -> object:
    """Return the part of the schema at a path from the library."""
    for piece in path:
        document = document[piece]  # type: ignore[index]  # the library followed the same path
    return document


_PHRASES = {
    "minimum": "must be at least {}",
    "maximum": "must be at most {}",
    "exclusiveMinimum": "must be greater than {}",
    "exclusiveMaximum": "must be less than {}",
    "multipleOf": "must be a multiple of {}",
    "minLength": "must have at least {} characters",
    "maxLength": "must have at most {} characters",
    "minItems": "must have at least {} items",
    "maxItems": "must have at most {} items",
    "const": "must be {}",
    "pattern": "must match the pattern {}",
}


def _expected(keyword: str, rule: object) -> str:
    if keyword in {"minLength", "minItems"} and rule == 1:
        return "must not be empty"
    phrase = _PHRASES.get(keyword)
    if phrase is not None:
        return phrase.format(_short(rule))
    if keyword == "enum" and isinstance(rule, list):
        shown = [_short(item) for item in rule[:_ENUM_VALUES_SHOWN]]
        return f"must be one of {', '.join(shown)}{', …' if len(rule) > _ENUM_VALUES_SHOWN else ''}"
    if keyword == "type":
        types = [rule] if isinstance(rule, str) else rule
        return f"must be of type {' or '.join(map(str, types)) if isinstance(types, list) else types}"
    if keyword == "uniqueItems":
        return "must not repeat an item"
    return f"violates the rule {_short(keyword)} of the model's schema"


_TEXT = "a lighthouse at dusk"


def least_input(schema: InputSchema) -> dict[str, object]:
    """Make up an input of the required fields alone, for a check of a provider.

    It may be invalid where the schema has rules of its own.
    """
    required = schema.document.get("required")
    names = required if isinstance(required, list) else []
    return {name: _least_value(schema.field(name) or {}, schema.document) for name in names}


def _least_value(field: Mapping[str, Any], document: Mapping[str, object]) -> object:
    for name in ("const", "default"):
        if name in field:
            return field[name]
    for name in ("examples", "enum"):
        if field.get(name):
            return field[name][0]
    match field.get("type"):
        case "integer" | "number":
            return field.get("minimum", 1)
        case "boolean":
            return False
        case "array":
            items = resolve(field.get("items", {}), document)
            return [_least_value(items, document)] * max(field.get("minItems", 0), 0)
        case "object":
            return {}
    text = _TEXT.ljust(field.get("minLength", 0), ".")
    return text[: field["maxLength"]] if "maxLength" in field else text


Path: TypeAlias = tuple[str | int, ...]
"""Keys and positions that lead to a value inside an input."""

_Visit: TypeAlias = Callable[[object, Path, dict[Path, str]], None]

_FILE_ID: Final = re.compile(r"file_[0-9a-f]{32}", re.ASCII)
_FILE_PATH: Final = re.compile(r"/v[0-9]/files/(file_[0-9a-f]{32})(?:/content)?(?:\?.*)?\Z", re.ASCII)
_ADDRESS: Final = re.compile(r"[\s\0-\x1f]*[a-z][a-z0-9+.-]*:\S", re.ASCII | re.IGNORECASE)
"""What is an address, or is taken for one, where another text may be: bytes in base64, a name."""
_ANY_LINK: Final = "https://example.com/file"
"""What a schema sees instead of a file."""


class InputFile(msgspec.Struct, frozen=True):
    """A file, and where in an input its id is."""

    path: Path
    file_id: str


class LinkFields:
    """The fields of a schema that have a link, found once."""

    __slots__ = ("_visit",)

    def __init__(self, document: Mapping[str, object]) -> None:
        self._visit = _visit_of(document, document)

    def links_of(self, value: dict[str, object]) -> dict[Path, str]:
        """Return the links of an input."""
        found: dict[Path, str] = {}
        if self._visit is not None:
            self._visit(value, (), found)
        return found


def name_files(value: dict[str, object], links: Mapping[Path, str], base_url: str | None) -> tuple[InputFile, ...]:
    """Return the files of an input with these links; where one is to a file below ``base_url`` it gets the id."""
    named = {path: file_id for path, text in links.items() if (file_id := file_id_of(text, base_url))}
    for path, file_id in named.items():
        _put(value, path, file_id)
    return tuple(InputFile(path, file_id) for path, file_id in named.items())


def addresses_of(links: Mapping[Path, str], allowed: Iterable[str]) -> dict[Path, str]:
    """Return the links without ids of files, ``data:``, and what is below ``allowed``."""
    below = tuple(f"{each.rstrip('/')}/" for each in allowed)
    return {
        path: text
        for path, text in links.items()
        if not (text.startswith(below) or text[:5].lower() == "data:" or _FILE_ID.fullmatch(text))
    }


def file_id_of(text: str, base_url: str | None) -> str | None:
    """Return the file's id that a text is, or that it is a link to below ``base_url``; None for any other."""
    if _FILE_ID.fullmatch(text):
        return text
    if base_url is None or not text.startswith(f"{base_url.rstrip('/')}/"):
        return None
    match = _FILE_PATH.search(text)
    return None if match is None else match[1]


def with_links(
    value: Mapping[str, object], named: Iterable[InputFile], link: Callable[[str], str] = lambda _: _ANY_LINK
) -> dict[str, object]:
    """Return an input with links to its files instead of their ids."""
    linked = copy.deepcopy(dict(value))
    for each in named:
        _put(linked, each.path, link(each.file_id))
    return linked


def _put(value: object, path: Path, text: str) -> None:
    *way, last = path
    for piece in way:
        value = cast(Any, value)[piece]
    cast(Any, value)[last] = text


def _visit_of(
    schema: Mapping[str, object], root: Mapping[str, object], *, takes_others: bool = False
) -> _Visit | None:
    """Return the function that finds the links below a part of ``root``; None if it has none.

    ``takes_others``: whether the value may be a text that is no link.
    """
    schema = resolve(schema, root)
    is_link = schema.get("format") == "uri"
    properties, items = schema.get("properties"), schema.get("items")
    fields = {
        key: below
        for key, part in (properties.items() if isinstance(properties, dict) else ())
        if isinstance(part, dict) and (below := _visit_of(part, root))
    }
    of_items = _visit_of(items, root) if isinstance(items, dict) else None
    branches = []
    for keyword in ("anyOf", "oneOf", "allOf"):
        parts = [
            resolve(part, root)
            for part in cast("list[object]", schema.get(keyword) or ())
            if isinstance(part, dict)
        ]
        has_others = takes_others or (keyword != "allOf" and any(map(_takes_plain_text, parts)))
        branches += [branch for part in parts if (branch := _visit_of(part, root, takes_others=has_others))]
    if not (is_link or fields or of_items or branches):
        return None

    def visit(value: object, path: Path, found: dict[Path, str]) -> None:
        if isinstance(value, str) and is_link:
            if not takes_others or _ADDRESS.match(value) or _FILE_ID.fullmatch(value):
                found[path] = value
        elif isinstance(value, dict):
            for key, visit_field in fields.items():
                if key in value:
                    visit_field(value[key], (*path, key), found)
        elif isinstance(value, list) and of_items is not None:
            for position, item in enumerate(value):
                of_items(item, (*path, position), found)
        for visit_branch in branches:
            visit_branch(value, path, found)

    return visit


def _takes_plain_text(schema: Mapping[str, object]) -> bool:
    """Whether one of several forms of a value is a text that is no link."""
    return schema.get("format") != "uri" and "string" in cast("str | list[str]", schema.get("type", "string"))
