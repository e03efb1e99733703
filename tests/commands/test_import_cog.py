"""``holdfast catalog import-cog`` on servers that answer as Cog containers do, and on some that do not."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.threaded_server import serving
from typer.testing import CliRunner, Result

from holdfast.commands.cli import app
from holdfast.ledger.catalog.catalog import load_catalog
from holdfast.ledger.catalog.models import Catalog
from holdfast.ledger.catalog.pricing import PricedInput, quote_input
from holdfast.providers.media.kinds import kind_rules

PROMPT = {"type": "string", "title": "Prompt", "description": "What to show.", "x-order": 0}
CHOICES = {
    "type": "string",
    "title": "aspect_ratio",
    "description": "An enumeration.",
    "enum": ["1:1", "16:9"],
}
INPUT = {
    "type": "object",
    "title": "Input",
    "required": ["prompt"],
    # In another order than that of the program, which x-order has.
    "properties": {
        "aspect_ratio": {
            "allOf": [{"$ref": "#/components/schemas/aspect_ratio"}],
            "default": "1:1",
            "description": "Width to height.",
            "x-order": 1,
        },
        "steps": {"type": "integer", "default": 28, "minimum": 1, "maximum": 50, "x-order": 2},
        "control_image": {"type": "string", "format": "uri", "nullable": True, "default": None, "x-order": 3},
        # Names that are keywords elsewhere.
        "default": {"type": "boolean", "default": False, "x-order": 5},
        "title": {"type": "string", "title": "Title", "description": 'A "quoted"\x7f line\nand 😀.', "x-order": 4},
        "prompt": PROMPT,
    },
}
FILE = {"type": "string", "format": "uri", "title": "Output"}


def document(*, input_schema: object = INPUT, output: object = FILE, **others: object) -> dict[str, Any]:
    """Return the part of a container's document that is read, among what is not."""
    request = {"type": "object", "properties": {"input": {"$ref": "#/components/schemas/Input"}}}
    schemas = {"Input": input_schema, "Output": output, "aspect_ratio": CHOICES, "PredictionRequest": request}
    return {
        "openapi": "3.0.2",
        "info": {"title": "Cog", "version": "0.1.0"},
        "paths": {"/predictions": {"post": {"operationId": "predict_predictions_post"}}},
        "components": {"schemas": schemas | others},
    }


