"""The least input that a model's schema asks for, made up for a check of its provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.ledger.catalog.input_schema import InputSchema, resolve

TEXT = "a lighthouse at dusk"


def least_input(schema: InputSchema) -> dict[str, object]:
    """Return an object with the required fields alone. It may be invalid where the schema has rules of its own."""
    required = schema.document.get("required")
    names = required if isinstance(required, list) else []
    return {name: _value(schema.field(name) or {}, schema.document) for name in names}


def _value(field: Mapping[str, Any], document: Mapping[str, object]) -> object:
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
            return [_value(items, document)] * max(field.get("minItems", 0), 0)
        case "object":
            return {}
    text = TEXT.ljust(field.get("minLength", 0), ".")
    return text[: field["maxLength"]] if "maxLength" in field else text
