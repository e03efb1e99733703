"""Listings for compatible clients, health, metrics, the OpenAPI document and its page."""

from __future__ import annotations

import gzip
import hashlib
import html
import json
import re
import threading
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import trio
from tests.clients import refused

from holdfast.http.app import EXTENSIONS, ROUTES
from holdfast.http.endpoints import api_docs
from holdfast.http.endpoints.api_docs import SCRIPT, document_for
from holdfast.http.kit.errors import ERROR_TABLE
from holdfast.http.kit.openapi import describe, error_codes
from holdfast.http.kit.operating import Readiness
from holdfast.http.kit.reference import CUSTOMERS, OPERATORS, Reference, reference_of
from holdfast.ledger.alerts.account_events import PAYLOADS
from holdfast.ledger.tasks.events import EVENT_KINDS

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.stage import Stage


async def test_both_listings_and_one_model(stage: Stage) -> None:
    old = (await stage.call("GET", "/v1/models", credential="x y")).json()
    new = (await stage.call("GET", "/v2/models")).json()
    assert old["object"] == "list"
    described = {"description", "input_schema", "example_input", "estimate", "output", "priced_only"}
    slim = [{name: value for name, value in model.items() if name not in described} for model in new["data"]]
    assert all(described < model.keys() for model in new["data"])
    assert old["data"] == slim
    chat = next(model for model in new["data"] if model["modality"] == "llm")
    assert (chat["object"], chat["type"], chat["provider"], chat["status"]) == (
        "model",
        "sync",
        "gateway",
        "active",
    )
    assert chat["pricing"]["mode"] == "per_token"
    for path in (f"/v1/models/{chat['id']}", f"/v1/models/{chat['id'].replace('/', '%2F')}"):
        assert (await stage.call("GET", path)).json() == chat
    refused(await stage.call("GET", "/v1/models/nope"), 404, "model_not_found")


async def test_the_openai_client_reads_models_and_errors(stage: Stage) -> None:
    def use(base: str) -> None:
        import openai  # which takes most of a second, in every process that collects the tests

        with openai.OpenAI(
            base_url=f"{base}/v1", api_key="any", max_retries=0, _strict_response_validation=True
        ) as client:
            models = list(client.models.list())
            assert {"studio/image-1", "gateway/chat-1"} <= {model.id for model in models}
            one = client.models.retrieve("studio/image-1")
            assert (one.object, one.owned_by, one.created > 0) == ("model", "studio", True)
            with pytest.raises(openai.NotFoundError) as caught:
                client.models.retrieve("studio/nope")
            assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
            assert "does not exist" in str(caught.value)
            assert caught.value.request_id is not None
            assert caught.value.request_id.startswith("req_")

    async with stage.serving() as base:
        await trio.to_thread.run_sync(partial(use, base))


async def test_readiness_is_503_until_every_part_works(stage: Stage) -> None:
    assert (await stage.call("GET", "/healthz")).json() == {"status": "alive"}
    assert (await stage.call("GET", "/readyz")).status_code == 200

    stage.change(readiness=lambda: Readiness(database=True, tree=True, providers={"studio": "down"}))
    response = await stage.call("GET", "/readyz")
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert response.json() == {
        "ready": False, "database": True, "tree": True, "providers": {"studio": False},
        "provider_states": {"studio": "down"},
    }  # fmt: skip


async def test_one_provider_that_is_down_does_not_end_readiness(stage: Stage) -> None:
    stage.change(
        readiness=lambda: Readiness(database=True, tree=True, providers={"studio": "down", "box": "unknown"})
    )
    response = await stage.call("GET", "/readyz")
    assert response.status_code == 200
    answer = response.json()
    assert (answer["ready"], answer["providers"]) == (True, {"studio": False, "box": True})
    assert answer["provider_states"] == {"studio": "down", "box": "unknown"}


async def test_metrics_are_text(stage: Stage) -> None:
    response = await stage.call("GET", "/metrics")
    assert response.headers["Content-Type"].startswith("text/plain")
    assert response.content == b"# counters\n"