@contextmanager
def answering(body: object, status: int = 200) -> Iterator[str]:
    """Run a server with this document; its address."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = status if self.path == "/openapi.json" else 404
            self.send_response(found)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        yield url


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["catalog", "import-cog", *words], catch_exceptions=False)


def loaded(text: str, folder: Path) -> Catalog:
    (folder / "printed.toml").write_text(text, "utf-8")
    return load_catalog(folder / "printed.toml", kind_rules())


def test_a_printed_entry_is_a_valid_catalog(tmp_path: Path) -> None:
    with answering(document()) as url:
        # As people copy it from their browser.
        done = run(f"{url}/")
    assert (done.exit_code, done.stderr) == (0, "")
    catalog = loaded(done.stdout, tmp_path)
    name = f"127-0-0-1-{url.rpartition(':')[2]}"
    (provider,), (model,) = catalog.providers.values(), catalog.models.values()
    assert (provider.name, provider.kind, provider.url) == (name, "cog", url)
    # Long enough for the checks of production.
    assert provider.secret is not None
    assert len(provider.secret) >= 24
    assert (model.id, model.modality, model.type, model.status) == (f"{name}/model-1", "image", "async", "disabled")
    assert model.input_schema == {
        "type": "object",
        "required": ["prompt"],
        "additionalProperties": False,
        "properties": {
            "prompt": {"type": "string", "description": "What to show."},
            "aspect_ratio": {
                "type": "string",
                "enum": ["1:1", "16:9"],
                "description": "Width to height.",
                "default": "1:1",
            },
            "steps": {"type": "integer", "default": 28, "minimum": 1, "maximum": 50},
            "control_image": {"type": "string", "format": "uri"},
            "title": {"type": "string", "description": 'A "quoted"\x7f line\nand 😀.'},
            "default": {"type": "boolean", "default": False},
        },
    }
    properties = model.input_schema["properties"]
    assert list(properties) == ["prompt", "aspect_ratio", "steps", "control_image", "title", "default"]  # type: ignore[call-overload]
    assert model.example_input == {"prompt": "a lighthouse at dusk"}
    assert catalog.examples.keys() == {model.id}


def test_two_imports_have_different_secrets(tmp_path: Path) -> None:
    with answering(document()) as url:
        first, second = (loaded(run(url).stdout, tmp_path).providers for _ in range(2))
    assert {each.secret for each in first.values()}.isdisjoint(each.secret for each in second.values())


def test_an_entry_sells_once_its_status_is_removed(tmp_path: Path) -> None:
    with answering(document()) as url:
        done = run(url, "--provider", "box", "--model", "box/wide:2", "--modality", "video")
    refused = quote_input(loaded(done.stdout, tmp_path), "box/wide:2", {"prompt": "a hill"})
    assert not isinstance(refused, PricedInput)
    assert refused.code == "model_not_available"
    sold = loaded(done.stdout.replace('status = "disabled"\n', ""), tmp_path)
    assert sold.models["box/wide:2"].modality == "video"
    priced = quote_input(sold, "box/wide:2", {"prompt": "a hill", "steps": 3})
    assert isinstance(priced, PricedInput)
    assert priced.input == {"prompt": "a hill", "steps": 3, "aspect_ratio": "1:1", "default": False}


def test_an_entry_is_added_to_a_catalog_with_its_schema_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "catalog.toml"
    with answering(document()) as url:
        file.write_text(run(url, "--provider", "box", "--model", "box/first").stdout)
        file.chmod(0o640)
        before = load_catalog(file, kind_rules())
        done = run(url, "--provider", "box", "--model", "box/second", "--to", str(file))
        assert (done.exit_code, done.stderr) == (0, "")
        assert done.stdout == f"box/second is in {file}, its input schema in {tmp_path}/schemas/box-second.json\n"
        after = load_catalog(file, kind_rules())
        assert [*after.models] == ["box/first", "box/second"]
        # The provider was there, with its secret.
        assert after.providers["box"].secret == before.providers["box"].secret
        assert tomllib.loads(file.read_text())["models"][1]["input_schema"] == "schemas/box-second.json"
        assert after.models["box/second"].input_schema == before.models["box/first"].input_schema
        assert file.stat().st_mode & 0o777 == 0o640

        text = file.read_text()
        again = run(url, "--provider", "box", "--model", "box/second", "--to", str(file))
        assert (again.exit_code, len(again.stderr.splitlines())) == (1, 1)
        assert "box-second.json exists" in again.stderr
        taken = run(url, "--provider", "box", "--model", "box/first", "--to", str(file))
        assert (taken.exit_code, taken.stderr) == (2, "model box/first: id is used by another model\n")
    with answering(document()) as other:
        elsewhere = run(other, "--provider", "box", "--model", "box/third", "--to", str(file))
    assert (elsewhere.exit_code, len(elsewhere.stderr.splitlines())) == (1, 1)
    assert "has a provider box at another address" in elsewhere.stderr
    assert file.read_text() == text
    assert [each.name for each in (tmp_path / "schemas").iterdir()] == ["box-second.json"]


def test_an_example_is_not_made_up_for_a_file_or_a_form(tmp_path: Path) -> None:
    image = {"type": "object", "required": ["image"], "properties": {"image": {"type": "string", "format": "uri"}}}
    code = {
        "type": "object",
        "required": ["code"],
        "properties": {"code": {"type": "string", "pattern": "^[0-9]+$"}},
    }
    for schema in (image, code):
        with answering(document(input_schema=schema)) as url:
            done = run(url)
        assert done.exit_code == 0
        assert loaded(done.stdout, tmp_path).examples == {}


@pytest.mark.parametrize(
    "output",
    [
        {"type": "array", "items": FILE},
        {"type": "array", "items": FILE, "x-cog-array-type": "iterator"},
        {"type": "object", "properties": {"seed": {"type": "integer"}, "image": FILE}},
        {"$ref": "#/components/schemas/Made"},
    ],
)
def test_outputs_with_files_are_supported(output: dict[str, object]) -> None:
    with answering(document(output=output, Made={"type": "object", "properties": {"clip": FILE}})) as url:
        assert run(url).exit_code == 0


@pytest.mark.parametrize(
    "output",
    [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "x-cog-array-type": "iterator"}, {}],
)
def test_outputs_without_files_are_refused(output: dict[str, object]) -> None:
    with answering(document(output=output)) as url:
        done = run(url)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "The model's output is not supported: its schema Output has no file (format uri).\n"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"detail": "Not Found"}, 404, "answered 404: this is not a Cog server, or it is not ready."),
        (b"<html>", 200, "is not an OpenAPI document with schemas: "),
        ({"openapi": "3.1.0", "paths": {}}, 200, "is not an OpenAPI document with schemas: "),
        ({"components": {"schemas": {"Pet": {}}}}, 200, "it has no schema Input and no schema Output."),
        (document(output=None), 200, "it has no schema Output."),
        (document(input_schema={"type": "object", "properties": []}), 200, "has no table of properties."),
        (document(input_schema={"$ref": "#/components/schemas/Gone"}), 200, "refers to #/components/schemas/Gone"),
        (
            document(Made={"type": "array", "items": {"$ref": "#/components/schemas/Made"}}, output={
                "$ref": "#/components/schemas/Made"
            }),
            200,
            "The schema Made contains itself.",
        ),
    ],
)  # fmt: skip
def test_what_is_not_a_usable_schema_is_one_line(body: object, status: int, words: str) -> None:
    with answering(body, status) as url:
        done = run(url)
    assert (done.exit_code, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert words in line


def test_a_schema_that_the_catalog_refuses_has_its_faults() -> None:
    wrong = {"type": "object", "properties": {"n": {"type": "integer", "minimum": "one"}}}
    with answering(document(input_schema=wrong)) as url:
        done = run(url, "--provider", "Box")
    assert (done.exit_code, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert [line.partition(" must ")[0] for line in lines if line.startswith("provider")] == ["provider Box: name"]
    assert any("input_schema is not a valid JSON Schema" in line for line in lines)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "gpu.internal", "http://[::1"])
def test_a_server_that_cannot_be_read_is_one_line(url: str) -> None:
    done = run(url)
    assert (done.exit_code, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{url}/openapi.json cannot be read: ")
