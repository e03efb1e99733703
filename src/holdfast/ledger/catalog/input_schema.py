"""A model's input schema: JSON Schema 2020-12, made ready once, then used to fill defaults and judge inputs.

A schema describes an object, refers only to itself (``#/…``) and never recurses, so judging an input is
bounded and never fetches anything. Defaults are filled below ``properties`` and ``items``; what stands under
``anyOf`` and its like is judged but not filled, because which branch applies is not yet known.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import islice
from typing import NamedTuple

from jsonschema_rs import Draft202012Validator, ReferencingError, ValidationError

from holdfast.ledger.catalog.schema_document import check_document, number_range, resolve
from holdfast.ledger.plain_json import NotPlain, plain_copy

VIOLATIONS_MAX = 10
"""How many violations one answer lists."""

PIECE_CHARS_MAX = 40
"""How much of one key, or one allowed value, an answer repeats."""

_UNLISTED_AFTER = 12


class Violation(NamedTuple):
    """One broken rule: where (path below the input) and what is expected there."""

    path: tuple[str, ...]
    expected: str


class Fill:
    """The defaults of one object or list schema and of those below it."""

    __slots__ = ("children", "defaults", "items")

    def __init__(self) -> None:
        self.defaults: list[tuple[str, object]] = []
        self.children: list[tuple[str, Fill]] = []
        self.items: Fill | None = None

    @property
    def empty(self) -> bool:
        return not (self.defaults or self.children or self.items)

    def apply(self, value: object) -> None:
        """Set what is missing, in place."""
        if isinstance(value, dict):
            for key, default in self.defaults:
                if key not in value:
                    value[key] = copy.deepcopy(default) if isinstance(default, dict | list) else default
            for key, fill in self.children:
                if key in value:
                    fill.apply(value[key])
        elif isinstance(value, list) and self.items is not None:
            for item in value:
                self.items.apply(item)


class InputSchema:
    """A checked schema. ``document`` is the schema itself, ``validator`` its compiled form.

    Raises ``ValueError`` with the fault's text where the document breaks a rule of this module.
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
        self._fill = self._compile_fill(document)
        self._check_defaults()

    def fill(self, value: dict[str, object]) -> None:
        """Fill the schema's defaults into ``value``, in place."""
        self._fill.apply(value)

    def violations(self, value: object) -> list[Violation]:
        """Every rule that ``value`` breaks, at most ``VIOLATIONS_MAX``; empty where it is valid."""
        if self.validator.is_valid(value):
            return []
        return list(islice(self._each_violation(value), VIOLATIONS_MAX))

    def field(self, name: str) -> Mapping[str, object] | None:
        """The schema of one top-level field, or None where there is no such field."""
        properties = self.document.get("properties")
        found = properties.get(name) if isinstance(properties, dict) else None
        return resolve(found, self.document) if isinstance(found, dict) else None

    def number_range(self, name: str) -> tuple[Fraction | None, Fraction | None]:
        """The least and the greatest number that field ``name`` admits; None for a side that is open."""
        found = self.field(name)
        return (None, None) if found is None else (number_range(found, self.document) or (None, None))

    def listed_values(self, name: str) -> tuple[object, ...] | None:
        """The values of the field's ``enum`` or ``const``, or None where it lists none."""
        found = self.field(name)
        if found is None:
            return None
        if "const" in found:
            return (found["const"],)
        listed = found.get("enum")
        return tuple(listed) if isinstance(listed, list) else None

    def _each_violation(self, value: object) -> Iterator[Violation]:
        seen = set()
        for error in self.validator.iter_errors(value):
            for violation in _violations_of(error, self.document):
                if violation not in seen:
                    seen.add(violation)
                    yield violation

    def _compile_fill(self, schema: Mapping[str, object]) -> Fill:
        schema = resolve(schema, self.document)
        fill = Fill()
        properties = schema.get("properties")
        if isinstance(properties, dict):
            for key, below in properties.items():
                if not isinstance(below, dict):
                    continue
                resolved = resolve(below, self.document)
                # A default beside a reference stands ahead of the one it refers to.
                for candidate in (below, resolved):
                    if "default" in candidate:
                        fill.defaults.append((key, _plain_default(key, candidate["default"])))
                        break
                child = self._compile_fill(resolved)
                if not child.empty:
                    fill.children.append((key, child))
        items = schema.get("items")
        if isinstance(items, dict):
            child = self._compile_fill(items)
            fill.items = None if child.empty else child
        return fill

    def _check_defaults(self) -> None:
        filled: dict[str, object] = {}
        self.fill(filled)
        for error in self.validator.iter_errors(filled):
            if error.instance_path:
                where = ".".join(str(piece) for piece in error.instance_path)
                raise ValueError(f"has a default that breaks its own rules: {where}")


def _plain_default(key: str, default: object) -> object:
    try:
        return plain_copy(default)
    except NotPlain as fault:
        raise ValueError(f"has a default at {key} that {fault.reason}") from None


def _short(text: object) -> str:
    shown = str(text)
    return shown if len(shown) <= PIECE_CHARS_MAX else shown[: PIECE_CHARS_MAX - 1] + "…"


def _violations_of(error: ValidationError, document: Mapping[str, object]) -> Iterator[Violation]:
    """Say a violation in our own words: the library's would repeat the caller's value, however large."""
    path = tuple(_short(piece) for piece in error.instance_path)
    keyword = str(error.schema_path[-1]) if error.schema_path else ""
    detail = error.kind.as_dict()
    if keyword == "required":
        yield Violation((*path, _short(detail["property"])), "is required")
    elif keyword == "additionalProperties":
        unexpected = detail.get("unexpected", [])
        yield from (
            Violation((*path, _short(name)), "is not a known field") for name in unexpected[:VIOLATIONS_MAX]
        )
    elif keyword in {"anyOf", "oneOf"}:
        schema = _at(document, error.schema_path[:-1])
        described = schema.get("description") if isinstance(schema, dict) else None
        hint = f": {described[:200]}" if isinstance(described, str) else ""
        yield Violation(path, f"has none of the allowed forms{hint}")
    else:
        yield Violation(path, _expected(keyword, _at(document, error.schema_path)))


def _at(document: object, path: Sequence[str | int]) -> object:
    """What stands at a place of the schema that the library named."""
    for piece in path:
        document = document[piece]  # type: ignore[index]  # the library walked the same way
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
}


def _expected(keyword: str, rule: object) -> str:
    phrase = _PHRASES.get(keyword)
    if phrase is not None:
        return phrase.format(_short(rule))
    if keyword == "enum" and isinstance(rule, list):
        shown = [_short(item) for item in rule[:_UNLISTED_AFTER]]
        return f"must be one of {', '.join(shown)}{', …' if len(rule) > _UNLISTED_AFTER else ''}"
    if keyword == "type":
        kinds = [rule] if isinstance(rule, str) else rule
        return f"must be of type {' or '.join(map(str, kinds)) if isinstance(kinds, list) else kinds}"
    if keyword == "pattern":
        return "does not have the expected form"
    if keyword == "uniqueItems":
        return "must not repeat an item"
    return f"breaks the rule {_short(keyword)} of the model's schema"