@pytest.mark.parametrize(
    ("path", "reference"), [("/openapi.json", CUSTOMERS), ("/ops/openapi.json", OPERATORS)], ids=["public", "ops"]
)
async def test_a_document_holds_every_route_of_its_readers_and_only_known_codes(
    stage: Stage, path: str, reference: Reference
) -> None:
    token = stage.deps.settings.operator_token
    document: dict[str, Any] = (await stage.call("GET", path, credential=token)).json()
    own = [route for route in ROUTES if reference_of(route) is reference]
    assert document == describe(own, stage.public_url, EXTENSIONS, reference)
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(route.method, route.path) for route in own}
    assert len(described) == len(own)
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert set(document["webhooks"]) == ({*EVENT_KINDS, *PAYLOADS} if reference is CUSTOMERS else set())
    # Each section has a description, and what generators make an identifier of.
    sections = [each["name"] for each in document["tags"]]
    assert sections == [tag for tag in reference.sections if tag in sections]
    assert {tag for operation in operations for tag in operation["tags"]} <= set(sections)
    assert all(re.fullmatch(r"[A-Z][A-Za-z]*([ -][a-z]+)?", tag) for tag in sections)
    schemes = {name for operation in operations for each in operation["security"] for name in each}
    assert schemes == set(document["components"]["securitySchemes"])
    for route in own:
        assert set(error_codes(route)) <= set(ERROR_TABLE)
    text = document["info"]["description"]
    assert text.index("## A first") < text.index("## Errors") < text.index("All codes")
    kinds = re.split(r"^\*\*(\d{3})\*\* `(\w+)`$", text.partition("All codes")[2], flags=re.MULTILINE)[1:]
    listed = [
        (status, kind, code)
        for status, kind, lines in zip(kinds[::3], kinds[1::3], kinds[2::3], strict=True)
        for code in re.findall(r"^- `(\w+)`: \S", lines, re.MULTILINE)
    ]
    assert sorted(listed) == sorted((str(row.status), row.type, code) for code, row in ERROR_TABLE.items())
    references = set(re.findall(r'"#/components/schemas/(\w+)"', str(document).replace("'", '"')))
    assert references <= set(document["components"]["schemas"])
    for operation in operations:
        for response in operation["responses"].values():
            assert "X-Request-Id" in response["headers"]


