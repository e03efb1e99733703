"""A JSON Schema as a document: its references checked, its parts resolved, its bounds read.

References point to other places in the same document and never form a cycle, so nothing is ever fetched and every
traversal of a schema ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction


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
    kinds = schema.get("type")
    admitted = [kinds] if isinstance(kinds, str) else kinds
    if isinstance(admitted, list) and not {"number", "integer"} & set(admitted):
        return None
    least = [number for key in ("minimum", "exclusiveMinimum") if (number := _number(schema.get(key))) is not None]
    most = [number for key in ("maximum", "exclusiveMaximum") if (number := _number(schema.get(key))) is not None]
    return max(least) if least else None, min(most) if most else None


def _number(value: object) -> Fraction | None:
    return Fraction(str(value)) if isinstance(value, int | float) and not isinstance(value, bool) else None
