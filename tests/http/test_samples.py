"""The examples in the OpenAPI document: each is run, and sends a request that its route accepts."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
import trio
from multipart import MultipartParser
from quart import Response
from tests.tools import CLIENTS_NODE, needs, path_of

from holdfast.http.app import EXTENSIONS, ROUTES
from holdfast.http.kit import bodies
from holdfast.http.kit.calls import Auth
from holdfast.http.kit.dependencies import Dependencies
from holdfast.http.kit.openapi import describe
from holdfast.http.kit.requests import HoldfastRequest
from holdfast.http.kit.routes import Route
from holdfast.ledger.refusals import Refusal

if TYPE_CHECKING:
    from tests.http.stage import Stage

TAGS = {route.tag for route in ROUTES}


@dataclass
class Recorder:
    """Answers every request in place of the application's handlers, and records what it was sent."""

    sent: list[tuple[str | None, dict[str, str], bytes]] = field(default_factory=list)

    async def serve(
        self, _deps: Dependencies, route: Route, request: HoldfastRequest, _path: dict[str, str]
    ) -> Response:
        body = await request.read_body(1_000_000)
        self.sent.append((route.name, dict(request.headers), body))
        return Response("recorded")


@pytest.mark.parametrize("label", ["curl", "Python", pytest.param("JavaScript", marks=needs(CLIENTS_NODE))])
@pytest.mark.parametrize(
    "tag", ["Tasks", *(pytest.param(tag, marks=pytest.mark.slow) for tag in sorted(TAGS - {"Tasks"}))]
)
async def test_the_examples_of_each_section_are_run(
    stage: Stage, tag: str, label: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "picture.png").write_bytes(b"a picture")
    recorder = Recorder()
    monkeypatch.setattr("holdfast.http.app.serve_call", recorder.serve)
    routes = [route for route in ROUTES if route.tag == tag]
    async with stage.serving() as base:
        paths = describe(ROUTES, base, EXTENSIONS)["paths"]
        shown = [paths[route.path][route.method.lower()]["x-codeSamples"] for route in routes]
        sources = []
        for samples in shown:
            assert [each["label"] for each in samples] == ["curl", "Python", "JavaScript"]
            sources += [each["source"] for each in samples if each["label"] == label]
        await run(label, sources, tmp_path)
        for route, sent in zip(routes, recorder.sent, strict=True):
            assert_fits(route, *sent)


def test_the_operators_token_is_on_no_command_line() -> None:
    paths = describe(ROUTES, "https://holdfast.example", EXTENSIONS)["paths"]
    of_operators = [route for route in ROUTES if route.auth in (Auth.OPERATOR_READ, Auth.OPERATOR_ACT)]
    assert of_operators
    for route in of_operators:
        curl = paths[route.path][route.method.lower()]["x-codeSamples"][0]["source"]
        head, _, command = curl.partition(" | ")
        assert head == """printf 'Authorization: Bearer %s' "$OPERATOR_TOKEN\""""
        assert "OPERATOR_TOKEN" not in command


async def test_the_examples_for_openai_name_models_that_make_what_is_asked_for(stage: Stage) -> None:
    models = stage.deps.registry.catalog.models
    paths = describe(ROUTES, "https://holdfast.example", EXTENSIONS)["paths"]
    for path, modality in {
        "/v1/images/generations": "image",
        "/v1/images/edits": "image",
        "/v1/audio/speech": "audio",
        "/v1/videos": "video",
    }.items():
        for sample in paths[path]["post"]["x-codeSamples"]:
            named = [model for model in models.values() if f'"{model.id}"' in sample["source"].replace("=", '"')]
            assert [model.modality for model in named] == [modality]


async def run(label: str, sources: list[str], folder: Path) -> None:
    """Run the examples of one language one after the other, in one process, which starts once for all."""
    names = re.findall(r"\b[A-Z][A-Z_]*\b", " ".join(sources))
    environment = {name: f"value-of-{name.lower()}" for name in names}
    command = ["sh", "-ec", "\n".join(sources)]
    if label == "Python":
        command = [sys.executable, "-c", f"for source in {sources!r}:\n    exec(source, {{}})"]
    elif label == "JavaScript":
        for number, source in enumerate(sources):
            (folder / f"{number}.mjs").write_text(source, encoding="utf-8")
        imports = "\n".join(f'await import("./{number}.mjs");' for number in range(len(sources)))
        (folder / "all.mjs").write_text(imports, encoding="utf-8")
        command = [path_of(CLIENTS_NODE), "all.mjs"]
    environment["PATH"] = "/usr/bin:/bin"
    done = await trio.run_process(command, env=environment, cwd=folder, capture_stdout=True)
    assert done.stdout.count(b"recorded") == len(sources), done


def assert_fits(route: Route, endpoint: str | None, headers: dict[str, str], body: bytes) -> None:
    assert endpoint == route.name
    needs_bearer = route.auth in {
        Auth.SESSION,
        Auth.API_KEY,
        Auth.SESSION_OR_KEY,
        Auth.OPERATOR_READ,
        Auth.OPERATOR_ACT,
    }
    assert headers.get("Authorization", "").startswith("Bearer value-of-") or not needs_bearer
    for parameter in route.parameters:
        assert parameter.name.title() in headers or not (parameter.required and parameter.location == "header")
    if route.files_max and route.body is None:
        parts = list(MultipartParser(io.BytesIO(body), headers["Content-Type"].partition("boundary=")[2]))
        assert [each.raw for each in parts if each.filename] == [b"a picture"]
        document = describe(ROUTES, "https://holdfast.example", EXTENSIONS)["paths"][route.path]["post"]
        schema = document["requestBody"]["content"]["multipart/form-data"]["schema"]
        assert {each.name for each in parts} == set(schema["required"])
    elif route.body is not None:
        parsed = bodies.parse_object(body)
        assert not isinstance(parsed, Refusal)
        assert not isinstance(bodies.convert_body(parsed, route.body), Refusal)
    elif route.raw_body_example is not None:
        assert msgspec.json.decode(body) == route.raw_body_example
    else:
        assert body == b""
