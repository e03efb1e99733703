"""What a release promises to later ones of its major version, as lines: ``python -m tests.promises`` records them.

Each file of the folder ``promised`` has the lines of one subject. A line that the code no longer has breaks who
relies on it, so recording only adds lines; one that is taken back on purpose is removed by hand, with a new major
version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec
import typer
from prometheus_client.metrics import MetricWrapperBase

from holdfast.cluster.codec import codecs
from holdfast.cluster.frames import PROTOCOL, Frame
from holdfast.commands.cli import app
from holdfast.http.app import EXTENSIONS, ROUTES
from holdfast.http.kit.errors import ERROR_TABLE
from holdfast.http.kit.openapi import describe
from holdfast.ledger.catalog.bonuses import BonusTable
from holdfast.ledger.catalog.models import CatalogTable, ModelTable, ProviderConfig
from holdfast.settings.settings import PREFIX, Settings
from holdfast.start import exit_codes
from holdfast.telemetry import metrics

FOLDER = Path(__file__).with_name("promised")
URL = "https://holdfast.example"


def promised() -> dict[str, set[str]]:
    """Return the lines of each subject as the code has them now."""
    document = describe([route for route in ROUTES if not route.path.startswith("/ops")], URL, EXTENSIONS)
    schemas = document["components"]["schemas"]
    called = list(operations(document))
    received = reached([body_of(operation) for _, operation in called], schemas)
    return {
        "api": {
            *(line for name, operation in called for line in operation_lines(name, operation)),
            *(line for name, schema in schemas.items() for line in schema_lines(name, schema, name in received)),
            *(f"error {code}: {row.status} {row.type}" for code, row in ERROR_TABLE.items()),
        },
        "catalog": received_lines([CatalogTable, ProviderConfig, ModelTable, BonusTable]),
        "events": {
            f"{kind}: {type_of(schema)}"
            for kind, methods in document["webhooks"].items()
            for schema in body_of(methods["post"])
        },
        "commands": set(command_lines("holdfast", typer.main.get_command(app))),
        "exit_codes": {f"{name} {code}" for name, code in vars(exit_codes).items() if isinstance(code, int)},
        f"links_{PROTOCOL}": received_lines(link_types()),
        "metrics": {
            f"{each._name} ({each._type}) {' '.join(each._labelnames)}".rstrip()
            for each in vars(metrics).values()
            if isinstance(each, MetricWrapperBase)
        },
        "settings": {f"{PREFIX}{field.encode_name}" for field in msgspec.structs.fields(Settings)},
    }


def operations(document: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the method and path of each operation, and what the document says of it."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def body_of(operation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the schemas of an operation's request body, by media type."""
    return [media["schema"] for media in operation.get("requestBody", {}).get("content", {}).values()]


def operation_lines(called: str, operation: Mapping[str, Any]) -> Iterator[str]:
    """Yield an operation with its parameters, its body, and its responses that are no errors."""
    yield called
    for parameter in operation["parameters"]:
        yield f"{called} takes {parameter['in']} {parameter['name']}"
    for schema in body_of(operation):
        yield f"{called} takes {type_of(schema)}"
    for status, response in operation["responses"].items():
        for media, content in response.get("content", {}).items():
            if status < "400":
                yield f"{called} returns {status} {media} {type_of(content.get('schema', {}))}"


def schema_lines(name: str, schema: Mapping[str, Any], is_received: bool) -> Iterator[str]:
    """Yield the fields of a type. Who sends it relies on what is required, who gets it on what is always there."""
    required = schema.get("required", [])
    if is_received:
        yield f"{name} requires {', '.join(sorted(required)) or 'nothing'}"
    for field, of in schema.get("properties", {}).items():
        always = ", always" if field in required and not is_received else ""
        yield f"{name}.{field}: {type_of(of)}{always}"
        for value in values_of(of):
            yield f"{name}.{field}: {value!r}"
    if "properties" not in schema:
        yield f"{name}: {type_of(schema)}"


def link_types() -> list[Any]:
    """Return the types of all frames, and of the commands and replies in them.

    Members of one protocol understand each other, so a new command, or a new field that is required, needs another.
    """
    coded = [decoder.type for codec in codecs().values() for pair in codec._decoders.values() for decoder in pair]
    return [*get_args(Frame), *coded]


def received_lines(types: Iterable[Any]) -> set[str]:
    """Return the fields of types that are read, and of the types in them."""
    ref = "#/components/schemas/{name}"
    _, schemas = msgspec.json.schema_components(types, schema_hook=lambda _: {"type": "any"}, ref_template=ref)
    return {line for name, schema in schemas.items() for line in schema_lines(name, schema, True)}


def reached(found: Iterable[Any], schemas: Mapping[str, Any]) -> set[str]:
    """Return the names of the types that are part of the given schemas."""
    names: set[str] = set()
    left = list(found)
    while left:
        match left.pop():
            case {"$ref": str(ref)} if (name := ref.rpartition("/")[2]) not in names:
                names.add(name)
                left.append(schemas[name])
            case dict(node):
                left += node.values()
            case list(nodes):
                left += nodes
    return names


def values_of(schema: Mapping[str, Any]) -> list[object]:
    """Return the values of an enumeration, also of one that may be null or is in a list."""
    parts = (schema, schema.get("items", {}), *schema.get("anyOf", ()))
    return [value for part in parts if isinstance(part, dict) for value in part.get("enum", ())]


def type_of(schema: Any) -> str:
    """Return a schema's type in a word."""
    match schema:
        case {"$ref": ref}:
            return str(ref).rpartition("/")[2]
        case {"anyOf": parts}:
            return " or ".join(sorted({type_of(part) for part in parts}))
        case {"prefixItems": parts, "minItems": least}:
            return f"[{', '.join(map(type_of, parts))}], {least} at least"
        case {"type": "array", "items": items}:
            return f"list of {type_of(items)}"
        case {"type": "object", "properties": fields}:
            return f"object of {', '.join(sorted(fields))}"
        case {"type": "object", "additionalProperties": dict(of)}:
            return f"object of {type_of(of)}"
        case {"type": kind}:
            return str(kind)
        case {"const": value} | {"enum": [value]}:
            return repr(value)
        case _:
            return "enumeration" if schema.get("enum") else "any"


def command_lines(name: str, command: Any) -> Iterator[str]:
    """Yield a command with its options, and the commands below it."""
    for option in command.params:
        yield from (
            f"{name} {word}" for word in option.opts if word.startswith("-") or option.param_type_name == "argument"
        )
    yield name
    for below, each in getattr(command, "commands", {}).items():
        yield from command_lines(f"{name} {below}", each)


def recorded(subject: str) -> set[str]:
    """Return the recorded lines of a subject."""
    file = FOLDER / f"{subject}.txt"
    return set(file.read_text("utf-8").splitlines()) if file.exists() else set()


def main() -> None:
    """Record the new lines of all subjects."""
    for subject, lines in promised().items():
        (FOLDER / f"{subject}.txt").write_text("".join(f"{line}\n" for line in sorted(lines | recorded(subject))))


if __name__ == "__main__":
    main()
