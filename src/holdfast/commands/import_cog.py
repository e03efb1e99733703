"""``holdfast catalog import-cog``: the catalog entry of a container's model, from the schema that it publishes.

A Cog server describes its model in the OpenAPI document at ``/openapi.json``: ``Input`` and ``Output`` among the
schemas of its components. It states no price, so the entry is disabled until an operator has set one.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2
import msgspec

from holdfast.ledger.catalog.catalog import parse_catalog
from holdfast.ledger.catalog.input_schema import InputSchema, least_input
from holdfast.ledger.catalog.models import Modality
from holdfast.providers.media.kinds import kind_rules
from holdfast.settings.settings import environment
from holdfast.wiring.provider_registry import read_catalog

TIMEOUT_S = 30.0
_SCHEMAS = "#/components/schemas/"
_VALUES = frozenset({"default", "enum", "const", "examples"})
"""Keywords whose contents are values and no schemas."""
_DROPPED = frozenset({"title", "nullable", "example", "discriminator", "xml", "externalDocs"})
"""Keywords of OpenAPI that JSON Schema does not have, and titles, which only repeat the names."""
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


class ImportFault(Exception):
    """A server's schema cannot be imported; the text says why, for the terminal."""


class Imported(NamedTuple):
    """A container as parts of a catalog: the name and the table of its provider, and the table of its model."""

    provider: str
    provider_table: dict[str, Any]
    model_table: dict[str, Any]


class _Components(msgspec.Struct, frozen=True):
    schemas: dict[str, Any]


class _Document(msgspec.Struct, frozen=True):
    components: _Components


def read_schemas(url: str) -> dict[str, Any]:
    """Read the schemas of the Cog server at ``url``. Raises :class:`ImportFault`."""
    address = f"{url.rstrip('/')}/openapi.json"
    try:
        response = httpx2.get(address, timeout=TIMEOUT_S, trust_env=False)
    except httpx2.TimeoutException as fault:
        raise ImportFault(f"{address} does not answer within {TIMEOUT_S:g} s.") from fault
    except (httpx2.HTTPError, httpx2.InvalidURL) as fault:
        raise ImportFault(f"{address} cannot be read: {fault}") from fault
    if response.status_code != 200:
        raise ImportFault(
            f"{address} answered {response.status_code}: this is not a Cog server, or it is not ready."
        )
    try:
        schemas = msgspec.json.decode(response.content, type=_Document).components.schemas
    except (msgspec.MsgspecError, RecursionError) as fault:
        raise ImportFault(f"{address} is not an OpenAPI document with schemas: {fault}") from fault
    missing = [name for name in ("Input", "Output") if not isinstance(schemas.get(name), dict)]
    if missing:
        raise ImportFault(f"{address} is not of a Cog server: it has no schema {' and no schema '.join(missing)}.")
    return schemas


def import_model(
    url: str, schemas: Mapping[str, Any], *, provider: str | None, model: str | None, modality: Modality
) -> Imported:
    """Make the entry of the container at ``url`` with these schemas. Raises :class:`ImportFault`."""
    if not _has_file(_plain(schemas["Output"], schemas, ("Output",))):
        raise ImportFault("The model's output is not supported: its schema Output has no file (format uri).")
    document = input_schema(schemas)
    provider = provider or _provider_name(url)
    entry: dict[str, Any] = {
        "id": model or f"{provider}/model-1",
        "modality": modality,
        "type": "async",
        "created": datetime.now(UTC).date(),
        "status": "disabled",
        "upstream": {"provider": provider},
        "pricing": {"mode": "per_request", "unit_price": "1.00"},
    }
    example = _example(document)
    if example is not None:
        entry["example_input"] = example
    return Imported(
        provider,
        {"kind": "cog", "url": url.rstrip("/"), "secret": secrets.token_urlsafe(24)},
        {**entry, "input_schema": document},
    )


