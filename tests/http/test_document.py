"""The OpenAPI document says all that its readers and generators of clients need, and says it once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from holdfast.http.app import EXTENSIONS, ROUTES
from holdfast.http.kit.calls import Call
from holdfast.http.kit.errors import ErrorResponse
from holdfast.http.kit.field_docs import field_docs, structs_in
from holdfast.http.kit.openapi import RECORDED, describe
from holdfast.http.kit.routes import Outcome, Parameter, Route, RouteTable
from holdfast.ledger.alerts.account_events import PAYLOADS
from holdfast.ledger.public_types import FreeForm, Time
from holdfast.ledger.tasks.events import EVENT_KINDS
from holdfast.ledger.tasks.public import TaskEvent

ROOT = Path(__file__).parents[2]
URL = "https://holdfast.example"
JSON = "application/json"
EXAMPLES = (RECORDED, *(each.examples for each in EXTENSIONS if each.examples is not None))
REPLIES = {route.reply for route in ROUTES if route.reply is not None}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return describe(ROUTES, URL, EXTENSIONS)


def undescribed(document: dict[str, Any]) -> Iterator[str]:
    """Yield what a document leaves without a description, by its place."""
    for section in ("paths", "webhooks"):
        for path, methods in document[section].items():
            for method, operation in methods.items():
                parts = {"summary": operation} | {part["name"]: part for part in operation["parameters"]}
                parts |= operation["responses"]
                for name, part in {"": operation, **parts}.items():
                    if not part.get("description" if name != "summary" else name):
                        yield f"{method} {path} {name}"
    for name, schema in document["components"]["schemas"].items():
        for field, described in {"": schema, **schema["properties"]}.items():
            if not described.get("description"):
                yield f"{name}.{field}"
    for name, scheme in document["components"]["securitySchemes"].items():
        if not scheme.get("description"):
            yield name


def schemas_in(node: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of a document, schemas among them."""
    if isinstance(node, dict):
        yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from schemas_in(child)


