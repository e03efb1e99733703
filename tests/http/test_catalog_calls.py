"""The catalog: listings, deprecated and disabled models, quotes after a change of the catalog."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.clients import refused

from holdfast.actors.account.messages import CreateTask, TaskAccepted
from holdfast.ledger.catalog.catalog import parse_catalog
from holdfast.ledger.catalog.models import Catalog
from holdfast.providers.media.kinds import kind_rules

from .identities import NOW

if TYPE_CHECKING:
    from tests.http.api import Api
    from tests.http.stage import Stage

CREATE = "/v2/task/create"
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "seconds": {"type": "integer", "minimum": 1, "maximum": 10, "default": 4},
        "size": {"enum": ["small", "big"], "default": "small"},
    },
}
MODEL = """
[[models]]
id = "reel"
modality = "video"
type = "async"
created = "2026-11-01"
markup_multiplier = "1.20"
pricing = { mode = "per_second", unit_price = "0.05", minimum = "0.01", tiers = [
  { when = { size = "small" }, unit_price = "0.05" }, { when = { size = "big" }, unit_price = "0.08" } ] }
units = { seconds = "seconds" }
upstream = { provider = "studio" }
input_schema = "s"
"""
OTHER = MODEL.replace('"reel"', '"other"')
SMALL = '{ when = { size = "small" }, unit_price = "0.05" }, '


def catalog_of(text: str = MODEL, schema: object = SCHEMA) -> Catalog:
    return parse_catalog(text, read_schema=lambda name: json.dumps(schema), kinds=kind_rules())


def put(stage: Stage, catalog: Catalog, *, past: Catalog | None = None) -> None:
    """Let a catalog be in force; of earlier ones ``past`` is still known."""
    stage.sell(catalog, *(() if past is None else (past,)))


async def quoted(stage: Stage, given: dict[str, Any]) -> dict[str, Any]:
    response = await stage.call("POST", "/v2/quote", json={"model": "reel", "input": given})
    assert response.status_code == 200, response.content
    answer = response.json()
    assert isinstance(answer, dict)
    return answer


async def accept(key: str, command: object) -> TaskAccepted:
    assert isinstance(command, CreateTask)
    return TaskAccepted(
        "task_1", "quo_1", "queued", None, command.request.terms.hold_micro, command.request.terms.basis, NOW
    )


async def test_a_listing_shows_every_price_before_the_markup(stage: Stage) -> None:
    put(stage, catalog_of())
    (model,) = (await stage.call("GET", "/v2/models")).json()["data"]
    prices = {"input_price": None, "output_price": None}
    assert model["pricing"] == {
        "mode": "per_second",
        "unit": "second",
        "unit_price": "0.05",
        **prices,
        "minimum": "0.01",
        "tiers": [
            {"when": {"size": "small"}, "unit_price": "0.05", **prices},
            {"when": {"size": "big"}, "unit_price": "0.08", **prices},
        ],
    }
    assert (model["markup_multiplier"], model["status"]) == ("1.20", "active")
    assert (await stage.call("GET", "/v1/models/reel")).json() == model


EXAMPLE = MODEL + 'description = "Makes reels."\nexample_input = { seconds = 7, size = "big" }\n'


async def test_a_model_says_what_it_takes_and_what_its_example_costs(stage: Stage) -> None:
    put(stage, catalog_of(EXAMPLE + 'hosting = { content_types = ["video/mp4", "video/webm"] }\n'))
    (model,) = (await stage.call("GET", "/v2/models")).json()["data"]
    assert (model["description"], model["input_schema"]) == ("Makes reels.", SCHEMA)
    # The example as the operator wrote it, and not with the schema's defaults.
    assert model["example_input"] == {"seconds": 7, "size": "big"}
    assert model["estimate"] == (await quoted(stage, model["example_input"]))["estimate"]
    assert model["estimate"]["credits"] == "0.672"
    assert (model["output"], model["priced_only"]) == (["video/mp4", "video/webm"], False)
    assert (await stage.call("GET", "/v1/models/reel")).json() == model


async def test_what_the_catalog_does_not_say_is_null(stage: Stage) -> None:
    put(stage, catalog_of())
    (model,) = (await stage.call("GET", "/v2/models")).json()["data"]
    assert (model["description"], model["example_input"], model["estimate"], model["output"]) == (
        None,
        None,
        None,
        [],
    )


async def test_a_disabled_model_is_still_described(stage: Stage) -> None:
    put(stage, catalog_of(EXAMPLE + 'status = "disabled"\n'))
    model = (await stage.call("GET", "/v1/models/reel")).json()
    assert (model["status"], model["estimate"]["credits"]) == ("disabled", "0.672")


async def test_every_default_model_is_described_and_its_example_is_what_it_says(api: Api) -> None:
    api.know_key()
    api.accounts.answer = accept
    listed = (await api.call("GET", "/v2/models")).json()["data"]
    assert [model["id"] for model in listed if model["priced_only"]] == ["gateway/chat-1"]
    for model in listed:
        body = {"model": model["id"], "input": model["example_input"]}
        quoted = await api.call("POST", "/v2/quote", json=body)
        assert quoted.json()["estimate"] == model["estimate"]
        response = await api.as_key("POST", CREATE, json=body)
        if model["priced_only"]:
            refused(response, 400, "model_not_async")
            assert model["output"] == []
        else:
            assert response.status_code == 200, response.content
            assert {kind.partition("/")[0] for kind in model["output"]} == {model["modality"]}


async def test_a_deprecated_model_is_listed_and_can_run(stage: Stage) -> None:
    put(stage, catalog_of(MODEL + 'status = "deprecated"\n'))
    stage.know_key()
    stage.accounts.answer = accept
    assert (await stage.call("GET", "/v1/models/reel")).json()["status"] == "deprecated"
    await quoted(stage, {})
    assert (await stage.as_key("POST", CREATE, json={"model": "reel", "input": {}})).status_code == 200


async def test_a_disabled_model_is_listed_and_neither_quoted_nor_run(api: Api) -> None:
    api.know_key()
    put(api, catalog_of())
    quote_id = (await quoted(api, {}))["quote_id"]
    put(api, catalog_of(MODEL + 'status = "disabled"\n'), past=catalog_of())
    assert (await api.call("GET", "/v1/models/reel")).json()["status"] == "disabled"
    body = {"model": "reel", "input": {}}
    for response in (
        await api.call("POST", "/v2/quote", json=body),
        await api.as_key("POST", CREATE, json=body),
        await api.as_key("POST", CREATE, json={**body, "quote_id": quote_id}),
    ):
        refused(response, 400, "model_not_available")
    assert api.accounts.asked == []


async def test_an_input_without_a_price_is_refused_without_retry(api: Api) -> None:
    api.know_key()
    put(api, catalog_of(MODEL.replace(SMALL, "")))
    body = {"model": "reel", "input": {}}
    for response in (
        await api.call("POST", "/v2/quote", json=body),
        await api.as_key("POST", CREATE, json=body),
    ):
        error = refused(response, 503, "quote_unavailable")
        assert error["param"] == "input.size"
        # Clients that repeat a 503 by themselves would do so in vain.
        assert response.headers["X-Should-Retry"] == "false"
        assert "Retry-After" not in response.headers


UNTIERED = MODEL.replace(MODEL[MODEL.index(", tiers") : MODEL.index("\nunits")], " }")
LONGER = {
    "type": "object",
    "properties": {"seconds": {"type": "integer", "minimum": 1, "maximum": 10, "default": 9}},
}
CHANGES: dict[str, tuple[str, object]] = {
    "dearer": (MODEL.replace('"0.05"', '"0.09"'), SCHEMA),
    "another markup": (MODEL.replace('"1.20"', '"3"'), SCHEMA),
    "a price withdrawn": (MODEL.replace(SMALL, ""), SCHEMA),
    "another default": (UNTIERED, LONGER),
    "the model gone": (OTHER, SCHEMA),
    "no task any more": (MODEL.replace('"async"', '"sync"'), SCHEMA),
}


@pytest.mark.parametrize("change", sorted(CHANGES))
async def test_a_live_quote_is_valid_after_catalog_changes(stage: Stage, change: str) -> None:
    stage.know_key()
    stage.accounts.answer = accept
    put(stage, catalog_of())
    promised = await quoted(stage, {})
    put(stage, catalog_of(*CHANGES[change]), past=catalog_of())
    body = {"model": "reel", "input": {}, "quote_id": promised["quote_id"]}
    response = await stage.as_key("POST", CREATE, json=body)
    assert (response.json())["estimated_cost"] == {"credits": "0.24", "basis": "per_second: 4 x 0.06"}
    command = stage.accounts.asked[0][1]
    assert isinstance(command, CreateTask)
    assert command.request.terms.catalog_version == promised["catalog_version"]


async def test_without_a_quote_the_current_price_applies(stage: Stage) -> None:
    stage.know_key()
    stage.accounts.answer = accept
    put(stage, catalog_of(CHANGES["dearer"][0]), past=catalog_of())
    response = await stage.as_key("POST", CREATE, json={"model": "reel", "input": {}})
    assert (response.json())["estimated_cost"]["credits"] == "0.432"


async def test_a_quote_of_a_deleted_catalog_needs_the_same_input(
    api: Api,
) -> None:
    api.know_key()
    api.accounts.answer = accept
    put(api, catalog_of())
    body = {"model": "reel", "input": {}, "quote_id": (await quoted(api, {}))["quote_id"]}
    put(api, catalog_of(CHANGES["dearer"][0]))
    response = await api.as_key("POST", CREATE, json=body)
    assert (response.json())["estimated_cost"]["credits"] == "0.24"
    put(api, catalog_of(*CHANGES["another default"]))
    refused(await api.as_key("POST", CREATE, json=body), 400, "quote_mismatch")


async def test_a_quote_does_not_make_a_model_run_as_a_task(api: Api) -> None:
    api.know_key()
    sync = catalog_of(MODEL.replace('"async"', '"sync"'))
    put(api, sync)
    body = {"model": "reel", "input": {}, "quote_id": (await quoted(api, {}))["quote_id"]}
    refused(await api.as_key("POST", CREATE, json=body), 400, "model_not_async")
    put(api, catalog_of(OTHER), past=sync)
    refused(await api.as_key("POST", CREATE, json=body), 400, "model_not_async")