def input_schema(schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema ``Input`` as a JSON Schema that stands alone, its fields in the order of the program.

    A field that may be null may be left out as well, so null is not among its values. Unknown fields are refused.
    """
    document = _plain(schemas["Input"], schemas, ("Input",))
    fields, orders = document.pop("properties", {}), schemas["Input"].get("properties", {})
    if not isinstance(fields, dict) or not all(isinstance(field, dict) for field in fields.values()):
        raise ImportFault("The schema Input has no table of properties.")

    def order(name: str) -> int:
        given = orders[name].get("x-order")
        return given if isinstance(given, int) else len(fields)

    ordered = {name: fields[name] for name in sorted(fields, key=order)}
    return {**document, "type": "object", "additionalProperties": False, "properties": ordered}


def entry_text(imported: Imported, *, with_provider: bool = True) -> str:
    """Return the entry as a part of a catalog file."""
    lines = [f"# The model of the container at {imported.provider_table['url']}, as its own schema describes it."]
    if with_provider:
        lines += [f"[providers.{_key(imported.provider)}]", *_lines(imported.provider_table)]
        lines[-1] += "    # start the container with it as WEBHOOK_AUTH_TOKEN"
        lines.append("")
    lines += ["# Set the price, say with description what the model makes, and remove the status to sell it."]
    lines += ["[[models]]", *_model_lines(imported.model_table)]
    return "\n".join(lines) + "\n"


def check_entry(text: str) -> None:
    """Raise :class:`~holdfast.ledger.catalog.catalog.CatalogFault` unless the text is a catalog by itself."""
    parse_catalog(text, read_schema=_no_file, kinds=kind_rules())


def add_to_catalog(file: Path, imported: Imported) -> Path:
    """Add the entry to a catalog file, and its schema beside it; return the schema's file.

    Raises :class:`ImportFault`, or ``CatalogFault`` if the catalog would have faults, and has then changed nothing.
    """
    known, entry = read_catalog(file).providers.get(imported.provider), imported.model_table
    if known is not None and known.url != imported.provider_table["url"]:
        raise ImportFault(f"{file} has a provider {known.name} at another address: choose a name with --provider.")
    name = f"schemas/{entry['id'].replace('/', '-')}.json"
    schema = file.parent / name
    if schema.exists():
        raise ImportFault(f"{schema} exists: remove it, or choose another id with --model.")
    document = json.dumps(entry["input_schema"], indent=2, ensure_ascii=False) + "\n"
    named = imported._replace(model_table={**entry, "input_schema": name})
    added = "\n" + entry_text(named, with_provider=known is None)

    def read_schema(wanted: str) -> str:
        return document if wanted == name else (file.parent / wanted).read_text("utf-8")

    text = file.read_text("utf-8") + added
    parse_catalog(text, read_schema=read_schema, kinds=kind_rules(), folder=file.parent, variables=environment())
    try:
        schema.parent.mkdir(exist_ok=True)
        schema.write_text(document, "utf-8")
        with file.open("a", encoding="utf-8") as catalog:
            catalog.write(added)
    except OSError as fault:
        schema.unlink(missing_ok=True)
        raise ImportFault(f"{fault.filename} cannot be written: {fault.strerror}") from fault
    return schema


def _no_file(_: str) -> str:
    raise AssertionError("the entry contains its schema")


def _plain(node: Any, schemas: Mapping[str, Any], passed: tuple[str, ...]) -> Any:
    """Copy a part of the document with its references replaced by what they name, as JSON Schema has it.

    ``passed`` are the schemas that contain this part.
    """
    if isinstance(node, list):
        return [_plain(each, schemas, passed) for each in node if each is not None]
    if not isinstance(node, dict):
        return node
    target = _reference(node)
    if target is not None:
        name = target.removeprefix(_SCHEMAS)
        named = schemas.get(name)
        if not isinstance(named, dict):
            raise ImportFault(f"The document refers to {target[:80]}, which it does not have.")
        if name in passed:
            raise ImportFault(f"The schema {name} contains itself.")
        own = {key: value for key, value in node.items() if key not in {"$ref", "allOf"}}
        # Of an enumeration without a description pydantic says only that it is one.
        about = {} if named.get("description") != "An enumeration." else {"description": None}
        return _plain({**named, **about, **own}, schemas, (*passed, name))
    copy: dict[str, Any] = {}
    for key, value in node.items():
        if value is None or key in _DROPPED or key.startswith("x-"):
            continue
        if key == "properties" and isinstance(value, dict):
            copy[key] = {name: _plain(part, schemas, passed) for name, part in value.items()}
        elif key in _VALUES:
            copy[key] = [each for each in value if each is not None] if isinstance(value, list) else value
        else:
            copy[key] = _plain(value, schemas, passed)
    return copy


def _reference(node: Mapping[str, Any]) -> str | None:
    """Return what a part refers to, by itself or, beside keywords of its own, in an ``allOf`` of one."""
    parts = node.get("allOf")
    of_one = parts[0] if isinstance(parts, list) and len(parts) == 1 else None
    target = node.get("$ref") or (of_one.get("$ref") if isinstance(of_one, dict) else None)
    return target if isinstance(target, str) else None


def _has_file(schema: Any) -> bool:
    if isinstance(schema, list):
        return any(map(_has_file, schema))
    if not isinstance(schema, dict):
        return False
    return schema.get("format") == "uri" or any(map(_has_file, schema.values()))


def _example(document: dict[str, Any]) -> dict[str, object] | None:
    """Make up an input of the required fields; None if it needs a file, or breaks other rules of the schema."""
    try:
        schema = InputSchema(document)
    except ValueError:
        return None  # The check of the entry says why.
    example = least_input(schema)
    if any(_has_file(schema.field(name)) for name in example) or schema.violations(example):
        return None
    return example


def _provider_name(url: str) -> str:
    """Make a name of the host and the port: ``gpu-internal-5000``."""
    return re.sub(r"[^a-z0-9]+", "-", urlsplit(url).netloc.rpartition("@")[2].lower()).strip("-")[:40]


def _model_lines(entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a model's table, and one table for each field of a schema in it."""
    schema = entry["input_schema"]
    if isinstance(schema, str):
        yield from _lines(entry)
        return
    yield from _lines({key: value for key, value in entry.items() if key != "input_schema"})
    yield "\n[models.input_schema]"
    yield from _lines({key: value for key, value in schema.items() if key != "properties"})
    for name, field in schema["properties"].items():
        yield f"\n[models.input_schema.properties.{_key(name)}]"
        yield from _lines(field)


def _lines(table: Mapping[str, Any]) -> Iterator[str]:
    return (f"{_key(key)} = {_value(value)}" for key, value in table.items())


def _value(value: Any) -> str:
    match value:
        case dict():
            return f"{{ {', '.join(_lines(value))} }}"
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case date():
            return value.isoformat()
    # TOML has JSON's texts and numbers, but no bare DEL in a text.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _value(name)