def test_descriptions_name_only_what_is_there(document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            named = {each["name"] for each in operation["parameters"]}
            for each in operation["parameters"]:
                assert "limit" in named or "`limit`" not in each["description"], (path, each["name"])
    schemas = document["components"]["schemas"]
    for name in ("RefundRequest", "Resolution"):
        # What is not part of a payment of cents is refused.
        [amount] = [each for each in schemas[name]["properties"]["amount"]["anyOf"] if "pattern" in each]
        assert amount["pattern"].endswith("[0-9]{1,2})?$")
    assert "2 decimals" in schemas["RefundRequest"]["properties"]["amount"]["description"]
    assert "decimals" not in schemas["Estimate"]["properties"]["unit_price"]["description"]
    for name in ("ApiKeyRequest", "ApiKeyChange", "ApiKeySecret", "ApiKeyBody"):
        described = schemas[name]["properties"]["name"]["description"]
        assert ("`API key`" in described, "empty" in described) == (True, False)


def test_a_filter_by_metadata_is_an_object_in_brackets(document: dict[str, Any]) -> None:
    for path in ("/v2/task/list", "/v2/usage/totals"):
        [sent] = [each for each in document["paths"][path]["get"]["parameters"] if each["name"] == "metadata"]
        assert (sent["style"], sent["explode"], sent["schema"]["type"]) == ("deepObject", True, "object")


def test_every_operation_parameter_and_field_is_described(document: dict[str, Any]) -> None:
    assert list(undescribed(document)) == []
    fields = [name for schema in document["components"]["schemas"].values() for name in schema["properties"]]
    assert len(fields) > 800


def test_fields_and_files_of_forms_have_a_type(document: dict[str, Any]) -> None:
    """A form cannot have null, and a viewer shows a field that may be null without any type."""
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    contents = [operation["requestBody"]["content"] for operation in operations if "requestBody" in operation]
    forms = [content["multipart/form-data"]["schema"] for content in contents if "multipart/form-data" in content]
    assert len(forms) == 5
    for form in forms:
        for name, each in form["properties"].items():
            assert each["description"], name
            assert "type" in each or "$ref" in each, name
    edit = document["paths"]["/v1/images/edits"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert edit["required"] == ["image", "model"]
    assert edit["properties"]["response_format"]["enum"] == ["b64_json", "url"]


class Plain(msgspec.Struct, frozen=True, rename="camel"):
    """A base."""

    id: str
    """Its id."""
    made_at: Time | None
    """When it was made."""
    no_text: int


class Extended(Plain, frozen=True):
    """A struct of the tests."""

    id: str
    """Another id, ``x_…``,
    in two lines.
    """
    kind: Literal["b", "a"]
    """What it is."""


class Wish(msgspec.Struct, frozen=True):
    """A request of the tests."""

    input: FreeForm
    """Anything."""
    size_px: Annotated[int, msgspec.Meta(ge=1)] = 64
    """The size in pixels."""
    name: str | None = None
    """Null: none."""


def test_what_has_no_description_is_found() -> None:
    route = RouteTable("Tests")

    @route(
        "POST",
        "/x",
        summary="",
        body=Wish,
        reply=Extended,
        parameters=(Parameter(name="q", location="query", description=""),),
    )
    async def change_x(call: Call) -> Outcome:
        raise NotImplementedError

    made = describe(route.routes, URL)
    assert list(undescribed(made)) == ["post /x ", "post /x summary", "post /x q", "Extended.noText"]


def test_a_field_is_described_where_it_is_declared() -> None:
    assert field_docs(Extended) == {
        "madeAt": "When it was made.",
        "id": "Another id, ``x_…``,\n    in two lines.\n    ",
        "kind": "What it is.",
    }
    route = RouteTable("Tests")

    @route("POST", "/x", summary="Change X", body=Wish, reply=Extended)
    async def change_x(call: Call) -> Outcome:
        raise NotImplementedError

    schemas = describe(route.routes, URL)["components"]["schemas"]
    sent = schemas["Extended"]["properties"]
    assert sent["id"] == {"type": "string", "description": "Another id, `x_…`,\nin two lines."}
    assert sent["kind"] == {"type": "string", "enum": ["a", "b"], "description": "What it is."}
    assert sent["madeAt"]["description"] == "When it was made. RFC 3339 in UTC, with milliseconds."
    wish = schemas["Wish"]
    assert wish["required"] == ["input"]
    assert wish["properties"] == {
        "input": {"type": "object", "additionalProperties": True, "description": "Anything."},
        "size_px": {"type": "integer", "minimum": 1, "description": "The size in pixels. By default 64."},
        "name": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "Null: none."},
    }  # fmt: skip


def test_generators_find_nothing_open(document: dict[str, Any]) -> None:
    for schema in document["components"]["schemas"].values():
        for field in schema["properties"].values():
            assert "default" not in field
    for schema in schemas_in(document["components"]["schemas"]):
        if "enum" in schema:
            assert schema["type"] == "string"
        if schema.get("type") == "object" and "properties" not in schema:
            assert "additionalProperties" in schema


def test_each_webhook_is_an_operation_of_its_own(document: dict[str, Any]) -> None:
    found = {kind: each["post"] for kind, each in document["webhooks"].items()}
    assert set(found) == {*EVENT_KINDS, *PAYLOADS}
    assert {each["operationId"] for each in found.values()} == {
        f"receive_{kind.replace('.', '_')}" for kind in found
    }
    operations = [each for methods in document["paths"].values() for each in methods.values()]
    names = [each["operationId"] for each in (*operations, *found.values())]
    assert len(set(names)) == len(names)
    for webhook in found.values():
        assert webhook["tags"] == ["Events"]
        assert all("Events" not in each["tags"] for each in operations)
    assert "Events" in [each["name"] for each in document["tags"]]


@pytest.mark.slow
def test_an_installed_wheel_describes_its_fields_too(tmp_path: Path) -> None:
    hatchling = pytest.importorskip("hatchling.builders.wheel", reason="make installs it")
    for project in (ROOT, ROOT / "src" / "holdfast_compat", ROOT / "src" / "holdfast_console"):
        [wheel] = hatchling.WheelBuilder(str(project)).build(directory=str(tmp_path), versions=["standard"])
        zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    code = (
        "import json, sys, holdfast; from holdfast.http.app import EXTENSIONS, ROUTES; "
        "from holdfast.http.kit.openapi import describe; "
        "places = [holdfast.__file__, *(sys.modules[f'holdfast_{each.name}'].__file__ for each in EXTENSIONS)]; "
        f"print(json.dumps([*places, describe(ROUTES, {URL!r}, EXTENSIONS)]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, check=True, text=True
    )
    *places, made = json.loads(done.stdout)
    assert all(place.startswith(str(tmp_path)) for place in places)
    assert list(undescribed(made)) == []


def successful(document: dict[str, Any], route: Route) -> dict[str, Any]:
    operation = document["paths"][route.path][route.method.lower()]
    found: dict[str, Any] = operation["responses"][str(route.statuses[0])]
    return found


def test_the_examples_of_responses_are_as_their_types_say(document: dict[str, Any]) -> None:
    # They were recorded by tests/journeys/record_responses.py, which must be run again after a change of a type.
    recorded = {name: body for file in EXAMPLES for name, body in json.loads(file.read_text("utf-8")).items()}
    types = {shape.__name__: shape for shape in structs_in({*REPLIES, ErrorResponse, TaskEvent})}
    for name, example in recorded.items():
        shape = types.get(name) or PAYLOADS.get(name, TaskEvent)
        assert msgspec.json.decode(msgspec.json.encode(msgspec.convert(example, shape))) == example, name
    assert {name for name in recorded if name not in types} <= {*EVENT_KINDS, *PAYLOADS}
    shown = {
        route.reply.__name__
        for route in ROUTES
        if route.reply is not None and "examples" in successful(document, route)["content"][JSON]
    }
    # Types of what hardly ever happens: a poison message, a review, and events that were given up.
    assert {shape.__name__ for shape in REPLIES} - shown <= {
        "PoisonBody", "ReviewBody", "ReviewRecord"
    }  # fmt: skip