async def test_the_document_is_made_beside_the_loop(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def describe_there(*given: Any) -> dict[str, Any]:
        threads.append(threading.get_ident())
        return describe(*given)

    monkeypatch.setattr(api_docs, "describe", describe_there)
    document_for.cache_clear()
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(stage.call, "GET", "/openapi.json")
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


async def test_the_docs_are_found_with_a_slash(stage: Stage) -> None:
    response = await stage.call("GET", "/docs/")
    assert (response.status_code, response.headers["Location"]) == (308, "https://holdfast.example/docs")


async def test_the_docs_page_loads_from_this_origin_only(stage: Stage) -> None:
    response = await stage.call("GET", "/docs")
    page = response.text
    policy = dict(part.split(" ", 1) for part in response.headers["Content-Security-Policy"].split("; "))
    assert policy == {
        "default-src": "'none'", "script-src": "'self'", "style-src": "'unsafe-inline'", "connect-src": "'self'",
        "img-src": "'self' data: blob:", "media-src": "blob:", "base-uri": "'none'", "form-action": "'none'",
        "frame-ancestors": "'none'",
    }  # fmt: skip
    assert set(re.findall(r' (?:href|src)="([^"]+)"', page)) == {f"/docs/{SCRIPT}", "/openapi.json", "data:,"}
    [options] = [json.loads(html.unescape(each)) for each in re.findall(r'data-configuration="([^"]+)"', page)]
    assert (options["url"], options["servers"]) == ("/openapi.json", [{"url": "/"}])
    assert set(options["externalUrls"].values()) == {""}
    for link in (options["url"], f"/docs/{SCRIPT}"):
        assert (await stage.call("GET", link)).status_code == 200


async def test_the_operators_document_needs_their_credential(stage: Stage) -> None:
    refused(await stage.call("GET", "/ops/openapi.json"), 401, "missing_credentials")
    token = stage.deps.settings.operator_token
    answer = await stage.call("GET", "/ops/openapi.json", credential=token)
    assert answer.headers["Cache-Control"] == "private, max-age=300"
    customers = (await stage.call("GET", "/openapi.json")).text
    assert "/ops/" not in customers
    assert "operator_token" not in customers
    assert (await stage.call("GET", f"/ops/docs/{SCRIPT}")).status_code == 200


async def test_the_operators_document_names_their_listener(stage: Stage) -> None:
    stage.configure(ops_host="0.0.0.0", ops_port=9000)
    token = stage.deps.settings.operator_token
    own = (await stage.call("GET", "/ops/openapi.json", credential=token)).json()
    assert own["servers"] == [{"url": "http://127.0.0.1:9000"}]
    assert "http://127.0.0.1:9000/ops/api/tree" in own["info"]["description"]
    [curl, *_] = own["paths"]["/ops/api/tree"]["get"]["x-codeSamples"]
    assert "http://127.0.0.1:9000/ops/api/tree" in curl["source"]
    # Customers' links and the operators' cookie have the public address.
    assert f"{stage.public_url}/v2/assets/" in json.dumps(own)
    assert own["components"]["securitySchemes"]["operator_session"]["name"].startswith("__Host-")
    customers = (await stage.call("GET", "/openapi.json")).json()
    assert customers["servers"] == [{"url": stage.public_url}]


async def test_a_browser_without_a_path_is_shown_what_this_is(stage: Stage) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8", "Sec-Fetch-Site": "cross-site"}
    browser |= {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    response = await stage.call("GET", "/", headers=browser)
    assert response.status_code == 200
    for link in ('href="/account"', 'href="/models"', 'href="/docs"'):
        assert link in response.text
    refused(await stage.call("GET", "/", headers={"Accept": "*/*"}), 404, "route_not_found")
    refused(await stage.call("GET", "/"), 404, "route_not_found")
    assert (await stage.call("HEAD", "/")).status_code == 404
    assert (await stage.call("HEAD", "/", headers=browser)).status_code == 200


async def test_the_docs_script_is_cached_by_its_version(stage: Stage) -> None:
    first = await stage.call("GET", f"/docs/{SCRIPT}")
    assert first.headers["Content-Type"].startswith("text/javascript")
    assert "max-age=31536000" in first.headers["Cache-Control"]
    again = await stage.call("GET", f"/docs/{SCRIPT}", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    for name in ("Cache-Control", "ETag", "Vary"):
        assert again.headers[name] == first.headers[name]


@pytest.mark.parametrize("path", ["/openapi.json", f"/docs/{SCRIPT}"])
async def test_large_documents_are_compressed_once_for_who_accepts_that(stage: Stage, path: str) -> None:
    plain = await stage.call("GET", path)
    assert "Content-Encoding" not in plain.headers
    for accepted in ("gzip", "br, gzip;q=0.5", "*"):
        packed = [await stage.call("GET", path, headers={"Accept-Encoding": accepted}) for _ in range(2)]
        assert [each.headers["Content-Encoding"] for each in packed] == ["gzip"] * 2
        assert {each.headers["Vary"] for each in (*packed, plain)} == {"Accept-Encoding"}
        assert {each.content for each in packed} == {plain.content}
        assert len({each.headers["Content-Length"] for each in packed}) == 1
        assert int(packed[0].headers["Content-Length"]) < len(plain.content) / 2
    assert document_for("http://x") is document_for("http://x")
    for accepted in ("gzip;q=0", "identity", "br"):
        refused = await stage.call("GET", path, headers={"Accept-Encoding": accepted})
        assert "Content-Encoding" not in refused.headers


def test_the_vendored_viewer_comes_with_its_licence() -> None:
    viewer = files("holdfast.http") / "viewer"
    licence = (viewer / "LICENSE.txt").read_text()
    assert "MIT License" in licence
    assert SCRIPT in licence
    script = gzip.decompress((viewer / f"{SCRIPT}.gz").read_bytes())
    assert hashlib.sha256(script).hexdigest() in licence


@pytest.mark.parametrize(
    ("path", "fields", "modality"),
    [
        ("/v1/images/generations", {"model": "studio/clip-1", "prompt": "waves"}, "image"),
        ("/v1/audio/speech", {"model": "studio/image-1", "input": "rain"}, "audio"),
        ("/v1/videos", {"model": "studio/image-1", "prompt": "waves"}, "video"),
    ],
)
async def test_openai_endpoints_refuse_models_that_make_something_else(
    api: Api, path: str, fields: dict[str, str], modality: str
) -> None:
    error = refused(await api.as_key("POST", path, json=fields), 400, "invalid_parameter")
    assert error["param"] == "model"
    assert (
        error["message"]
        == f"The parameter model must be a model of the modality {modality}, not '{fields['model']}'."
    )


async def test_a_version_that_no_model_has_is_named_as_one(api: Api) -> None:
    sent = {"version": "0" * 64, "input": {"prompt": "waves"}}
    error = (await api.as_key("POST", "/replicate/v1/predictions", json=sent)).json()
    assert (error["code"], error["param"]) == ("model_not_found", "version")
    assert error["detail"].startswith(f"No model has the version '{'0' * 64}'. Models that exist: ")


async def test_the_published_schema_takes_what_the_service_takes_for_a_file(stage: Stage) -> None:
    models = (await stage.call("GET", "/v2/models")).json()["data"]
    schema = next(model["input_schema"] for model in models if model["id"] == "studio/edit-1")
    for given in ({"image": "file_" + "0" * 32}, {"image_url": "file_" + "0" * 32}):
        jsonschema.validate(given, schema)
